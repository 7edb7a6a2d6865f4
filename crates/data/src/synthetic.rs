//! Made-up click data with a known truth: labels come from a planted model with pairwise
//! interactions, so a training run can be held against the best AUC any model could reach.
//!
//! Owns the configuration, the file writing and the report. Knows nothing of how such files are
//! read or trained on; the parts live below: `draw` (ids and counts), `planted` (probabilities),
//! `text` (lines), `linear` and `score` (what the report states), `file`.

mod draw;
mod file;
mod linear;
mod planted;
mod reuse;
mod score;
mod text;

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use schema::IndexDistribution;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::ordered;
use planted::Planted;

pub use draw::Block;
pub use reuse::reuse_histogram;

/// Rows drawn, rendered and handed over at a time; fixed, so the bytes do not depend on the
/// threads.
const CHUNK_ROWS: u64 = 8192;
/// Rows at the file's beginning over which the ceiling is measured at most.
const CEILING_ROWS: u64 = 1 << 20;
/// Criteo's layout: integers and categories per line.
const CRITEO_DENSE: usize = 13;
const CRITEO_FEATURES: usize = 26;

/// What to make. The same configuration gives the same bytes, on any number of threads, and the
/// rows of a shorter file are the first rows of a longer one.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticConfig {
    /// Number of rows.
    pub rows: u64,
    /// Seed of the planted model and of the rows.
    pub seed: u64,
    /// Number of dense columns.
    pub dense: usize,
    /// Categorical columns, in file order.
    pub features: Vec<SyntheticFeature>,
    /// Share of empty fields in every dense and categorical column, in `[0, 1)`.
    pub missing_share: f64,
    /// Expected share of clicks, in `(0, 1)`.
    pub click_rate: f64,
    /// How a row is written.
    pub layout: Layout,
    /// The truth behind the labels.
    pub planted: PlantedConfig,
}

/// One categorical column.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticFeature {
    /// Name in the header of [`Layout::Csv`].
    pub name: String,
    /// Number of different ids.
    pub cardinality: u64,
    /// How often each id occurs.
    pub distribution: IndexDistribution,
    /// Ids per row.
    pub hotness: Hotness,
}

/// Bag length of a feature: uniform in `min..=max`. Ids within a bag are drawn independently and
/// may repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hotness {
    /// Fewest ids of a row, at least 1 (empty bags come from `missing_share`).
    pub min: u32,
    /// Most ids of a row.
    pub max: u32,
}

impl Hotness {
    /// Exactly one id per row.
    pub const ONE: Self = Self { min: 1, max: 1 };

    /// The mean length of a bag.
    #[must_use]
    pub fn mean(self) -> f64 {
        f64::midpoint(f64::from(self.min), f64::from(self.max))
    }
}

/// How a row is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Label, 13 integers, 26 categories of 8 hexadecimal digits, separated by tabs; no header.
    /// Categories are a bijection of the frequency rank, different for every feature.
    Criteo,
    /// A header line (`label`, `I1`…, the features' names), commas, ids `0..cardinality` in
    /// decimal, several of one bag joined by `|`.
    Csv,
}

/// The planted model: `logit = bias + dense + additive + interaction`, the last three with mean
/// zero and the standard deviations below.
///
/// Latent vectors are centred under each feature's id distribution and features are drawn
/// independently, so the interaction part's mean given any single column is zero. What a linear
/// model on one-hot ids still sees of it is of second order: away from a click rate of one half,
/// ids with long vectors are clicked slightly more or less often. The report's linear figure
/// includes that.
#[derive(Clone, Debug, PartialEq)]
pub struct PlantedConfig {
    /// Deviation of the smooth functions of the dense columns, in logits.
    pub dense_deviation: f64,
    /// Deviation of the sum of the ids' own effects, in logits.
    pub additive_deviation: f64,
    /// Deviation of `Σ ⟨u_f, u_g⟩` over [`Self::pairs`], in logits.
    pub interaction_deviation: f64,
    /// Length of the latent vectors.
    pub latent_dim: usize,
    /// Frequency ranks that carry effects; rarer ids carry none, so that what there is can be
    /// learned.
    pub effect_ids: u64,
    /// Interacting features, by position. Every pair's two positions differ.
    pub pairs: Vec<(usize, usize)>,
}

