//! What one kind of operation takes: a sum of amounts, and what works of similar size leave over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::fit;
use super::trees::{Left, Trees};
use super::work::CpuWork;
use crate::kernel::interval::quantiles;

/// Fewest works of a kind that others can say something of.
const WORKS_LEAST: usize = 30;
/// Fewest to grow trees on.
const TREES_LEAST: usize = 100;
/// Most works of a kind that are kept: a file stays below 300 KB.
const NEAR_MOST: usize = 700;
/// Bound of residuals, in logarithms.
const LEFT_OVER_MOST: f64 = 0.5;
/// Residuals are used where they leave this part of the errors without them.
const BETTER: f64 = 0.97;
/// Trees are judged by works that they were not grown on, so many parts one after the other.
const FOLDS: usize = 5;

/// What a kind of operation takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindModel {
    /// ns of a unit of each amount; those not named take nothing.
    units: BTreeMap<String, f64>,
    left_over: LeftOver,
    /// The least and the most that works took, of what is predicted, in logarithms: nine of ten.
    interval: (f64, f64),
    /// Works learnt from.
    works: usize,
    /// Least and most of each size.
    domain: Vec<(f32, f32)>,
}

/// What corrects a sum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LeftOver {
    /// Nothing is known of others.
    #[default]
    Nothing,
    /// Sizes of works, and what each left over.
    Near(Vec<(Vec<f32>, f32)>),
    /// Trees over sizes and shares of amounts.
    Trees(Trees),
}

/// A priced operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuPrice {
    /// The estimate.
    pub mean_ns: f64,
    /// Nine of ten lie above this,
    pub low_ns: f64,
    /// and below this.
    pub high_ns: f64,
    /// Whether every size lies within the measured ones.
    pub is_inside: bool,
}

impl KindModel {
    /// Learns from works and their times, ns.
    pub fn learn(works: &[(&CpuWork, f64)]) -> Self {
        let units = fit::units(works);
        let names = works.first().map(|(work, _)| &work.amounts);
        let named = names.into_iter().flatten().zip(&units).filter(|(_, unit)| **unit > 0.0);
        let mut model = Self {
            units: named.map(|((name, _), unit)| ((*name).to_owned(), *unit)).collect(),
            works: works.len(),
            domain: domain(works),
            ..Self::default()
        };
        let left: Vec<f64> = works.iter().map(|(work, ns)| (ns / model.sum(work)).ln()).collect();
        let off = |values: &[f64]| values.iter().map(|left| left.abs()).sum::<f64>();
        let mut best = (LeftOver::Nothing, left.clone());
        if works.len() >= WORKS_LEAST {
            let near = without_each(works, &left);
            if off(&near) < BETTER * off(&best.1) {
                best = (kept(works, &left), near);
            }
        }
        if works.len() >= TREES_LEAST {
            let known = works.iter().zip(&left);
            let known: Vec<Left> =
                known.map(|((work, _), left)| (model.features(work), *left)).collect();
            let trees = without_folds(works, &known);
            if off(&trees) < BETTER * off(&best.1) {
                best = (LeftOver::Trees(Trees::learn(&known.iter().collect::<Vec<_>>())), trees);
            }
        }
        model.interval = quantiles(best.1.into_iter());
        model.left_over = best.0;
        model
    }

    /// What a work takes.
    pub fn price(&self, work: &CpuWork) -> CpuPrice {
        let left = match &self.left_over {
            LeftOver::Nothing => 0.0,
            LeftOver::Near(known) => {
                let known = known.iter().map(|(sizes, left)| (sizes.as_slice(), f64::from(*left)));
                fit::left_over(known, &work.sizes)
            }
            LeftOver::Trees(trees) => trees.at(&self.features(work)),
        };
        let mean_ns = self.sum(work) * left.clamp(-LEFT_OVER_MOST, LEFT_OVER_MOST).exp();
        let outside = self
            .domain
            .iter()
            .zip(&work.sizes)
            .map(|((least, most), size)| f64::from((least - size).max(size - most).max(0.0)));
        // A quarter wider for each factor of e beyond what was measured.
        let wider = 1.0 + 0.25 * outside.clone().sum::<f64>();
        let (low, high) = self.interval;
        CpuPrice {
            mean_ns,
            low_ns: mean_ns * (wider * low).exp().min(1.0),
            high_ns: mean_ns * (wider * high).exp().max(1.0),
            is_inside: outside.sum::<f64>() <= 1e-3,
        }
    }

