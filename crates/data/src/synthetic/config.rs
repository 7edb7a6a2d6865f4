//! The configuration of synthetic data.

use schema::IndexDistribution;

use crate::Error;

/// Numbers of integers and of categories per line in Criteo's layout.
const CRITEO_DENSE: usize = 13;
const CRITEO_FEATURES: usize = 26;

/// The configuration of synthetic data. The same configuration gives the same bytes on any number
/// of threads, and the rows of a shorter file are the first rows of a longer one.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticConfig {
    pub rows: u64,
    /// Seed of the planted model and of the rows.
    pub seed: u64,
    pub dense: usize,
    pub features: Vec<SyntheticFeature>,
    /// Share of empty fields in every column, in `[0, 1)`.
    pub missing_share: f64,
    /// Expected share of clicks, in `(0, 1)`.
    pub click_rate: f64,
    pub layout: RowLayout,
    pub planted: PlantedConfig,
}

/// One categorical column: its ids, their frequencies, and the number of ids per row.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticFeature {
    /// Name of the column, which the header of [`RowLayout::Csv`] contains.
    pub name: String,
    /// Number of distinct ids.
    pub cardinality: u64,
    pub distribution: IndexDistribution,
    pub hotness: Hotness,
}

/// Number of ids of a feature per row, uniform in `min..=max`. The ids of a bag are drawn
/// independently and may repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hotness {
    /// Smallest number of ids per row, at least 1. Empty bags come from `missing_share`.
    pub min: u32,
    pub max: u32,
}

impl Hotness {
    /// Exactly one id per row.
    pub const ONE: Self = Self { min: 1, max: 1 };

    /// Returns the mean length of a bag.
    #[must_use]
    pub fn mean(self) -> f64 {
        f64::midpoint(f64::from(self.min), f64::from(self.max))
    }
}

/// The text layout of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLayout {
    /// A line has a label, 13 integers and 26 categories of 8 hexadecimal digits, separated by
    /// tabs, and the file has no header. Each feature maps its frequency ranks to categories by
    /// another bijection.
    Criteo,
    /// The header line has `label`, `I1`… and the features' names. Values are separated by commas,
    /// ids are decimal numbers in `0..cardinality`, and the ids of a bag are joined by `|`.
    Csv,
}

/// The planted model: `logit = bias + dense + additive + interaction`. The last three terms have
/// mean zero and the standard deviations that the fields specify.
///
/// Latent vectors are centered under each feature's id distribution, and features are drawn
/// independently. Given any single column, the interaction part therefore has mean zero. A linear
/// model on one-hot ids sees only a second-order effect: away from a click rate of one half, ids
/// with long vectors are clicked slightly more or less often. The report's linear result includes
/// that effect.
#[derive(Clone, Debug, PartialEq)]
pub struct PlantedConfig {
    /// Standard deviation of the smooth functions of the dense columns, in logits.
    pub dense_deviation: f64,
    /// Standard deviation of the sum of the ids' own effects, in logits.
    pub additive_deviation: f64,
    /// Standard deviation of `Σ ⟨u_f, u_g⟩` over [`Self::pairs`], in logits.
    pub interaction_deviation: f64,
    pub latent_dim: usize,
    /// Number of frequency ranks that have effects. Rarer ids have none, so that all effects can be
    /// learned.
    pub effect_ids: u64,
    /// Pairs of positions of features that interact. The two features of a pair must differ.
    pub pairs: Vec<(usize, usize)>,
}

impl PlantedConfig {
    /// Returns moderate effects, in which each feature interacts with the next feature.
    #[must_use]
    pub fn pair_neighbors(features: usize) -> Self {
        Self {
            dense_deviation: 0.6,
            additive_deviation: 0.8,
            interaction_deviation: 0.8,
            latent_dim: 4,
            effect_ids: 512,
            pairs: (1..features).map(|feature| (feature - 1, feature)).collect(),
        }
    }
}

/// Number of ids per Criteo column. The numbers are below the counts of Criteo Kaggle by at least
/// 2, so that the tables of a Kaggle model can hold them as exact ids with the two reserved ones.
const CRITEO_CARDINALITIES: [u64; CRITEO_FEATURES] = [
    1_000, 500, 50_000, 20_000, 250, 20, 4_000, 500, 1, 10_000, 3_000, 40_000, 2_000, 24, 5_000,
    30_000, 8, 3_000, 1_500, 2, 40_000, 15, 12, 20_000, 100, 10_000,
];

