//! Predicts the later steps of a recording from its first steps.

use serde::Serialize;

use super::error_pct;
use crate::Error;
use crate::calibration::price::Prices;
use crate::calibration::{Calibration, collect};
use crate::recording::{Job, Span, Step};
use crate::simulate;

/// Prediction of the later steps of a rank from its first steps, compared with the recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IterationRow {
    pub rank: u32,
    /// Number of steps used for the calibration.
    pub calibrated_steps: usize,
    /// Number of steps that were predicted.
    pub steps: usize,
    /// Mean recorded time of the predicted steps.
    pub measured_ns: i64,
    /// Mean predicted time over the programs of the calibration steps.
    pub step_ns: i64,
    pub error_pct: f64,
    /// Error of the baseline, which predicts the mean time of the calibration steps.
    pub baseline_error_pct: f64,
    /// Coefficient of variation of the recorded times of the predicted steps.
    pub noise_pct: f64,
}

/// Calibrates on the first half of the steps, rounded up, and predicts the remaining steps.
///
/// # Errors
/// [`Error::TooFewSteps`] if there are fewer than two steps, [`Error::Cycle`], and the errors of
/// [`Job::step`].
pub fn evaluate_later_steps(
    job: &Job<'_>,
    spans: &[Vec<Span>],
) -> Result<Vec<IterationRow>, Error> {
    let count = spans.iter().map(Vec::len).min().unwrap_or_default();
    if count < 2 {
        return Err(Error::TooFewSteps { rank: 0, expected: 2, got: count });
    }
    // The first half of the steps calibrates, and the later half is predicted.
    let first = count.div_ceil(2);
    let mut calibration = Calibration::default();
    let mut steps = Vec::new();
    for number in 0..first {
        let spans: Vec<Span> = spans.iter().map(|spans| spans[number]).collect();
        let step = job.step(&spans)?;
        let all: Vec<usize> = (0..step.program.ranks.len()).collect();
        collect::add(&mut calibration, &step, &all);
        steps.push(step);
    }
    let prices = Prices::new(&calibration);
    let ranks = steps.first().map_or(0, |step| step.program.ranks.len());
    let mut predicted = vec![0; ranks];
    for step in &steps {
        let costs = prices.price(&step.program, &step.recorded.setting(&step.program));
        let simulation = simulate::run(&step.program, &costs)?;
        predicted.iter_mut().enumerate().for_each(|(at, sum)| *sum += simulation.step_ns(at));
    }
    let row = |at: usize| {
        let lengths: Vec<i64> = spans[at].iter().map(|span| span.end - span.start).collect();
        let (before, after) = lengths[..count].split_at(first);
        let (measured_ns, step_ns) = (mean(after), predicted[at] / first as i64);
        let square: f64 = after.iter().map(|ns| ((ns - measured_ns) as f64).powi(2)).sum();
        let deviation = (square / after.len() as f64).sqrt();
        IterationRow {
            rank: rank_of(&steps, at),
            calibrated_steps: first,
            steps: after.len(),
            measured_ns,
            step_ns,
            error_pct: error_pct(step_ns, measured_ns),
            baseline_error_pct: error_pct(mean(before), measured_ns),
            noise_pct: 100.0 * deviation / measured_ns.max(1) as f64,
        }
    };
    Ok((0..ranks).map(row).collect())
}

fn rank_of(steps: &[Step], at: usize) -> u32 {
    steps.first().map_or(0, |step| step.program.ranks[at].rank)
}

fn mean(values: &[i64]) -> i64 {
    values.iter().sum::<i64>() / values.len().max(1) as i64
}
