//! Prices the kernels of execution traces by kernel models and formulas, and compares predicted
//! steps with recorded ones.

use analyze::collectives::CollectiveOperation;
use kernel_model::embedding::ROW_NS;
use kernel_model::exchanges::RankExchange;
use kernel_model::formula_kernels::{MOVE_SHARE, MOVED, SingleKind, SingleWork};
use kernel_model::{Element, Estimate, Kind, Work};
use schema::Topology;
use serde::Serialize;
use trace::execution_trace::ExecutionTrace;

use super::dense::Models;
use crate::Error;
use crate::calibration::price::Prices;
use crate::calibration::{Calibration, collect};
use crate::evaluate::error_pct;
use crate::prediction::never_run;
use crate::program::from_execution_trace::Execution;
use crate::program::from_execution_trace::kernels::{Kernel, LaunchedKernel};
use crate::program::{Program, Rank};
use crate::recording::{RankSetting, RankTimes, Setting, Step};

/// Lowest and highest factor on times that were not measured on the device.
const UNMEASURED: (f64, f64) = (0.5, 2.0);
/// Assumed share of the 16-bit peak rate that products of 16-bit values reach.
const HALF_SHARE: f64 = 0.6;

/// Prices a kernel on the device of a topology, by trained models or formulas. The result is at
/// least the least time of its kind.
#[must_use]
pub fn price(asked: &LaunchedKernel, models: &Models, topology: &Topology) -> Estimate {
    let device = &topology.device;
    let least = Estimate::within(asked.pass.least_ns(device), UNMEASURED);
    let moved = |bytes: f64| Estimate::within(1e9 * bytes / (MOVE_SHARE * device.dram), MOVED);
    let learned = |work: Work| {
        let price = models.model(work.kind()).price(&work, device);
        Estimate { mean_ns: price.mean_ns, low_ns: price.low_ns, high_ns: price.high_ns }
    };
    let time = match asked.kernel {
        // The models know only 32-bit values. 16-bit products run in tensor cores.
        Kernel::Learned(work, factor) if asked.element_bytes == 2 => {
            let peak = device.peak.f16.unwrap_or(device.peak.f32);
            let is_product = matches!(work.kind(), Kind::Linear | Kind::Bmm | Kind::Conv);
            let flops = if is_product { factor * work.flops_and_bytes().0 } else { 0.0 };
            let ns = 1e9 * flops / (HALF_SHARE * peak);
            Estimate::within(ns, UNMEASURED).max(moved(asked.bytes as f64))
        }
        Kernel::Learned(work, factor) => learned(work).times(factor),
        // The model was trained on additions, which move three 4-byte values per element.
        Kernel::Moved if asked.pass.name == "element" => {
            let elements = asked.bytes.div_ceil(12).max(1);
            Work::element_wise(Element::Add, elements).map_or(least, learned)
        }
        Kernel::Moved => moved(asked.pass.passes * asked.bytes as f64),
        Kernel::Lookup { ids, bags } => {
            let rows = ROW_NS * ids as f64 / bags.max(1) as f64;
            let rows = Estimate::within(rows, UNMEASURED).max(moved(asked.bytes as f64));
            return least.plus(rows);
        }
        Kernel::HostCopy => {
            let kind = if asked.pass.name == "to_host" {
                SingleKind::CopyToHost
            } else {
                SingleKind::CopyToDevice
            };
            let empty = SingleWork::new(kind, &[1]).map_or(least, |work| work.price(device));
            let whole = SingleWork::new(kind, &[asked.bytes.max(1)]);
            // The formula's fixed time contains the launch, which the simulation adds.
            whole.map_or(least, |work| work.price(device).beyond(empty)).plus(least)
        }
        Kernel::Collective { operation, ranks } => {
            transfer(topology, operation, asked.bytes as f64, ranks)
        }
    };
    time.max(least).times(asked.factor)
}