impl SyntheticConfig {
    /// Returns the data of the quickstart: Criteo's layout with mixed cardinalities and
    /// Zipf-distributed ids, sized so that a DLRM learns the planted interactions from about a
    /// million rows.
    #[must_use]
    pub fn criteo(rows: u64, seed: u64) -> Self {
        let features = CRITEO_CARDINALITIES.iter().enumerate().map(|(index, &cardinality)| {
            let distribution = IndexDistribution::Zipf { exponent: 1.5 };
            let name = format!("C{}", index + 1);
            SyntheticFeature { name, cardinality, distribution, hotness: Hotness::ONE }
        });
        Self {
            rows,
            seed,
            dense: CRITEO_DENSE,
            features: features.collect(),
            missing_share: 0.04,
            click_rate: 0.25,
            layout: RowLayout::Criteo,
            planted: PlantedConfig {
                dense_deviation: 0.9,
                additive_deviation: 0.8,
                interaction_deviation: 0.7,
                latent_dim: 2,
                effect_ids: 32,
                // The pairs are C3·C4, C12·C16, C21·C24 and C26·C10, which have large tables.
                pairs: vec![(2, 3), (11, 15), (20, 23), (25, 9)],
            },
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        check_shares(self)?;
        for feature in &self.features {
            check_feature(feature, self.layout)?;
        }
        for &(left, right) in &self.planted.pairs {
            let are_features = left < self.features.len() && right < self.features.len();
            require(
                are_features && left != right,
                "planted.pairs",
                "two different feature positions",
                || format!("({left}, {right}) of {} features", self.features.len()),
            )?;
        }
        let criteo = self.dense == CRITEO_DENSE && self.features.len() == CRITEO_FEATURES;
        require(
            self.layout == RowLayout::Csv || criteo,
            "layout",
            "13 dense and 26 features",
            || format!("{} dense and {} features", self.dense, self.features.len()),
        )
    }
}

fn check_shares(config: &SyntheticConfig) -> Result<(), Error> {
    let missing = (0.0..1.0).contains(&config.missing_share);
    require(missing, "missing_share", "a share in [0, 1)", || config.missing_share.to_string())?;
    let click = config.click_rate > 0.0 && config.click_rate < 1.0;
    require(click, "click_rate", "a share in (0, 1)", || config.click_rate.to_string())?;
    let planted = &config.planted;
    let deviations =
        [planted.dense_deviation, planted.additive_deviation, planted.interaction_deviation];
    let finite = deviations.iter().all(|deviation| deviation.is_finite() && *deviation >= 0.0);
    require(finite, "planted deviations", "finite and not negative", || format!("{deviations:?}"))
}

fn check_feature(feature: &SyntheticFeature, layout: RowLayout) -> Result<(), Error> {
    let name = &feature.name;
    // Ranks pass through f64, which is exact up to 2^53. Eight hexadecimal digits end at 2^32.
    let most = if layout == RowLayout::Criteo { 1 << 32 } else { 1 << 53 };
    require(
        (1..=most).contains(&feature.cardinality),
        "cardinality",
        "at least 1, at most 2^32 in criteo's layout and 2^53 in csv",
        || format!("{} (feature {name})", feature.cardinality),
    )?;
    let Hotness { min, max } = feature.hotness;
    let longest = if layout == RowLayout::Criteo { 1 } else { u32::MAX };
    require(
        1 <= min && min <= max && max <= longest,
        "hotness",
        "1 <= min <= max, and 1 in criteo's layout",
        || format!("{min}..={max} (feature {name})"),
    )?;
    let exponent = match feature.distribution {
        IndexDistribution::Uniform | IndexDistribution::Reuse(_) => 0.0,
        IndexDistribution::Zipf { exponent } => exponent,
    };
    require(
        exponent.is_finite() && exponent >= 0.0,
        "zipf exponent",
        "finite and not negative",
        || format!("{exponent} (feature {name})"),
    )
}

fn require(
    holds: bool,
    what: &'static str,
    expected: &'static str,
    got: impl FnOnce() -> String,
) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Synthetic { what, expected, got: got() }) }
}
