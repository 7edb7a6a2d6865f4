//! Compares the recorded device time of an execution trace with two predictions: from kernel models
//! alone, and from the kernels of another rank. Exchanges between ranks are left out, because most
//! of their time is waiting.

use schema::{HardwareSpec, TableRow};
use serde::Serialize;
use trace::execution_trace::ExecutionTrace;

use super::dense::Models;
use crate::Error;
use crate::calibration::price::{Method, Prices};
use crate::calibration::{Calibration, collect};
use crate::evaluate::error_pct;
use crate::program::from_execution_trace::kernels::{self, Kernel, LaunchedKernel};
use crate::program::{Program, Rank};
use crate::recording::{RankSetting, Setting, Step};
use kernel_model::Estimate;
use kernel_model::embedding::V100;
use kernel_model::{Element, Kind, Work};

/// Minimum time of an element-wise kernel. The minimum times are the lower quartiles of kernels
/// with no more blocks than a V100 has multiprocessors. The kernels come from a training job on one
/// V100 (`trace_diff/test` of the public traces), which is not among the ranks evaluated here.
const ELEMENT_NS: f64 = 3_000.0;
/// Minimum time of a copy or memory set.
const MOVE_NS: f64 = 3_000.0;
/// Minimum time of a matrix product.
const PRODUCT_NS: f64 = 8_000.0;
/// Minimum time of a reduction.
const REDUCE_NS: f64 = 11_000.0;
/// Minimum time of a concatenation. This minimum is the shortest recorded concatenation, because no
/// recorded concatenation was small.
const CONCAT_NS: f64 = 5_000.0;
/// Minimum time of a gather or scatter.
const INDEX_NS: f64 = 6_000.0;
/// Minimum time of a prefix sum. The scan itself takes 5 µs, and the rest is its preparation.
const SCAN_NS: f64 = 8_000.0;
/// Minimum time of a row update. The minimum is a sum over the kernels of an update. Positions take
/// 26 µs, their sort 13 µs, run lengths 14 µs and run starts 8 µs. Long runs and memory sets take 7
/// µs, and two updates take the rest.
const UPDATE_NS: f64 = 76_000.0;
/// Minimum time of any other kernel, in nanoseconds.
const OTHER_NS: f64 = 4_000.0;
/// Share of the peak memory bandwidth that copies reach (arXiv:2201.07821).
const MOVE_SHARE: f64 = 0.79;
/// Lowest and highest factor on the time of copies.
const MOVED: (f64, f64) = (0.8, 1.3);
/// Lowest and highest factor on the minimum times, which were measured only on a V100.
const UNMEASURED: (f64, f64) = (0.5, 2.0);

/// Predicted and recorded device time of one rank's step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExecutionTraceTimeRow {
    pub rank: u32,
    pub measured_ns: i64,
    /// Number of recorded kernels, copies and memory sets.
    pub works: usize,
    /// Device time predicted by kernel models from the execution trace alone.
    pub models_ns: i64,
    pub operators: usize,
    pub models_error_pct: f64,
    /// Median error over the predictions from the kernels of each other rank.
    pub other_error_pct: Option<f64>,
    /// Largest error over the predictions from the kernels of each other rank.
    pub other_worst_pct: Option<f64>,
    pub other_worst_rank: Option<u32>,
}

/// Device time of a step of an execution trace, predicted by kernel models and formulas alone.
/// Exchanges between ranks are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TableRow)]
pub struct ExecutionTracePrice {
    pub rank: u32,
    /// Sum of the times of all kernels.
    pub device_ns: f64,
    pub low_ns: f64,
    pub high_ns: f64,
    pub kernels: usize,
    pub products_ns: f64,
    /// Time of pooled lookups and their row updates.
    pub embeddings_ns: f64,
    pub element_wise_ns: f64,
    /// Time of copies, memory sets, concatenations, gathers and scatters.
    pub moves_ns: f64,
    /// Time of reductions, prefix sums and unknown operators.
    pub others_ns: f64,
    /// Number of unknown operators, which are priced by the bytes of their tensors.
    pub opaque: usize,
}