impl PlantedConfig {
    /// Moderate strengths, and each feature interacting with the next.
    #[must_use]
    pub fn neighbours(features: usize) -> Self {
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

/// Ids per Criteo column: below Criteo Kaggle's counts by at least 2, so the tables of a Kaggle
/// model hold them in exact mode with its two reserved ids.
const CRITEO_CARDINALITIES: [u64; CRITEO_FEATURES] = [
    1_000, 500, 50_000, 20_000, 250, 20, 4_000, 500, 1, 10_000, 3_000, 40_000, 2_000, 24, 5_000,
    30_000, 8, 3_000, 1_500, 2, 40_000, 15, 12, 20_000, 100, 10_000,
];

impl SyntheticConfig {
    /// The quickstart's data: Criteo's layout with mixed cardinalities and Zipf ids, sized so that
    /// a DLRM learns the planted interactions from about a million rows.
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
            layout: Layout::Criteo,
            planted: PlantedConfig {
                dense_deviation: 0.9,
                additive_deviation: 0.8,
                interaction_deviation: 0.7,
                latent_dim: 2,
                effect_ids: 32,
                // C3·C4, C12·C16, C21·C24 and C26·C10: tables large enough that few ids meet in a
                // row.
                pairs: vec![(2, 3), (11, 15), (20, 23), (25, 9)],
            },
        }
    }

    fn check(&self) -> Result<(), Error> {
        check_shares(self)?;
        for feature in &self.features {
            check_feature(feature, self.layout)?;
        }
        for &(left, right) in &self.planted.pairs {
            let known = left < self.features.len() && right < self.features.len();
            require(
                known && left != right,
                "planted.pairs",
                "two different feature positions",
                || format!("({left}, {right}) of {} features", self.features.len()),
            )?;
        }
        let criteo = self.dense == CRITEO_DENSE && self.features.len() == CRITEO_FEATURES;
        require(self.layout == Layout::Csv || criteo, "layout", "13 dense and 26 features", || {
            format!("{} dense and {} features", self.dense, self.features.len())
        })
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

fn check_feature(feature: &SyntheticFeature, layout: Layout) -> Result<(), Error> {
    let name = &feature.name;
    // Ranks pass through f64, which is exact to 2^53; eight hexadecimal digits end at 2^32.
    let most = if layout == Layout::Criteo { 1 << 32 } else { 1 << 53 };
    require(
        (1..=most).contains(&feature.cardinality),
        "cardinality",
        "at least 1, at most 2^32 in criteo's layout and 2^53 in csv",
        || format!("{} (feature {name})", feature.cardinality),
    )?;
    let Hotness { min, max } = feature.hotness;
    let longest = if layout == Layout::Criteo { 1 } else { u32::MAX };
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

/// What is known about the file that was written.
///
/// The ceiling is the AUC of the true probabilities against the labels drawn from them: no model
/// can expect more on these rows. The linear figure comes from a logistic regression on one-hot ids
/// (ids without effect share a weight, as they share the optimum), presence of each field and
/// piecewise linear functions of `ln(1 + x)`; it starts from the planted additive part and is
/// fitted to the true probabilities of further rows. The better of start and fit is reported, so it
/// is an estimate of the best linear model from below that training on labels will hardly beat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Rows written.
    pub rows: u64,
    /// Bytes of text, before compression.
    pub bytes_text: u64,
    /// Seed of the planted model and of the rows.
    pub seed: u64,
    /// Share of clicks among the rows written.
    pub click_rate: f64,
    /// AUC of the true probabilities over the first `ceiling_rows` rows.
    pub ceiling_auc: f64,
    /// Normalized entropy of the true probabilities over the same rows.
    pub ceiling_normalized_entropy: f64,
    /// Rows at the file's beginning over which the ceiling was measured.
    pub ceiling_rows: u64,
    /// AUC of the best linear model over the first `linear_rows` rows.
    pub linear_auc: f64,
    /// Rows at the file's beginning over which the linear model was measured.
    pub linear_rows: u64,
    /// Rows behind the file's end to which the linear model was fitted.
    pub linear_fit_rows: u64,
}

/// How far the writing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Rows written so far.
    pub rows: u64,
    /// Bytes of text written so far, before compression.
    pub bytes_text: u64,
}

/// Writes the rows to `path`: compressed where it ends in `.gz` or `.zst`, under a temporary name
/// that becomes `path` once everything is on the disk.
///
/// # Errors
/// [`Error::Synthetic`] for a configuration that cannot be met, before any file is touched;
/// [`Error::Io`] for what the disk says.
pub fn write(
    config: &SyntheticConfig,
    path: &Path,
    threads: usize,
    progress: &mut dyn FnMut(Written),
) -> Result<Report, Error> {
    config.check()?;
    file::replace(path, |out| write_to(config, out, threads, progress))
}

/// Writes the rows to `out`, uncompressed.
///
/// # Errors
/// [`Error::Synthetic`] for a configuration that cannot be met; [`Error::Io`] where `out` fails.
pub fn write_to(
    config: &SyntheticConfig,
    out: &mut dyn Write,
    threads: usize,
    progress: &mut dyn FnMut(Written),
) -> Result<Report, Error> {
    config.check()?;
    let planted = Planted::new(config);
    let mut tally = Tally::default();
    let header = text::header(config);
    let mut emit = |bytes: &[u8]| out.write_all(bytes).map_err(file::stream_error);
    emit(&header)?;
    tally.bytes_text = header.len() as u64;
    let make = |rows: Range<u64>| {
        let block = draw::block(config, &planted, rows);
        (text::lines(config, &block), block)
    };
    for_each_chunk(threads, 0..config.rows, make, |(lines, block)| {
        emit(&lines)?;
        tally.add(&lines, &block);
        progress(Written { rows: tally.rows, bytes_text: tally.bytes_text });
        Ok(())
    })?;
    let linear = linear::best(config, &planted, threads)?;
    Ok(tally.report(config, &linear))
}

/// The rows of a range, which may lie behind the file's end: any part can be drawn by itself.
///
/// # Errors
/// [`Error::Synthetic`] for a configuration that cannot be met.
pub fn sample(config: &SyntheticConfig, rows: Range<u64>) -> Result<Block, Error> {
    config.check()?;
    Ok(draw::block(config, &Planted::new(config), rows))
}

/// AUC of the true probabilities over a range of rows, such as the held-out ones.
///
/// # Errors
/// [`Error::Synthetic`] for a configuration that cannot be met.
pub fn ceiling_auc(
    config: &SyntheticConfig,
    rows: Range<u64>,
    threads: usize,
) -> Result<f64, Error> {
    config.check()?;
    let planted = Planted::new(config);
    let (mut scores, mut labels) = (Vec::new(), Vec::new());
    let make = |rows: Range<u64>| draw::block(config, &planted, rows);
    for_each_chunk(threads, rows, make, |block| {
        scores.extend_from_slice(&block.probabilities);
        labels.extend_from_slice(&block.labels);
        Ok(())
    })?;
    Ok(score::auc(&scores, &labels))
}

/// Bytes that writing such rows takes at most: the rows on which the planted model is scaled, or
/// the chunks of the file, or those of the linear model that is fitted to it.
#[must_use]
pub fn memory(config: &SyntheticConfig, threads: usize) -> u64 {
    let ids: f64 = config.features.iter().map(|feature| feature.hotness.mean()).sum();
    let row = draw::Block::row_bytes(config, ids);
    let in_flight = (ordered::in_flight(threads) as u64 * CHUNK_ROWS) as f64;
    let rows = |most: u64| in_flight.min(most as f64);
    let written = rows(config.rows) * (row + text::row_bytes(config, ids));
    let fitted = rows(linear::fit_rows(config)) * (row + linear::row_bytes(config));
    let pilot = planted::PILOT_ROWS as f64 * row;
    // Probabilities and labels, for the figures.
    let kept = config.rows.min(CEILING_ROWS) as f64 * (size_of::<f64>() + size_of::<bool>()) as f64;
    (written.max(fitted).max(pilot) + kept) as u64
}

/// Makes chunks of rows on several threads and takes them in order.
fn for_each_chunk<T: Send>(
    threads: usize,
    rows: Range<u64>,
    make: impl Fn(Range<u64>) -> T + Sync,
    take: impl FnMut(T) -> Result<(), Error>,
) -> Result<(), Error> {
    let produce = |send: ordered::Send<'_, Range<u64>>| {
        let mut starts = rows.clone().step_by(CHUNK_ROWS as usize);
        // Nobody takes any more once an error has ended the whole.
        while starts.next().is_some_and(|start| send(start..(start + CHUNK_ROWS).min(rows.end))) {}
        Ok(())
    };
    ordered::run(threads, produce, make, take)
}

