//! Boosted trees that predict the residuals of measured operations. Features are plain numbers, so
//! this file does not depend on operations.

use schema::random::CounterRng;
use serde::{Deserialize, Serialize};

use crate::bins::Bins;
use crate::boosting::{self, BinnedRows, BoostingParams};
use crate::forest::Forest;

/// The trees are small, because a kind has only some hundred measurements.
const SETTINGS: BoostingParams =
    BoostingParams { rounds: 300, leaves: 16, rate: 0.08, rows: 6, features: 0.4 };
/// Number of forests whose predictions are averaged. Each forest is trained on a different part of
/// the measurements, so the forests' errors differ.
const FORESTS: u64 = 4;
/// Each forest leaves out one of this many measurements.
const WITHOUT_ONE_OF: u64 = 5;
/// Maximum number of bins of a feature, which keeps files small.
const BINS: usize = 32;
const SEED: u64 = 26;

/// Features of a measured operation, and its residual as a logarithm.
pub type ResidualExample = (Vec<f32>, f64);

/// Boosted forests that predict residuals, with the bins of their features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trees {
    #[serde(rename = "ends")]
    bins: Bins,
    #[serde(rename = "trees")]
    forests: Vec<Forest>,
}

impl Trees {
    /// Trains forests on residuals. Each forest leaves out another part of the measurements.
    #[must_use]
    pub fn learn(works: &[&ResidualExample]) -> Self {
        let features = works.first().map_or(0, |work| work.0.len());
        let bins = Bins::from_ends((0..features).map(|at| ends(works, at)).collect());
        let mut placed = vec![0; features];
        let forest = |number| {
            let random = CounterRng::new(SEED, number);
            let mut table = BinnedRows { features, bins: Vec::new(), targets: Vec::new() };
            for (at, (sizes, left)) in (0..).zip(works) {
                if random.below(at, WITHOUT_ONE_OF) > 0 {
                    bins.place(sizes, &mut placed);
                    table.bins.extend_from_slice(&placed);
                    table.targets.push(*left as f32);
                }
            }
            boosting::train_forest(&table, SETTINGS, SEED + number)
        };
        Self { forests: (0..FORESTS).map(forest).collect(), bins }
    }

    /// Checks bins and forests that were read from a file.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let features = self.bins.ends().len();
        self.bins.is_valid()
            && !self.forests.is_empty()
            && self.forests.iter().all(|forest| forest.splits_only_on(features))
    }

    /// Predicts the residual of an operation with these features, as the mean of all forests.
    #[must_use]
    pub fn at(&self, features: &[f32]) -> f64 {
        let mut placed = vec![0; self.bins.ends().len()];
        self.bins.place(features, &mut placed);
        let sum: f64 = self.forests.iter().map(|forest| forest.predict(&placed)).sum();
        sum / self.forests.len().max(1) as f64
    }
}

/// Computes bin ends for a feature, with about the same number of measurements in each bin.
fn ends(works: &[&ResidualExample], feature: usize) -> Vec<f32> {
    let rounded = |value: f32| (1e3 * value).round() / 1e3;
    let mut values: Vec<f32> = works.iter().map(|work| work.0[feature]).collect();
    values.sort_by(f32::total_cmp);
    let mut distinct = values.clone();
    distinct.dedup();
    let between = |a: f32, b: f32| rounded(a + (b - a) / 2.0);
    let mut ends: Vec<f32> = if distinct.len() <= BINS {
        distinct.windows(2).map(|pair| between(pair[0], pair[1])).collect()
    } else {
        (1..BINS).map(|bin| rounded(values[bin * values.len() / BINS])).collect()
    };
    ends.dedup();
    ends
}

#[cfg(test)]
mod tests {
    use super::{ResidualExample, Trees};
    use schema::random::CounterRng;

    fn works(count: u64) -> Vec<ResidualExample> {
        let random = CounterRng::new(3, 0);
        let one = |at: u64| {
            let sizes = [random.unit(2 * at) as f32, random.unit(2 * at + 1) as f32];
            let left = if sizes[0] > 0.5 { 0.3 } else { -0.1 } + 0.2 * f64::from(sizes[1]);
            (sizes.to_vec(), left)
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn trees_fit_a_step_and_a_slope_and_round_trip_as_json() {
        let works = works(400);
        let trees = Trees::learn(&works.iter().collect::<Vec<_>>());
        let text = serde_json::to_string(&trees).unwrap();
        let read: Trees = serde_json::from_str(&text).unwrap();
        assert_eq!(read, trees);
        let off: f64 = works.iter().map(|(sizes, left)| (trees.at(sizes) - left).abs()).sum();
        assert!(off / 400.0 < 0.02, "{off}");
        for (from, to) in
            [("\"features\":[", "\"features\":[200,"), ("\"ends\":[[", "\"ends\":[[9.0,")]
        {
            let damaged: Result<Trees, _> = serde_json::from_str(&text.replacen(from, to, 1));
            assert!(!damaged.is_ok_and(|trees| trees.is_valid()), "{to}");
        }
    }
}
