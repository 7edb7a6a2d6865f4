//! Times of a step that was never run: of its host alone, of its device alone, and of both
//! together.

use schema::CellType;
use serde::Serialize;

use crate::Error;
use crate::calibration::Calibration;
use crate::calibration::price::Prices;
use crate::cost::Costs;
use crate::program::Program;
use crate::recording::Setting;
use crate::simulate::{self, Simulation};

/// The part of a machine whose work decides how long a step takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Binds {
    Host,
    Device,
}

/// Times of one rank's step, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostDeviceTimes {
    /// Time of the step if the device's work took no time.
    pub host_ns: i64,
    /// Time of the device's work if the host took no time.
    pub device_ns: i64,
    /// Time of the step.
    pub step_ns: i64,
    /// Sum of the times of all works on the device, which arXiv:2201.07821 rejects as a prediction
    /// of the step.
    pub kernel_only_ns: i64,
    pub binds: Binds,
}

/// Computes the times of each rank's step with the costs of a calibration. The ranks start as in
/// `setting`. A single rank repeats its step, so the device's queue carries over.
///
/// # Errors
/// [`Error::Cycle`] if the actions of the program wait for each other in a cycle.
pub fn step_times(
    program: &Program,
    setting: &Setting,
    calibration: &Calibration,
) -> Result<Vec<HostDeviceTimes>, Error> {
    let costs = Prices::new(calibration).price(program, setting);
    let simulation = simulate::run(program, &costs)?;
    let is_alone = program.ranks.len() == 1;
    let simulation = if is_alone { simulation.into_steady() } else { simulation };
    times_of_costs(program, &costs, &simulation)
}

/// Computes the times of each rank's step from its costs and their simulation.
///
/// # Errors
/// [`Error::Cycle`] if the actions of the program wait for each other in a cycle.
pub fn times_of_costs(
    program: &Program,
    costs: &Costs,
    simulation: &Simulation,
) -> Result<Vec<HostDeviceTimes>, Error> {
    let (mut host, mut device) = (costs.clone(), costs.clone());
    host.constants.transfer.clear();
    for rank in &mut host.ranks {
        rank.works.iter_mut().for_each(|cost| cost.ns = 0);
    }
    for rank in &mut device.ranks {
        rank.actions.iter_mut().flatten().for_each(|cost| cost.ns = 0);
    }
    device.constants = crate::cost::Constants {
        queue_gap_ns: costs.constants.queue_gap_ns,
        event_wait_ns: costs.constants.event_wait_ns,
        transfer: costs.constants.transfer.clone(),
        ..crate::cost::Constants::default()
    };
    let (host, device) = (simulate::run(program, &host)?, simulate::run(program, &device)?);
    let times = |rank: usize| {
        let works = 0..program.ranks[rank].works.len() as u32;
        let ends = works.clone().map(|work| device.work_ns(rank, work).1);
        let device_ns = ends.max().unwrap_or(0).max(device.start_ns(rank)) - device.start_ns(rank);
        let host_ns = host.step_ns(rank);
        let lengths = works.map(|work| duration_ns(program, costs, rank, work as usize));
        HostDeviceTimes {
            host_ns,
            device_ns,
            step_ns: simulation.step_ns(rank),
            kernel_only_ns: lengths.sum(),
            binds: if device_ns > host_ns { Binds::Device } else { Binds::Host },
        }
    };
    Ok((0..program.ranks.len()).map(times).collect())
}

/// Returns the time of a work, without the wait of a collective for other ranks.
fn duration_ns(program: &Program, costs: &Costs, rank: usize, work: usize) -> i64 {
    let of = &program.ranks[rank].works[work];
    let collective = of.collective.map(|at| &program.collectives[at as usize]);
    let transfer = collective.and_then(|one| costs.constants.transfer_ns(one.operation, one.bytes));
    transfer.unwrap_or(costs.ranks[rank].works[work].ns)
}
