//! Replays a recorded step. Host segments and kernels keep their recorded times, but starts, waits
//! and transfers follow from constants that some of the ranks determine.

use std::collections::BTreeMap;

use super::{ReplayRow, ranks};
use crate::Error;
use crate::calibration::{Calibration, collect, constants};
use crate::cost::{self, Constants, operation_name};
use crate::recording::Step;
use crate::simulate::{self, Simulation};

/// A recorded step, simulated from its own host segments and kernels.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Constants derived from the samples of the calibration ranks.
    pub constants: Constants,
    pub ranks: Vec<ReplayRow>,
    pub simulation: Simulation,
}

/// Replays a step with constants that are derived from the ranks in `calibrated`.
///
/// # Errors
/// [`Error::Cycle`] if the actions of the program wait for each other in a cycle.
pub fn replay_step(step: &Step, calibrated: &[usize]) -> Result<Replay, Error> {
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, step, calibrated);
    let mut constants = constants::derive_constants(&calibration);
    if calibrated.len() < step.program.ranks.len() {
        fit_transfers(step, calibrated, &mut constants)?;
    }
    replay_with_constants(step, calibrated, constants)
}

/// Replays a step with the given constants, and marks the rows of ranks in `calibrated`.
///
/// # Errors
/// [`Error::Cycle`] if the actions of the program wait for each other in a cycle.
pub fn replay_with_constants(
    step: &Step,
    calibrated: &[usize],
    constants: Constants,
) -> Result<Replay, Error> {
    let costs = cost::replay(&step.program, &step.recorded, &constants);
    let simulation = simulate::run(&step.program, &costs)?;
    let ranks = ranks(step, &simulation, calibrated);
    Ok(Replay { constants, ranks, simulation })
}

/// Fits the transfer times of collectives to the recorded end times on some ranks.
///
/// Among these ranks, even the shortest kernel includes a wait if none of them arrives last. The
/// step is therefore simulated without transfers to find when the last rank arrives. The transfer
/// lasts from that time to the recorded ends. Transfers delay later collectives, so the fit is
/// repeated four times, each time with the transfers found before.
pub(super) fn fit_transfers(
    step: &Step,
    calibrated: &[usize],
    constants: &mut Constants,
) -> Result<(), Error> {
    const ROUNDS: usize = 4;
    let program = &step.program;
    constants.transfer = program
        .collectives
        .iter()
        .map(|one| (operation_name(one.operation), Default::default()))
        .collect();
    for _ in 0..ROUNDS {
        let costs = cost::replay(program, &step.recorded, constants);
        let simulation = simulate::run(program, &costs)?;
        let mut points: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
        for collective in &program.collectives {
            let arrival = |&(rank, work): &(usize, u32)| simulation.work_ns(rank, work).0;
            let Some(met) = collective.parts.iter().map(arrival).max() else { continue };
            let ends = collective.parts.iter().filter(|(rank, _)| calibrated.contains(rank));
            let since = ends.map(|&(rank, work)| {
                let recorded = &step.recorded.ranks[rank];
                (recorded.start_ns + recorded.works[work as usize].1 - met) as f64
            });
            let since: Vec<f64> = since.collect();
            if !since.is_empty() {
                let ns = since.iter().sum::<f64>() / since.len() as f64;
                let of_operation = points.entry(operation_name(collective.operation)).or_default();
                of_operation.push((collective.bytes, ns));
            }
        }
        constants.transfer =
            points.into_iter().map(|(name, points)| (name, constants::transfer(&points))).collect();
    }
    Ok(())
}
