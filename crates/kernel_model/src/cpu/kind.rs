//! Predicts the time of one kind of operation: a sum over amounts of work, corrected by trees.

use serde::{Deserialize, Serialize};

use super::units::Units;
use super::work::CpuWork;
use crate::boosting::BoostingParams;
use crate::error_interval::quantiles;
use crate::trees::{TreeExample, Trees, TreesParams};

/// Minimum number of measurements of a kind for a correction by trees.
const TREES_LEAST: usize = 30;
/// The trees are small, because a kind has only some hundred measurements.
const PARAMS: TreesParams = TreesParams {
    boosting: BoostingParams { rounds: 300, leaves: 16, rate: 0.08, rows: 6, features: 0.4 },
    bins: 32,
    forests: 4,
};
/// Mean residual, as a logarithm, below which predictions are not corrected.
const OFF_LEAST: f64 = 1e-3;
/// Largest absolute residual, as a logarithm, that a correction may apply.
const RESIDUAL_MOST: f64 = 0.5;
/// Trees are used only if they reduce the error to at most this share.
const BETTER: f64 = 0.97;
/// Number of folds of the cross-validation that decides whether trees are used.
const PARTS: usize = 5;

/// Predicts the time of one kind of operation on a CPU. The prediction is a sum of amounts times
/// their unit times, corrected by trees if cross-validation shows that they reduce the error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindModel {
    units: Units,
    /// Predicts the residual of the sum of amounts. Features are the sizes and the share of the
    /// time that each amount takes.
    trees: Option<Trees>,
    /// Quantiles of `ln(measured ÷ predicted)` between which nine of ten measurements lie.
    interval: (f64, f64),
    works: usize,
    /// Smallest and largest value of each size in the training data.
    domain: Vec<(f32, f32)>,
}

/// Predicted time of one operation. Nine of ten measurements lie within its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuPrice {
    pub mean_ns: f64,
    pub low_ns: f64,
    pub high_ns: f64,
    /// Whether every size lies within the range of the training data.
    pub is_inside: bool,
}

impl KindModel {
    /// Fits unit times, and trees if cross-validation shows a smaller error. Times are in
    /// nanoseconds.
    pub fn learn(works: &[(&CpuWork, f64)]) -> Self {
        let mut model = Self {
            units: Units::fit(works),
            works: works.len(),
            domain: domain(works),
            ..Self::default()
        };
        let example = |(work, ns): &(&CpuWork, f64)| {
            (model.features(work), (ns / model.sum(work)).ln() as f32)
        };
        let examples: Vec<TreeExample> = works.iter().map(example).collect();
        let mut left: Vec<f64> = examples.iter().map(|example| f64::from(example.1)).collect();
        let off = |values: &[f64]| values.iter().map(|left| left.abs()).sum::<f64>();
        if works.len() >= TREES_LEAST && off(&left) > OFF_LEAST * works.len() as f64 {
            let remaining = cross_validate(&examples, &parts(works));
            if off(&remaining) < BETTER * off(&left) {
                model.trees = Some(Trees::learn(&examples.iter().collect::<Vec<_>>(), PARAMS));
                left = remaining;
            }
        }
        model.interval = quantiles(left.into_iter());
        model
    }

    /// Predicts the time of an operation. The interval widens with the distance from the training
    /// data.
    pub fn price(&self, work: &CpuWork) -> CpuPrice {
        let left = self.trees.as_ref().map_or(0.0, |trees| trees.predict(&self.features(work)));
        let mean_ns = self.sum(work) * bounded(left).exp();
        let outside = self
            .domain
            .iter()
            .zip(&work.sizes)
            .map(|((least, most), size)| f64::from((least - size).max(size - most).max(0.0)));
        // The interval is a quarter wider for each factor of e by which sizes exceed the training
        // data.
        let wider = 1.0 + 0.25 * outside.clone().sum::<f64>();
        let (low, high) = self.interval;
        CpuPrice {
            mean_ns,
            low_ns: mean_ns * (wider * low).exp().min(1.0),
            high_ns: mean_ns * (wider * high).exp().max(1.0),
            is_inside: outside.sum::<f64>() <= 1e-3,
        }
    }

    /// Checks that all numbers are finite and in the range that training produces.
    pub fn is_valid(&self) -> bool {
        self.units.are_valid()
            && self.trees.as_ref().is_none_or(Trees::is_valid)
            && [self.interval.0, self.interval.1].iter().all(|number| number.is_finite())
    }

    /// Returns the time without the residual correction, in nanoseconds.
    fn sum(&self, work: &CpuWork) -> f64 {
        self.units.times(work).sum::<f64>().max(1.0)
    }

    /// Returns the sizes of an operation, followed by the share of the time that each amount takes.
    fn features(&self, work: &CpuWork) -> Vec<f32> {
        let sum = self.sum(work);
        let shares = self.units.times(work).map(|time| (time / sum) as f32);
        work.sizes.iter().copied().chain(shares).collect()
    }
}

/// Assigns each measurement to a fold by a hash of its sizes.
fn parts(works: &[(&CpuWork, f64)]) -> Vec<usize> {
    let part = |work: &CpuWork| {
        let bits = work.sizes.iter().map(|size| u64::from(size.to_bits()));
        bits.fold(0, |hash, bits| schema::random::mix(hash ^ bits)) as usize % PARTS
    };
    works.iter().map(|(work, _)| part(work)).collect()
}

/// Computes the residuals that remain after a correction by trees trained on the other folds.
fn cross_validate(examples: &[TreeExample], parts: &[usize]) -> Vec<f64> {
    let trees: Vec<Trees> = (0..PARTS)
        .map(|part| {
            let others = examples.iter().zip(parts).filter(|(_, of)| **of != part);
            Trees::learn(&others.map(|(example, _)| example).collect::<Vec<_>>(), PARAMS)
        })
        .collect();
    let one = |((features, left), part): (&TreeExample, &usize)| {
        f64::from(*left) - bounded(trees[*part].predict(features))
    };
    examples.iter().zip(parts).map(one).collect()
}

fn bounded(residual: f64) -> f64 {
    residual.clamp(-RESIDUAL_MOST, RESIDUAL_MOST)
}

fn domain(works: &[(&CpuWork, f64)]) -> Vec<(f32, f32)> {
    let count = works.first().map_or(0, |(work, _)| work.sizes.len());
    let range = |at: usize| {
        let sizes = works.iter().map(|(work, _)| work.sizes[at]);
        sizes.fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), size| {
            (least.min(size), most.max(size))
        })
    };
    (0..count).map(range).collect()
}