/// Predicts the transfer of a collective of which each rank has `bytes` bytes, within a host by
/// measured exchanges and otherwise on the link between hosts.
fn transfer(
    topology: &Topology,
    operation: CollectiveOperation,
    bytes: f64,
    ranks: u32,
) -> Estimate {
    use CollectiveOperation::{AllReduce, AllToAll, Barrier, ReduceScatter, SendReceive};
    let exchange = match operation {
        _ if ranks < 2 => return Estimate::default(),
        AllReduce => RankExchange::AllReduce,
        AllToAll | SendReceive => RankExchange::AllToAll,
        ReduceScatter => RankExchange::ReduceScatter,
        _ => RankExchange::AllGather,
    };
    let bytes = if operation == Barrier { 1.0 } else { bytes };
    let Topology { device, within, between, ranks_per_host, hosts } = topology;
    if ranks <= *ranks_per_host || *hosts < 2 {
        return exchange.price_within_host(ranks as usize, bytes, device, within);
    }
    let turns = if exchange == RankExchange::AllReduce { 2.0 } else { 1.0 };
    let sent = turns * bytes * f64::from(ranks - 1) / f64::from(ranks);
    Estimate::within(between.ns(sent), UNMEASURED)
}

/// Builds the program of a step of execution traces whose kernels run on the device of a topology,
/// with the calibration that prices it. `host` gives the times of the host.
///
/// # Errors
/// [`Error::Execution`] for the traces that [`Program::from_execution`] refuses.
pub fn on_device(
    traces: &[ExecutionTrace],
    number: usize,
    host: &Calibration,
    models: &Models,
    topology: &Topology,
) -> Result<(Execution, Calibration), Error> {
    let price = |asked: &LaunchedKernel| price(asked, models, topology);
    let execution = Program::from_execution_on_device(traces, number, host, &price)?;
    let calibration = execution.calibration(host);
    Ok((execution, calibration))
}

/// Predicted and recorded device time of one rank's step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExecutionTraceTimeRow {
    pub rank: u32,
    pub measured_ns: i64,
    /// Number of recorded kernels, copies and memory sets.
    pub works: usize,
    /// Device time predicted by kernel models from the execution trace alone.
    pub models_ns: i64,
    /// Number of kernels, copies and memory sets that are predicted from the execution trace alone.
    pub launches: usize,
    pub models_error_pct: f64,
    /// Median error over the predictions from the kernels of each other rank.
    pub other_error_pct: Option<f64>,
    /// Largest error over the predictions from the kernels of each other rank.
    pub other_worst_pct: Option<f64>,
    pub other_worst_rank: Option<u32>,
}

/// Predicted and recorded step of one rank, with kernels by models and the host's times of a
/// calibration or of shared overheads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostRow {
    /// Name of the overheads, or [`OWN_HOST`] for the calibration of the rank itself.
    pub host: String,
    pub rank: u32,
    pub measured_ns: i64,
    pub step_ns: i64,
    pub error_pct: f64,
    /// Sum of the times of all kernels, which the paper rejects as a prediction.
    pub kernel_only_ns: i64,
    /// Error of the sum of the times of all kernels.
    pub kernel_only_error_pct: f64,
}

/// Name of the host in rows whose host times come from the calibration of the rank itself.
pub const OWN_HOST: &str = "own";

/// Calibrates each rank of recorded steps alone. `event_ns`, the cost of recording an event, is
/// subtracted for each event.
#[must_use]
pub fn calibrate_each_rank(steps: &[Step], event_ns: f64) -> Vec<Calibration> {
    let ranks = 0..steps.first().map_or(0, |step| step.program.ranks.len());
    let calibrate = |at: usize| {
        let mut calibration = Calibration { event_ns, ..Calibration::default() };
        steps.iter().for_each(|step| collect::add(&mut calibration, step, &[at]));
        calibration
    };
    ranks.map(calibrate).collect()
}

/// Returns the execution traces in the order of the recorded ranks.
fn matching(traces: &[ExecutionTrace], step: &Step) -> Result<Vec<ExecutionTrace>, Error> {
    let ranks = &step.program.ranks;
    let find = |rank: &Rank| traces.iter().find(|trace| trace.rank == rank.rank).cloned();
    let found: Vec<ExecutionTrace> = ranks.iter().filter_map(find).collect();
    match found.len() == ranks.len() {
        true => Ok(found),
        false => Err(Error::TooFewRanks { expected: ranks.len(), got: traces.len() }),
    }
}