    /// Whether every number is one that [`KindModel::learn`] gives.
    pub fn is_whole(&self) -> bool {
        self.units.values().all(|unit| unit.is_finite() && *unit >= 0.0)
            && [self.interval.0, self.interval.1].iter().all(|number| number.is_finite())
    }

    /// Without what is left over.
    fn sum(&self, work: &CpuWork) -> f64 {
        self.times(work).sum::<f64>().max(1.0)
    }

    fn times(&self, work: &CpuWork) -> impl Iterator<Item = f64> {
        let time =
            |(name, amount): &(&str, f64)| self.units.get(*name).copied().unwrap_or(0.0) * amount;
        work.amounts.iter().map(time)
    }

    /// Sizes, and the share of the sum that each amount has.
    fn features(&self, work: &CpuWork) -> Vec<f32> {
        let sum = self.sum(work);
        let shares = self.times(work).map(|time| (time / sum) as f32);
        work.sizes.iter().copied().chain(shares).collect()
    }
}

/// What each work has left over beyond what the nearest others say.
fn without_each(works: &[(&CpuWork, f64)], left: &[f64]) -> Vec<f64> {
    let one = |at: usize| {
        let known = works.iter().zip(left).enumerate().filter(move |(other, _)| *other != at);
        let known = known.map(|(_, ((work, _), left))| (work.sizes.as_slice(), *left));
        left[at] - fit::left_over(known, &works[at].0.sizes).clamp(-LEFT_OVER_MOST, LEFT_OVER_MOST)
    };
    (0..works.len()).map(one).collect()
}

/// What each work has left over beyond what trees say that were grown without its part.
fn without_folds(works: &[(&CpuWork, f64)], known: &[Left]) -> Vec<f64> {
    // Works of one size are in one part.
    let fold = |at: usize| {
        let bits = works[at].0.sizes.iter().map(|size| u64::from(size.to_bits()));
        bits.fold(0, |hash, bits| schema::random::mix(hash ^ bits)) as usize % FOLDS
    };
    let folds: Vec<usize> = (0..works.len()).map(fold).collect();
    let trees: Vec<Trees> = (0..FOLDS)
        .map(|fold| {
            let others = known.iter().zip(&folds).filter(|(_, of)| **of != fold);
            Trees::learn(&others.map(|(known, _)| known).collect::<Vec<_>>())
        })
        .collect();
    let one = |((features, left), fold): (&Left, &usize)| {
        left - trees[*fold].at(features).clamp(-LEFT_OVER_MOST, LEFT_OVER_MOST)
    };
    known.iter().zip(&folds).map(one).collect()
}

/// Works that others are compared with.
fn kept(works: &[(&CpuWork, f64)], left: &[f64]) -> LeftOver {
    let every = works.len().div_ceil(NEAR_MOST).max(1);
    let rounded = |value: f32| (1e3 * value).round() / 1e3;
    let one = |((work, _), left): (&(&CpuWork, f64), &f64)| {
        (work.sizes.iter().map(|size| rounded(*size)).collect(), rounded(*left as f32))
    };
    LeftOver::Near(works.iter().zip(left).step_by(every).map(one).collect())
}

fn domain(works: &[(&CpuWork, f64)]) -> Vec<(f32, f32)> {
    let count = works.first().map_or(0, |(work, _)| work.sizes.len());
    let of = |at: usize| {
        let sizes = works.iter().map(|(work, _)| work.sizes[at]);
        sizes.fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), size| {
            (least.min(size), most.max(size))
        })
    };
    (0..count).map(of).collect()
}