/// Predicts the device time of a step of an execution trace without a calibration.
///
/// # Errors
/// [`Error::Execution`] for the traces that [`Program::from_execution`] rejects.
pub fn by_models(
    trace: &ExecutionTrace,
    number: usize,
    models: &Models,
    device: &HardwareSpec,
) -> Result<ExecutionTracePrice, Error> {
    let mut found = ExecutionTracePrice { rank: trace.rank, ..ExecutionTracePrice::default() };
    let mut all = Estimate::default();
    for asked in kernels::list_kernels(trace, number)? {
        let time = price(&asked, models, device);
        all = all.plus(time);
        found.kernels += 1;
        found.opaque += usize::from(asked.kernel == Kernel::Other);
        let group = match asked.kernel {
            Kernel::Product { .. } => &mut found.products_ns,
            Kernel::Lookup { .. } | Kernel::Update => &mut found.embeddings_ns,
            Kernel::Element => &mut found.element_wise_ns,
            Kernel::Move | Kernel::Concat | Kernel::Index => &mut found.moves_ns,
            Kernel::Reduce | Kernel::Scan | Kernel::Other => &mut found.others_ns,
        };
        *group += time.mean_ns;
    }
    (found.device_ns, found.low_ns, found.high_ns) = (all.mean_ns, all.low_ns, all.high_ns);
    Ok(found)
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
    device: &HardwareSpec,
) -> Result<Vec<ExecutionTraceTimeRow>, Error> {
    let ranks = &step.program.ranks;
    let alone: Vec<Calibration> = (0..ranks.len())
        .map(|at| {
            let mut calibration = Calibration::default();
            collect::add(&mut calibration, step, &[at]);
            calibration
        })
        .collect();
    let mut rows = Vec::new();
    for (at, rank) in ranks.iter().enumerate() {
        let Some(trace) = traces.iter().find(|trace| trace.rank == rank.rank) else {
            return Err(Error::TooFewRanks { expected: ranks.len(), got: traces.len() });
        };
        let (measured_ns, works) = recorded(rank, &step.recorded.ranks[at].works);
        let priced = by_models(trace, number, models, device)?;
        let models_ns = priced.device_ns.round() as i64;
        let mut others: Vec<(u32, f64)> = Vec::new();
        for (other, calibration) in alone.iter().enumerate().filter(|(other, _)| *other != at) {
            let ns = by_other(trace, number, calibration)?;
            others.push((ranks[other].rank, error_pct(ns, measured_ns)));
        }
        // The sort makes the median error and the worst error available by position.
        others.sort_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
        let middle = others.get(others.len().saturating_sub(1) / 2);
        rows.push(ExecutionTraceTimeRow {
            rank: rank.rank,
            measured_ns,
            works,
            models_ns,
            operators: priced.kernels,
            models_error_pct: error_pct(models_ns, measured_ns),
            other_error_pct: middle.map(|other| other.1),
            other_worst_pct: others.last().map(|other| other.1),
            other_worst_rank: others.last().map(|other| other.0),
        });
    }
    Ok(rows)
}

/// Returns the total time and the number of works that a step launches itself, without exchanges.
fn recorded(rank: &Rank, times: &[(i64, i64)]) -> (i64, usize) {
    let own = rank.works.iter().zip(times);
    let own = own.filter(|(work, _)| work.is_launched && work.collective.is_none());
    own.fold((0, 0), |(ns, count), (_, (from, to))| (ns + to - from, count + 1))
}

/// Predicts the device time of a step from the kernels of a calibration.
fn by_other(
    trace: &ExecutionTrace,
    number: usize,
    calibration: &Calibration,
) -> Result<i64, Error> {
    let found = Program::from_execution(std::slice::from_ref(trace), number, calibration)?;
    let setting = Setting { ranks: vec![RankSetting::default()] };
    let costs = Prices::new(calibration, Method::Full).price(&found.program, &setting);
    let works = found.program.ranks[0].works.iter().zip(&costs.ranks[0].works);
    Ok(works.filter(|(work, _)| work.collective.is_none()).map(|(_, cost)| cost.ns).sum())
}

/// Predicts a kernel by trained models or formulas. The result is at least the minimum time of its
/// kind.
fn price(asked: &LaunchedKernel, models: &Models, device: &HardwareSpec) -> Estimate {
    let moved = 1e9 * asked.bytes as f64 / (MOVE_SHARE * device.dram);
    let moved = Estimate::within(moved, MOVED);
    let least = |ns: f64| Estimate::within(ns, UNMEASURED);
    let learned = |work: Result<Work, kernel_model::Error>| {
        let price = work.map(|work| models.model(work.kind()).price(&work, device));
        price.map_or(Estimate::default(), |price| Estimate {
            mean_ns: price.mean_ns,
            low_ns: price.low_ns,
            high_ns: price.high_ns,
        })
    };
    match asked.kernel {
        Kernel::Product { batch: 1, m, n, k } => {
            learned(Work::new(Kind::Linear, &[m, n, k])).max(least(PRODUCT_NS))
        }
        Kernel::Product { batch, m, n, k } => {
            learned(Work::new(Kind::Bmm, &[batch, m, n, k])).max(least(PRODUCT_NS))
        }
        // The model was trained on additions, which move three 4-byte values per element.
        Kernel::Element => {
            let elements = asked.bytes.div_ceil(12).max(1);
            learned(Work::element_wise(Element::Add, elements)).max(least(ELEMENT_NS))
        }
        Kernel::Lookup { ids, bags } => {
            least(V100.start_ns + V100.row_ns * ids as f64 / bags.max(1) as f64)
        }
        Kernel::Move => moved.max(least(MOVE_NS)),
        Kernel::Reduce => moved.max(least(REDUCE_NS)),
        Kernel::Concat => moved.max(least(CONCAT_NS)),
        Kernel::Index => moved.max(least(INDEX_NS)),
        Kernel::Scan => moved.max(least(SCAN_NS)),
        Kernel::Update => moved.max(least(UPDATE_NS)),
        Kernel::Other => moved.max(least(OTHER_NS)),
    }
}
