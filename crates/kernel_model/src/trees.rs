//! Boosted trees that predict a number from plain features, with the bins of these features.

use schema::random::CounterRng;
use serde::{Deserialize, Serialize};

use super::bins::Bins;
use super::boosting::{self, BoostingParams};
use super::forest::Forest;

/// Each of several forests leaves out one of this many examples.
const WITHOUT_ONE_OF: u64 = 5;
const SEED: u64 = 26;

/// Hyperparameters of boosted trees.
#[derive(Clone, Copy, Debug)]
pub struct TreesParams {
    pub boosting: BoostingParams,
    /// Maximum number of bins of a feature.
    pub bins: usize,
    /// Number of forests whose predictions are averaged. Each of several forests is trained on a
    /// different part of the examples, so their errors differ.
    pub forests: u64,
}

/// Features of an example, and the number that trees are trained to predict.
pub type TreeExample = (Vec<f32>, f32);

/// Boosted forests, with the bins of their features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trees {
    #[serde(rename = "ends")]
    bins: Bins,
    #[serde(rename = "trees")]
    forests: Vec<Forest>,
}

impl Trees {
    /// Trains forests on examples.
    pub fn learn(examples: &[&TreeExample], params: TreesParams) -> Self {
        let rows: Vec<&[f32]> = examples.iter().map(|example| example.0.as_slice()).collect();
        let bins = Bins::from_rows(&rows, params.bins).rounded();
        let forest = |number| {
            let random = CounterRng::new(SEED, number);
            let is_kept = |at: u64| params.forests == 1 || random.below(at, WITHOUT_ONE_OF) > 0;
            let kept = (0..).zip(examples).filter(|(at, _)| is_kept(*at));
            let table = bins.training_rows(kept.map(|(_, example)| (&example.0, example.1)));
            boosting::train_forest(&table, params.boosting, SEED + number)
        };
        Self { forests: (0..params.forests).map(forest).collect(), bins }
    }

    /// Checks bins and forests that were read from a file.
    pub fn is_valid(&self) -> bool {
        self.bins.is_valid()
            && !self.forests.is_empty()
            && self.forests.iter().all(|forest| forest.fits(&self.bins))
    }

    /// Predicts the number for these features, as the mean of all forests.
    pub fn predict(&self, features: &[f32]) -> f64 {
        let sum: f64 = self.forests.iter().map(|forest| forest.predict(&self.bins, features)).sum();
        sum / self.forests.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{BoostingParams, TreeExample, Trees, TreesParams};
    use schema::random::CounterRng;

    const PARAMS: TreesParams = TreesParams {
        boosting: BoostingParams { rounds: 300, leaves: 16, rate: 0.08, rows: 6, features: 0.4 },
        bins: 32,
        forests: 4,
    };

    fn works(count: u64) -> Vec<TreeExample> {
        let random = CounterRng::new(3, 0);
        let one = |at: u64| {
            let sizes = [random.unit(2 * at) as f32, random.unit(2 * at + 1) as f32];
            let left = if sizes[0] > 0.5 { 0.3 } else { -0.1 } + 0.2 * sizes[1];
            (sizes.to_vec(), left)
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn trees_fit_a_step_and_a_slope_and_round_trip_as_json() {
        let works = works(400);
        let trees = Trees::learn(&works.iter().collect::<Vec<_>>(), PARAMS);
        let text = serde_json::to_string(&trees).unwrap();
        let read: Trees = serde_json::from_str(&text).unwrap();
        assert_eq!(read, trees);
        let off: f64 =
            works.iter().map(|(sizes, left)| (trees.predict(sizes) - f64::from(*left)).abs()).sum();
        assert!(off / 400.0 < 0.02, "{off}");
        for (from, to) in
            [("\"features\":[", "\"features\":[200,"), ("\"ends\":[[", "\"ends\":[[9.0,")]
        {
            let damaged: Result<Trees, _> = serde_json::from_str(&text.replacen(from, to, 1));
            assert!(!damaged.is_ok_and(|trees| trees.is_valid()), "{to}");
        }
    }
}
