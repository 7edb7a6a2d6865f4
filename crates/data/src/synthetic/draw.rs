//! One row's counts and ids, each at a fixed place of the row's own random stream. Labels come from
//! the planted model; how rows are written is `text`'s.

use std::ops::Range;

use schema::random::CounterRng;

use super::planted::Planted;
use super::{SyntheticConfig, SyntheticFeature};

/// Streams of one seed.
const STREAM_ROWS: u64 = 1;
const STREAM_PILOT: u64 = 2;
/// Random numbers reserved per dense column: missing, negative, and two of the normal deviate.
const DENSE_DRAWS: u64 = 4;
/// Share of values of the second column that are -1 or -2, as in Criteo's I2.
const NEGATIVE_SHARE: f64 = 0.1;
const NEGATIVE_COLUMN: usize = 1;

/// Rows as they were drawn, row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Index of the first row.
    pub first_row: u64,
    /// Labels, `[rows]`.
    pub labels: Vec<bool>,
    /// The true click probabilities, `[rows]`.
    pub probabilities: Vec<f64>,
    /// Counts, `[rows, dense]`; `None` is missing.
    pub dense: Vec<Option<i64>>,
    /// Frequency ranks (0 is the most frequent id of its feature), bag after bag.
    pub ranks: Vec<u64>,
    /// Bag boundaries, `[rows · features + 1]`; an empty bag is a missing field.
    pub offsets: Vec<usize>,
}

impl Block {
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

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// The frequency ranks of bag `row · features + feature`.
    #[must_use]
    pub fn bag(&self, bag: usize) -> &[u64] {
        &self.ranks[self.offsets[bag]..self.offsets[bag + 1]]
    }
}

/// The rows of a range, with probabilities and labels.
pub(super) fn block(config: &SyntheticConfig, planted: &Planted, rows: Range<u64>) -> Block {
    let stream = CounterRng::new(config.seed, STREAM_ROWS);
    let places = Places::new(config);
    let length = rows.end.saturating_sub(rows.start) as usize;
    let mut block = Block::with_room(length, config);
    block.first_row = rows.start;
    for row in rows {
        let rng = stream.child(row);
        inputs(config, &places, rng, &mut block);
        let probability = planted.probability(&block, block.labels.len());
        block.probabilities.push(probability);
        block.labels.push(rng.unit(places.label) < probability);
    }
    block
}

/// Rows of a stream of their own without labels, on which the planted model is scaled.
pub(super) fn pilot(config: &SyntheticConfig, rows: u64) -> Block {
    let stream = CounterRng::new(config.seed, STREAM_PILOT);
    let places = Places::new(config);
    let mut block = Block::with_room(rows as usize, config);
    for row in 0..rows {
        inputs(config, &places, stream.child(row), &mut block);
    }
    block
}

/// Where each column's random numbers lie in a row's stream.
struct Places {
    /// First number of each feature: missing, length, then one per id.
    features: Vec<u64>,
    label: u64,
}

impl Places {
    fn new(config: &SyntheticConfig) -> Self {
        let mut next = config.dense as u64 * DENSE_DRAWS;
        let mut features = Vec::with_capacity(config.features.len());
        for feature in &config.features {
            features.push(next);
            next += 2 + u64::from(feature.hotness.max);
        }
        Self { features, label: next }
    }
}

fn inputs(config: &SyntheticConfig, places: &Places, rng: CounterRng, block: &mut Block) {
    for column in 0..config.dense {
        block.dense.push(count(config, rng, column));
    }
    for (feature, &place) in config.features.iter().zip(&places.features) {
        if rng.unit(place) >= config.missing_share {
            bag(feature, rng, place + 1, &mut block.ranks);
        }
        block.offsets.push(block.ranks.len());
    }
}

/// A log-normal count: `ln(1 + x)` is normal before rounding and cutting at 0.
fn count(config: &SyntheticConfig, rng: CounterRng, column: usize) -> Option<i64> {
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

/// Mean and deviation of `ln(1 + x)` of a dense column: from a handful to many thousands.
pub(super) fn log_count(column: usize) -> (f64, f64) {
    const LOCATIONS: [f64; 7] = [1.5, 2.0, 3.0, 2.5, 6.0, 4.0, 1.8];
    (LOCATIONS[column % LOCATIONS.len()], 1.0 + 0.1 * (column % 5) as f64)
}

fn bag(feature: &SyntheticFeature, rng: CounterRng, place: u64, ranks: &mut Vec<u64>) {
    let spread = u64::from(feature.hotness.max - feature.hotness.min) + 1;
    let length = u64::from(feature.hotness.min) + rng.below(place, spread);
    for id in 0..length {
        let quantile = rng.unit(place + 1 + id);
        ranks.push(feature.distribution.rank_at(quantile, feature.cardinality));
    }
}
