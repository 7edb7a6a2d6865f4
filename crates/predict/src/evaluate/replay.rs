//! Replays a recorded step: its own host segments and kernels, but starts, waits and transfers from
//! constants of some ranks.

use std::collections::BTreeMap;

use super::{ReplayRow, ranks};
use crate::Error;
use crate::calibration::{Calibration, collect, constants};
use crate::cost::{self, Constants, operation_name};
use crate::recording::Step;
use crate::simulate::{self, Simulation};

/// A recorded step simulated from its own segments and kernels.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Derived from the calibration ranks.
    pub constants: Constants,
    pub ranks: Vec<ReplayRow>,
    pub simulation: Simulation,
}

/// Replays a step with constants derived from some of its ranks.
///
/// # Errors
/// [`Error::Cycle`].
pub fn replay_step(step: &Step, calibrated: &[usize]) -> Result<Replay, Error> {
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, step, calibrated);
    let mut constants = constants::derive_constants(&calibration);
    if calibrated.len() < step.program.ranks.len() {
        fit_transfers(step, calibrated, &mut constants)?;
    }
    replay_with_constants(step, calibrated, constants)
}

/// Replays a step with given constants.
///
/// # Errors
/// [`Error::Cycle`].
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

/// Fits transfer times of collectives to the recorded ends of some ranks.
///
/// The shortest kernel among these ranks is a wait if none of them arrives last. So the step is
/// simulated without transfers to find when the last rank arrives; the time from then to the
/// recorded ends is the transfer. Transfers delay later collectives, so this is repeated with the
/// transfers found before.
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
