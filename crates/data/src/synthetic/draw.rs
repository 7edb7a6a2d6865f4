//! Draws the counts and ids of rows. Each random number has a fixed index in the row's own stream.
//! The module `planted` computes labels, and `text` writes lines.

use std::ops::Range;

use schema::IndexDistribution;
use schema::distribution::ReusedRows;
use schema::random::CounterRng;

use super::config::{SyntheticConfig, SyntheticFeature};

/// Numbers of the random streams that are derived from one seed.
const STREAM_ROWS: u64 = 1;
const STREAM_PILOT: u64 = 2;
const STREAM_REUSE: u64 = 4;
/// Number of random numbers reserved per dense column: one each for missing and negative, and two
/// for the normal deviate.
const DENSE_DRAWS: u64 = 4;
/// Share of values of the second column that are -1 or -2, as in Criteo's I2.
const NEGATIVE_SHARE: f64 = 0.1;
const NEGATIVE_COLUMN: usize = 1;

/// A block of generated rows in row-major order, with their true probabilities.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrawnBlock {
    pub first_row: u64,
    /// Labels of the rows, `[rows]`.
    pub labels: Vec<bool>,
    /// True click probabilities, `[rows]`.
    pub probabilities: Vec<f64>,
    /// Values of the dense columns, which are counts, `[rows, dense]`; `None` for missing ones.
    pub dense: Vec<Option<i64>>,
    /// Frequency ranks, bag after bag; 0 is the most frequent id of its feature.
    pub ranks: Vec<u64>,
    /// Bag boundaries, `[rows · features + 1]`; an empty bag is a missing field.
    pub offsets: Vec<usize>,
}

impl DrawnBlock {
    fn with_room(rows: usize, config: &SyntheticConfig) -> Self {
        let bags = rows * config.features.len();
        let mut offsets = Vec::with_capacity(bags + 1);
        offsets.push(0);
        Self {
            first_row: 0,
            labels: Vec::with_capacity(rows),
            probabilities: Vec::with_capacity(rows),
            dense: Vec::with_capacity(rows * config.dense),
            ranks: Vec::with_capacity(bags),
            offsets,
        }
    }

    /// Estimates the bytes of a row with `ids` ids.
    pub(super) fn row_bytes(config: &SyntheticConfig, ids: f64) -> f64 {
        let counts = config.dense * size_of::<Option<i64>>();
        let bags = config.features.len() * size_of::<usize>();
        (size_of::<bool>() + size_of::<f64>() + counts + bags) as f64
            + ids * size_of::<u64>() as f64
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Returns the frequency ranks of bag `row · features + feature`.
    #[must_use]
    pub fn bag(&self, bag: usize) -> &[u64] {
        &self.ranks[self.offsets[bag]..self.offsets[bag + 1]]
    }
}

/// Generates the rows of a range. Labels are drawn from the probabilities that `probability_of_row`
/// computes.
pub(super) fn draw_block(
    config: &SyntheticConfig,
    rows: Range<u64>,
    probability_of_row: impl Fn(&DrawnBlock, usize) -> f64,
) -> DrawnBlock {
    let stream = CounterRng::new(config.seed, STREAM_ROWS);
    let places = DrawPlaces::new(config);
    let length = rows.end.saturating_sub(rows.start) as usize;
    let mut block = DrawnBlock::with_room(length, config);
    block.first_row = rows.start;
    for row in rows {
        let rng = stream.child(row);
        draw_inputs(config, &places, row, rng, &mut block);
        let probability = probability_of_row(&block, block.labels.len());
        block.probabilities.push(probability);
        block.labels.push(rng.unit(places.label) < probability);
    }
    block
}

/// Generates rows without labels from a separate stream, on which the planted model is scaled.
pub(super) fn draw_pilot(config: &SyntheticConfig, rows: u64) -> DrawnBlock {
    let stream = CounterRng::new(config.seed, STREAM_PILOT);
    let places = DrawPlaces::new(config);
    let mut block = DrawnBlock::with_room(rows as usize, config);
    for row in 0..rows {
        draw_inputs(config, &places, row, stream.child(row), &mut block);
    }
    block
}

/// Positions of each column's random numbers in the stream of a row.
struct DrawPlaces {
    features: Vec<FeatureNumbers>,
    label: u64,
}

/// Positions of the random numbers of one feature: one for missing, one for the length, and then
/// one per id.
struct FeatureNumbers {
    first: u64,
    length_min: u64,
    length_spread: u64,
    law: RankSampler,
}

impl DrawPlaces {
    fn new(config: &SyntheticConfig) -> Self {
        let mut next = config.dense as u64 * DENSE_DRAWS;
        let mut features = Vec::with_capacity(config.features.len());
        for (index, feature) in config.features.iter().enumerate() {
            let (min, max) = (u64::from(feature.hotness.min), u64::from(feature.hotness.max));
            let order = CounterRng::new(config.seed, STREAM_REUSE).child(index as u64);
            let law = RankSampler::new(feature, order);
            let spread = max - min + 1;
            features.push(FeatureNumbers {
                first: next,
                length_min: min,
                length_spread: spread,
                law,
            });
            next += 2 + max;
        }
        Self { features, label: next }
    }
}

/// Evaluates [`IndexDistribution::rank_at`] for one table. The power that does not depend on the
/// quantile is computed once, which saves half of the time of a draw.
struct RankSampler {
    distribution: IndexDistribution,
    cardinality: u64,
    /// `(n + 1)^(1 - s) - 1` and `1 / (1 - s)`, for Zipf exponents `s` other than 1.
    power: Option<(f64, f64)>,
    /// Rows of a reuse histogram, and the order of their uses.
    reused: Option<(ReusedRows, CounterRng)>,
}

impl RankSampler {
    fn new(feature: &SyntheticFeature, order: CounterRng) -> Self {
        let SyntheticFeature { distribution, cardinality, .. } = *feature;
        let power = match distribution {
            IndexDistribution::Zipf { exponent } if (exponent - 1.0).abs() >= 1e-9 => {
                let b = 1.0 - exponent;
                Some(((cardinality as f64 + 1.0).powf(b) - 1.0, 1.0 / b))
            }
            _ => None,
        };
        let reused = match distribution {
            IndexDistribution::Reuse(histogram) => Some((histogram.on(cardinality), order)),
            _ => None,
        };
        Self { distribution, cardinality, power, reused }
    }

