//! Computes errors of predictions by comparison with recordings.

pub mod iterations;
pub mod leave_out;
pub mod replay;

use analyze::interval;
use serde::Serialize;

use crate::program::Program;
use crate::recording::Step;
use crate::simulate::Simulation;

/// Comparison of the predicted and the recorded step of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayRow {
    pub rank: u32,
    /// Whether samples of this rank were used to derive the constants.
    pub is_calibrated: bool,
    pub measured_ns: i64,
    pub step_ns: i64,
    pub error_pct: f64,
    /// Recorded idle share of the time between the first and the last device work.
    pub measured_idle_pct: f64,
    pub idle_pct: f64,
    /// Predicted time in which any device work runs.
    pub busy_ns: i64,
    /// Number of device works that the step launches.
    pub works: usize,
    /// Percentage of the works whose predicted start lies within 50 µs of the recorded start.
    pub starts_near_pct: f64,
    /// Largest absolute error of the end time of a collective.
    pub collective_end_worst_ns: i64,
}

/// Largest difference between a predicted and a recorded start that counts as near.
pub const NEAR_NS: i64 = 50_000;

/// Compares a simulation with the recording of its program, rank by rank.
pub fn ranks(step: &Step, simulation: &Simulation, calibrated: &[usize]) -> Vec<ReplayRow> {
    let row = |at: usize| {
        let (rank, recorded) = (&step.program.ranks[at], &step.recorded.ranks[at]);
        let begun = recorded.start_ns;
        let measured: Vec<(i64, i64)> =
            recorded.works.iter().map(|(from, to)| (from + begun, to + begun)).collect();
        let predicted = works(&step.program, simulation, at);
        let both = || rank.works.iter().zip(measured.iter().zip(&predicted));
        let launched = both().filter(|(work, _)| work.is_launched).count();
        let is_near = |(measured, predicted): (&(i64, i64), &(i64, i64))| {
            (measured.0 - predicted.0).abs() <= NEAR_NS
        };
        let near = both().filter(|(work, times)| work.is_launched && is_near(*times)).count();
        let ends = both().filter(|(work, _)| work.collective.is_some());
        let worst = ends.map(|(_, (measured, predicted))| (measured.1 - predicted.1).abs()).max();
        let (busy_ns, idle_pct) = idle(predicted.clone());
        let step_ns = simulation.step_ns(at);
        ReplayRow {
            rank: rank.rank,
            is_calibrated: calibrated.contains(&at),
            measured_ns: recorded.step_ns,
            step_ns,
            error_pct: error_pct(step_ns, recorded.step_ns),
            measured_idle_pct: idle(measured.clone()).1,
            idle_pct,
            busy_ns,
            works: launched,
            starts_near_pct: 100.0 * near as f64 / launched.max(1) as f64,
            collective_end_worst_ns: worst.unwrap_or(0),
        }
    };
    (0..step.program.ranks.len()).map(row).collect()
}

/// Returns the error of a predicted time in percent of the measured time.
pub fn error_pct(predicted: i64, measured: i64) -> f64 {
    100.0 * (predicted - measured) as f64 / measured.max(1) as f64
}

/// Returns the geometric mean of the absolute errors. Errors below 0.01 % count as 0.01 %, because
/// the logarithm of 0 is infinite.
pub fn geomean_pct(errors: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0u32);
    for error in errors {
        sum += error.abs().max(0.01).ln();
        count += 1;
    }
    if count == 0 { 0.0 } else { (sum / f64::from(count)).exp() }
}

/// Returns the start and end of each work of a rank in a simulation.
pub(crate) fn works(program: &Program, simulation: &Simulation, rank: usize) -> Vec<(i64, i64)> {
    let places = 0..program.ranks[rank].works.len() as u32;
    places.map(|work| simulation.work_ns(rank, work)).collect()
}

/// Returns the busy time, and the idle share of the time from the first work to the last in
/// percent.
pub(crate) fn idle(mut works: Vec<(i64, i64)>) -> (i64, f64) {
    works.sort_unstable();
    let from = works.iter().map(|work| work.0).min().unwrap_or_default();
    let to = works.iter().map(|work| work.1).max().unwrap_or_default();
    let busy = interval::length(&interval::union(works));
    (busy, 100.0 - 100.0 * busy as f64 / (to - from).max(1) as f64)
}