/// Running figures of one file.
#[derive(Default)]
struct Tally {
    rows: u64,
    clicks: u64,
    bytes_text: u64,
    probabilities: Vec<f64>,
    labels: Vec<bool>,
}

impl Tally {
    fn add(&mut self, lines: &[u8], block: &Block) {
        self.rows += block.labels.len() as u64;
        self.clicks += block.labels.iter().filter(|&&label| label).count() as u64;
        self.bytes_text += lines.len() as u64;
        if self.labels.len() as u64 + block.labels.len() as u64 <= CEILING_ROWS {
            self.probabilities.extend_from_slice(&block.probabilities);
            self.labels.extend_from_slice(&block.labels);
        }
    }

    fn report(&self, config: &SyntheticConfig, linear: &linear::Best) -> Report {
        Report {
            rows: self.rows,
            bytes_text: self.bytes_text,
            seed: config.seed,
            click_rate: self.clicks as f64 / self.rows.max(1) as f64,
            ceiling_auc: score::auc(&self.probabilities, &self.labels),
            ceiling_normalized_entropy: score::normalized_entropy(
                &self.probabilities,
                &self.labels,
            ),
            ceiling_rows: self.labels.len() as u64,
            linear_auc: linear.auc,
            linear_rows: linear.rows,
            linear_fit_rows: linear.fit_rows,
        }
    }
}