    /// Returns the rank of use `number` of the feature. With a reuse histogram, the rank depends
    /// only on `number`; otherwise it is at a random quantile.
    #[inline]
    fn rank(&self, number: u64, quantile: impl FnOnce() -> f64) -> u64 {
        match &self.reused {
            Some((rows, order)) => rows.rank(number, *order),
            None => self.rank_at(quantile()),
        }
    }

    #[inline]
    fn rank_at(&self, quantile: f64) -> u64 {
        let Some((span, inverse)) = self.power else {
            return self.distribution.rank_at(quantile, self.cardinality);
        };
        ((1.0 + quantile * span).powf(inverse) as u64).clamp(1, self.cardinality) - 1
    }
}

fn draw_inputs(
    config: &SyntheticConfig,
    places: &DrawPlaces,
    row: u64,
    rng: CounterRng,
    block: &mut DrawnBlock,
) {
    for column in 0..config.dense {
        block.dense.push(draw_count(config, rng, column));
    }
    for place in &places.features {
        if rng.unit(place.first) >= config.missing_share {
            let length = place.length_min + rng.below(place.first + 1, place.length_spread);
            // Each row reserves the uses of its longest bag, so that no two rows share a use.
            let first_use = row.wrapping_mul(place.length_min + place.length_spread - 1);
            block.ranks.extend((0..length).map(|id| {
                let quantile = || rng.unit(place.first + 2 + id);
                place.law.rank(first_use.wrapping_add(id), quantile)
            }));
        }
        block.offsets.push(block.ranks.len());
    }
}

/// Draws a log-normal count: `ln(1 + x)` is normal before rounding and clamping at 0.
fn draw_count(config: &SyntheticConfig, rng: CounterRng, column: usize) -> Option<i64> {
    let place = column as u64 * DENSE_DRAWS;
    if rng.unit(place) < config.missing_share {
        return None;
    }
    let negative = rng.unit(place + 1);
    if column == NEGATIVE_COLUMN && negative < NEGATIVE_SHARE {
        return Some(if negative < 0.2 * NEGATIVE_SHARE { -2 } else { -1 });
    }
    let (location, scale) = log_count(column);
    let log = location + scale * rng.normal(place / 2 + 1);
    Some((log.min(20.0).exp() - 1.0).max(0.0) as i64)
}

/// Returns mean and standard deviation of `ln(1 + x)` of a dense column; columns range from a
/// handful to many thousands.
pub(super) fn log_count(column: usize) -> (f64, f64) {
    const LOCATIONS: [f64; 7] = [1.5, 2.0, 3.0, 2.5, 6.0, 4.0, 1.8];
    (LOCATIONS[column % LOCATIONS.len()], 1.0 + 0.1 * (column % 5) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::config::Hotness;
    use super::*;

    #[test]
    fn precomputed_ranks_match_the_distribution() {
        for exponent in [0.5, 1.0, 1.2, 2.0] {
            let distribution = IndexDistribution::Zipf { exponent };
            for cardinality in [1, 2, 1_000, 1 << 40] {
                let (name, hotness) = ("x".to_owned(), Hotness::ONE);
                let feature = SyntheticFeature { name, cardinality, distribution, hotness };
                let law = RankSampler::new(&feature, CounterRng::new(1, 1));
                for step in 0..1_000 {
                    let quantile = f64::from(step) / 1e3;
                    assert_eq!(law.rank_at(quantile), distribution.rank_at(quantile, cardinality));
                }
            }
        }
    }
}