/// Compares the predicted with the recorded device time of the same ranks.
///
/// # Errors
/// [`Error::Execution`] for a trace that cannot be read, and [`Error::TooFewRanks`] if a recorded
/// rank has no execution trace.
pub fn rows(
    traces: &[ExecutionTrace],
    number: usize,
    step: &Step,
    models: &Models,
    topology: &Topology,
) -> Result<Vec<ExecutionTraceTimeRow>, Error> {
    let alone = calibrate_each_rank(std::slice::from_ref(step), 0.0);
    let traces = matching(traces, step)?;
    let mut rows = Vec::new();
    for (at, (rank, trace)) in step.program.ranks.iter().zip(&traces).enumerate() {
        let one = std::slice::from_ref(trace);
        let (measured_ns, works) = recorded(rank, &step.recorded.ranks[at].works);
        let none = Calibration::default();
        let (execution, calibration) = on_device(one, number, &none, models, topology)?;
        let models_ns = device_ns(&execution.program, &calibration);
        let mut others: Vec<(u32, f64)> = Vec::new();
        for (other, calibration) in alone.iter().enumerate().filter(|(other, _)| *other != at) {
            let found = Program::from_execution(one, number, calibration)?;
            let ns = device_ns(&found.program, calibration);
            others.push((step.program.ranks[other].rank, error_pct(ns, measured_ns)));
        }
        // The sort makes the median error and the worst error available by position.
        others.sort_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
        let middle = others.get(others.len().saturating_sub(1) / 2);
        rows.push(ExecutionTraceTimeRow {
            rank: rank.rank,
            measured_ns,
            works,
            models_ns,
            launches: execution.program.ranks[0].works.len(),
            models_error_pct: error_pct(models_ns, measured_ns),
            other_error_pct: middle.map(|other| other.1),
            other_worst_pct: others.last().map(|other| other.1),
            other_worst_rank: others.last().map(|other| other.0),
        });
    }
    Ok(rows)
}

/// The device of a topology, whose kernels models price.
#[derive(Clone, Copy)]
pub struct ModeledDevice<'a> {
    pub models: &'a Models,
    pub topology: &'a Topology,
}

/// Compares predicted with recorded steps. The host's times come from `hosts`, which are one
/// calibration for all ranks or one for each rank. Kernels are priced by models. Without a device,
/// the host computes everything. Ranks start when they did in the recording.
///
/// # Errors
/// As of [`rows`].
pub fn host_rows(
    traces: &[ExecutionTrace],
    number: usize,
    step: &Step,
    device: Option<ModeledDevice<'_>>,
    name: &str,
    hosts: &[Calibration],
) -> Result<Vec<HostRow>, Error> {
    let traces = matching(traces, step)?;
    let start = |start_ns| RankSetting { start_ns, ..RankSetting::default() };
    let starts = step.recorded.ranks.iter().map(|rank| start(rank.start_ns));
    let setting = Setting { ranks: starts.collect() };
    let predict = |host: &Calibration| match device {
        Some(ModeledDevice { models, topology }) => {
            let (execution, priced) = on_device(&traces, number, host, models, topology)?;
            never_run::step_times(&execution.program, &setting, &priced)
        }
        None => {
            let execution = Program::from_execution(&traces, number, host)?;
            never_run::step_times(&execution.program, &setting, host)
        }
    };
    let predicted = hosts.iter().map(predict).collect::<Result<Vec<_>, Error>>()?;
    let times = |at: usize| Some(predicted.get(at).or(predicted.first())?[at]);
    let row = |(at, recorded): (usize, &RankTimes)| {
        let times = times(at)?;
        Some(HostRow {
            host: name.to_owned(),
            rank: step.program.ranks[at].rank,
            measured_ns: recorded.step_ns,
            step_ns: times.step_ns,
            error_pct: error_pct(times.step_ns, recorded.step_ns),
            kernel_only_ns: times.kernel_only_ns,
            kernel_only_error_pct: error_pct(times.kernel_only_ns, recorded.step_ns),
        })
    };
    Ok(step.recorded.ranks.iter().enumerate().filter_map(row).collect())
}

/// Returns the total time and the number of works that a step launches itself, without exchanges.
fn recorded(rank: &Rank, times: &[(i64, i64)]) -> (i64, usize) {
    let own = rank.works.iter().zip(times);
    let own = own.filter(|(work, _)| work.is_launched && work.collective.is_none());
    own.fold((0, 0), |(ns, count), (_, (from, to))| (ns + to - from, count + 1))
}

/// Sums the prices of the works of a program's first rank, without exchanges.
fn device_ns(program: &Program, calibration: &Calibration) -> i64 {
    let setting = Setting { ranks: vec![RankSetting::default(); program.ranks.len()] };
    let costs = Prices::new(calibration).price(program, &setting);
    let works = program.ranks[0].works.iter().zip(&costs.ranks[0].works);
    works.filter(|(work, _)| work.collective.is_none()).map(|(_, cost)| cost.ns).sum()
}
