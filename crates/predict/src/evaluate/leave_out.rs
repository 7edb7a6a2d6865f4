//! Predicts the step of each rank from the samples of the other ranks.

use serde::Serialize;

use super::error_pct;
use crate::Error;
use crate::calibration::price::Prices;
use crate::calibration::{Calibration, collect, constants};
use crate::cost::{Constants, Costs, replay};
use crate::recording::Step;
use crate::simulate;

/// Prediction of the step of a rank whose own samples were left out of the calibration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOutRankRow {
    pub rank: u32,
    pub measured_ns: i64,
    /// Predicted step time of the left-out rank. All ranks start as recorded, and the other ranks
    /// keep their recorded segments.
    pub step_ns: i64,
    pub error_pct: f64,
    /// Error if the other ranks are priced from the calibration too. Pricing evens out their
    /// differences and thereby hides that the slowest rank determines the step.
    pub all_priced_error_pct: f64,
    /// Error of the baseline, which predicts that the rank ends at the mean end of the other ranks.
    pub baseline_error_pct: f64,
    /// Step time simulated from the rank's own recorded segments and kernels if all ranks start
    /// together.
    pub together_own_ns: i64,
    /// Step time simulated from the samples of the other ranks if all ranks start together.
    pub together_ns: i64,
    pub together_error_pct: f64,
    /// Error if all ranks start together and all are priced from the calibration.
    pub together_all_priced_error_pct: f64,
}

/// Measures how well the step of an unrecorded rank is predicted. For each rank in turn, the
/// function calibrates on all other ranks, predicts the step of the left-out rank, and compares it
/// with the recording.
///
/// # Errors
/// [`Error::TooFewRanks`] for a job of one rank, and [`Error::Cycle`] from the simulation.
pub fn evaluate_left_out_ranks(step: &Step) -> Result<Vec<LeftOutRankRow>, Error> {
    evaluate_each_rank(step, row)
}

/// Calls `evaluate_rank` for each rank of a step that has at least two ranks.
///
/// # Errors
/// [`Error::TooFewRanks`] for a job of one rank, and the errors of `evaluate_rank`.
pub fn evaluate_each_rank<R>(
    step: &Step,
    evaluate_rank: impl Fn(&Step, usize) -> Result<R, Error>,
) -> Result<Vec<R>, Error> {
    let count = step.program.ranks.len();
    if count < 2 {
        return Err(Error::TooFewRanks { expected: 2, got: count });
    }
    (0..count).map(|rank| evaluate_rank(step, rank)).collect()
}

/// Calibrates on all ranks of a step except `rank`.
///
/// # Errors
/// [`Error::Cycle`] if the actions of the program wait for each other in a cycle.
pub fn calibrate_without_rank(step: &Step, rank: usize) -> Result<(Calibration, Constants), Error> {
    let others = other_ranks(step, rank);
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, step, &others);
    let mut constants = constants::derive_constants(&calibration);
    super::replay::fit_transfers(step, &others, &mut constants)?;
    Ok((calibration, constants))
}

fn other_ranks(step: &Step, rank: usize) -> Vec<usize> {
    (0..step.program.ranks.len()).filter(|other| *other != rank).collect()
}

fn row(step: &Step, rank: usize) -> Result<LeftOutRankRow, Error> {
    let (calibration, constants) = calibrate_without_rank(step, rank)?;
    let setting = step.recorded.setting(&step.program);
    let run = |costs: &Costs| Ok(simulate::run(&step.program, costs)?.step_ns(rank));
    let mut all = Prices::new(&calibration).price(&step.program, &setting);
    all.constants = constants.clone();
    let own = replay(&step.program, &step.recorded, &constants);
    // In `left_out`, only the left-out rank is priced, and the other ranks keep their recorded
    // times.
    let mut left_out = own.clone();
    left_out.ranks[rank] = all.ranks[rank].clone();
    let step_ns = run(&left_out)?;
    let together_own_ns = run(&together(own))?;
    let together_ns = run(&together(left_out))?;
    let (all_ns, all_together_ns) = (run(&all)?, run(&together(all))?);
    let recorded = &step.recorded.ranks[rank];
    let measured_ns = recorded.step_ns;
    let others = other_ranks(step, rank);
    let ends = others.iter().map(|other| {
        let other = &step.recorded.ranks[*other];
        other.start_ns + other.step_ns - recorded.start_ns
    });
    let mean_end = ends.sum::<i64>() / others.len() as i64;
    Ok(LeftOutRankRow {
        rank: step.program.ranks[rank].rank,
        measured_ns,
        step_ns,
        error_pct: error_pct(step_ns, measured_ns),
        all_priced_error_pct: error_pct(all_ns, measured_ns),
        baseline_error_pct: error_pct(mean_end, measured_ns),
        together_own_ns,
        together_ns,
        together_error_pct: error_pct(together_ns, together_own_ns),
        together_all_priced_error_pct: error_pct(all_together_ns, together_own_ns),
    })
}

/// Moves the start of all ranks to the earliest recorded start.
fn together(mut costs: Costs) -> Costs {
    let start = costs.ranks.iter().map(|rank| rank.start_ns).min().unwrap_or_default();
    costs.ranks.iter_mut().for_each(|rank| rank.start_ns = start);
    costs
}
