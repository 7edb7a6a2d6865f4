//! Predicts the time of one kind of operation: a sum over amounts of work, corrected by the
//! residuals of similar measurements.

use serde::{Deserialize, Serialize};

use super::fit;
use super::trees::{ResidualExample, Trees};
use super::units::Units;
use super::work::CpuWork;
use crate::error_interval::quantiles;

/// Minimum number of measurements of a kind for a correction by the nearest measurements.
const WORKS_LEAST: usize = 30;
/// Minimum number of measurements of a kind for a correction by trees.
const TREES_LEAST: usize = 100;
/// Maximum number of measurements that are stored, so that a file stays below 300 KB.
const NEAR_MOST: usize = 700;
/// Mean residual, as a logarithm, below which predictions are not corrected.
const OFF_LEAST: f64 = 1e-3;
/// Largest absolute residual, as a logarithm, that a correction may apply.
const RESIDUAL_MOST: f64 = 0.5;
/// A residual model is used only if it reduces the error to at most this share.
const BETTER: f64 = 0.97;
/// Number of folds of the cross-validation that chooses a residual model.
const PARTS: usize = 5;

/// Predicts the time of one kind of operation on a CPU. The prediction is a sum of amounts times
/// their unit times, corrected by a residual model that cross-validation chose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindModel {
    units: Units,
    #[serde(rename = "left_over")]
    residual: ResidualModel,
    /// Quantiles of `ln(measured ÷ predicted)` between which nine of ten measurements lie.
    interval: (f64, f64),
    works: usize,
    /// Smallest and largest value of each size in the training data.
    domain: Vec<(f32, f32)>,
}

/// The method that corrects the sum of amounts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResidualModel {
    #[default]
    Nothing,
    /// Sizes and residuals of measured operations. A correction averages the residuals of the
    /// nearest ones.
    Near(Vec<(Vec<f32>, f32)>),
    /// Trees whose features are the sizes and the share of the time that each amount takes.
    Trees(Trees),
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
    /// Fits unit times and chooses a residual model by cross-validation. Times are in nanoseconds.
    pub fn learn(works: &[(&CpuWork, f64)]) -> Self {
        let mut model = Self {
            units: Units::fit(works),
            works: works.len(),
            domain: domain(works),
            ..Self::default()
        };
        let left: Vec<f64> = works.iter().map(|(work, ns)| (ns / model.sum(work)).ln()).collect();
        let parts = parts(works);
        let off = |values: &[f64]| values.iter().map(|left| left.abs()).sum::<f64>();
        let mut best = (ResidualModel::Nothing, left.clone());
        let is_off = off(&left) > OFF_LEAST * works.len() as f64;
        if is_off && works.len() >= WORKS_LEAST {
            let near = beside_near(works, &left, &parts);
            if off(&near) < BETTER * off(&best.1) {
                best = (kept(works, &left), near);
            }
        }
        if is_off && works.len() >= TREES_LEAST {
            let known = works.iter().zip(&left);
            let known: Vec<ResidualExample> =
                known.map(|((work, _), left)| (model.features(work), *left)).collect();
            let trees = beside_trees(&known, &parts);
            if off(&trees) < BETTER * off(&best.1) {
                best =
                    (ResidualModel::Trees(Trees::learn(&known.iter().collect::<Vec<_>>())), trees);
            }
        }
        model.interval = quantiles(best.1.into_iter());
        model.residual = best.0;
        model
    }

    /// Predicts the time of an operation. The interval widens with the distance from the training
    /// data.
    pub fn price(&self, work: &CpuWork) -> CpuPrice {
        let left = match &self.residual {
            ResidualModel::Nothing => 0.0,
            ResidualModel::Near(known) => {
                let known = known.iter().map(|(sizes, left)| (sizes.as_slice(), f64::from(*left)));
                fit::nearby_residual(known, &work.sizes)
            }
            ResidualModel::Trees(trees) => trees.at(&self.features(work)),
        };
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
        let are_trees_valid = match &self.residual {
            ResidualModel::Trees(trees) => trees.is_valid(),
            ResidualModel::Nothing | ResidualModel::Near(_) => true,
        };
        self.units.are_valid()
            && are_trees_valid
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

/// Computes the residuals that remain after a correction by the nearest measurements of other
/// folds.
fn beside_near(works: &[(&CpuWork, f64)], left: &[f64], parts: &[usize]) -> Vec<f64> {
    let one = |at: usize| {
        let known = works.iter().zip(left).zip(parts);
        let known = known.filter(|(_, part)| **part != parts[at]);
        let known = known.map(|(((work, _), left), _)| (work.sizes.as_slice(), *left));
        left[at] - bounded(fit::nearby_residual(known, &works[at].0.sizes))
    };
    (0..works.len()).map(one).collect()
}

/// Computes the residuals that remain after a correction by trees trained on the other folds.
fn beside_trees(known: &[ResidualExample], parts: &[usize]) -> Vec<f64> {
    let trees: Vec<Trees> = (0..PARTS)
        .map(|part| {
            let others = known.iter().zip(parts).filter(|(_, of)| **of != part);
            Trees::learn(&others.map(|(known, _)| known).collect::<Vec<_>>())
        })
        .collect();
    let one = |((features, left), part): (&ResidualExample, &usize)| {
        left - bounded(trees[*part].at(features))
    };
    known.iter().zip(parts).map(one).collect()
}

fn bounded(residual: f64) -> f64 {
    residual.clamp(-RESIDUAL_MOST, RESIDUAL_MOST)
}

/// Selects the measurements that are stored for the search of neighbors.
fn kept(works: &[(&CpuWork, f64)], left: &[f64]) -> ResidualModel {
    let every = works.len().div_ceil(NEAR_MOST).max(1);
    let rounded = |value: f32| (1e3 * value).round() / 1e3;
    let one = |((work, _), left): (&(&CpuWork, f64), &f64)| {
        (work.sizes.iter().map(|size| rounded(*size)).collect(), rounded(*left as f32))
    };
    ResidualModel::Near(works.iter().zip(left).step_by(every).map(one).collect())
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
