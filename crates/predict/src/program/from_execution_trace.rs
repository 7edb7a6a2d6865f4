//! Builds the program of a step from execution traces, which contain operators and tensors but no
//! times. Calls and kernels come from recorded operators of a calibration. Dependencies follow from
//! the tensors that operators share.

pub mod kernels;
mod operator;
pub(crate) mod operator_table;
pub(crate) mod order;
mod scaled_calls;
mod sort;
pub(crate) mod storage;
mod writer;

use std::collections::BTreeMap;

use trace::execution_trace::{ExecutionTrace, NodeForest};
use trace::store::Loss;

use crate::Error;
use crate::calibration::{Calibration, Key, WorkSamples};
use crate::cost::parse_operation;
use crate::program::{Collective, Program, WorkKind};
use kernel_model::Estimate;
use kernels::{LaunchedKernel, TraceKernels};
use operator::{LaunchPredictor, ModeledKernels, Usual};
use writer::Joined;
pub use writer::UnknownOperators;

/// The program of a step from execution traces, with counts of the operators and collectives that
/// are incomplete.
#[derive(Clone, Debug, Default)]
pub struct Execution {
    pub program: Program,
    /// Number of steps that every one of the traces contains.
    pub steps: usize,
    /// Whether the traces mark their steps. Without marks, each trace counts as one step.
    pub is_marked: bool,
    /// Operators that the calibration does not contain, counted over all ranks.
    pub unknown: UnknownOperators,
    /// Number of collectives for which the trace of a participating rank is missing.
    pub partial_collectives: usize,
    /// Times of kernels that models price, by the key of their samples.
    pub prices: BTreeMap<Key<WorkKind>, Estimate>,
}

impl Execution {
    /// Returns the calibration that prices the program: the host times of `host`, with the kernels
    /// that models price in place of its own. Each kernel gets its estimate and the bounds of its
    /// interval as samples.
    pub fn calibration(&self, host: &Calibration) -> Calibration {
        let sample = |(key, time): (&Key<WorkKind>, &Estimate)| {
            let all = [time.low_ns, time.mean_ns, time.high_ns];
            (key.clone(), WorkSamples::from(all.map(|ns| ns.round() as i64).to_vec()))
        };
        Calibration {
            works: self.prices.iter().map(sample).collect(),
            recordings: vec![u32::MAX],
            transfers: BTreeMap::new(),
            work_factors: Vec::new(),
            are_works_modeled: true,
            ..host.clone()
        }
    }
}

/// Predicts the time of a kernel on a device.
pub type PriceKernel<'a> = &'a dyn Fn(&LaunchedKernel) -> Estimate;

impl Program {
    /// Builds the program of a step from execution traces, one per rank. The calls and kernels of
    /// each operator come from the calibration.
    ///
    /// # Errors
    /// [`Error::Execution`] for a trace that is truncated, that lacks the step, or whose nodes have
    /// cyclic or missing parents. The same error is returned for ranks whose collectives differ.
    pub fn from_execution(
        traces: &[ExecutionTrace],
        step: usize,
        calibration: &Calibration,
    ) -> Result<Execution, Error> {
        if calibration.launches.outer.is_empty() {
            let expected = "a calibration of at least one recorded operator".to_owned();
            return Err(Error::Calibration { expected, got: "none".to_owned() });
        }
        program(traces, step, calibration, None)
    }

    /// Builds the program of a step from execution traces, one per rank, for a device that need not
    /// have been recorded. The operators' names and tensors give the kernels, which `price` prices.
    /// The calibration gives the number of launches and the calls of operators that it contains.
    ///
    /// # Errors
    /// [`Error::Execution`] for the traces that [`Program::from_execution`] refuses.
    pub fn from_execution_on_device(
        traces: &[ExecutionTrace],
        step: usize,
        host: &Calibration,
        price: PriceKernel<'_>,
    ) -> Result<Execution, Error> {
        program(traces, step, host, Some(price))
    }
}

fn program(
    traces: &[ExecutionTrace],
    step: usize,
    calibration: &Calibration,
    price: Option<PriceKernel<'_>>,
) -> Result<Execution, Error> {
    let launches = &calibration.launches;
    let mut execution = Execution { steps: usize::MAX, ..Execution::default() };
    // The empty name gets the number 0, which is the default of a `StringId`.
    execution.program.names.intern("");
    let call = usual_call(calibration);
    let usual =
        Usual { call: &call, stream: usual_stream(calibration), has_device: launches.has_device() };
    let mut joined = Vec::new();
    for (at, trace) in traces.iter().enumerate() {
        if traces[..at].iter().any(|other| other.rank == trace.rank) {
            let expected = "one execution trace of each rank".to_owned();
            return Err(Error::Execution { rank: trace.rank, expected, got: "two".to_owned() });
        }
        check(trace)?;
        let tree = NodeForest::build(&trace.nodes);
        let wanted = self::step(trace, step)?;
        execution.steps = execution.steps.min(order::steps(trace).len());
        execution.is_marked |= wanted.root.is_some();
        let (threads, items) = order::order_items(trace, &tree, wanted);
        if !items.iter().any(|item| item.kind == order::ItemKind::Operator) {
            let expected = "operators in the step".to_owned();
            return Err(Error::Execution { rank: trace.rank, expected, got: "none".to_owned() });
        }
        let operators = items.iter().filter(|item| item.kind == order::ItemKind::Operator);
        let operators = operators.map(|item| item.node);
        let modeled = price.map(|price| ModeledKernels {
            kernels: TraceKernels::list(trace, &tree, operators, group_size(traces)),
            price,
        });
        let known = LaunchPredictor::new(trace, &tree, calibration, usual, modeled);
        let names = &mut execution.program.names;
        let mut written = writer::write(&known, names, &threads, &items);
        written.rank.rank = trace.rank;
        execution.program.ranks.push(written.rank);
        joined.push(written.collectives);
        execution.prices.extend(written.prices);
        for (name, count) in written.unknown {
            *execution.unknown.entry(name).or_default() += count;
        }
    }
    meet(&mut execution, traces, &joined)?;
    Ok(execution)
}

/// Finds a step of a trace by its number, counted from 0.
fn step(trace: &ExecutionTrace, number: usize) -> Result<order::StepRange, Error> {
    let steps = order::steps(trace);
    steps.get(number).copied().ok_or_else(|| {
        let expected = format!("a step {number}, counted from 0");
        let got = schema::unit::counted(steps.len() as u64, "step");
        Error::Execution { rank: trace.rank, expected, got }
    })
}

/// Rejects traces whose program would be incomplete or out of order.
fn check(trace: &ExecutionTrace) -> Result<(), Error> {
    let refuse = |expected: &str, got: String| {
        Err(Error::Execution { rank: trace.rank, expected: expected.to_owned(), got })
    };
    let losses = [Loss::Truncated, Loss::Damaged, Loss::BrokenEvent, Loss::CyclicParent];
    for loss in losses {
        let found = trace.losses.iter().find(|(kind, _)| *kind == loss);
        let Some((_, lost)) = found else { continue };
        let expected = match loss {
            Loss::CyclicParent => "nodes inside others, none inside itself",
            Loss::BrokenEvent => "nodes that can be read",
            _ => "a whole execution trace",
        };
        return refuse(expected, lost.first.first().cloned().unwrap_or_default());
    }
    let tree = NodeForest::build(&trace.nodes);
    let is_lost = |at: &&u32| !trace.is_root(&trace.nodes[**at as usize]);
    match tree.dangling().iter().find(is_lost) {
        Some(at) => {
            let node = &trace.nodes[*at as usize];
            let got = format!("node {} inside {}, which does not exist", node.id, node.parent);
            refuse("a whole execution trace", got)
        }
        None => Ok(()),
    }
}

/// Joins the n-th collective of each rank into one collective of all ranks.
fn meet(
    execution: &mut Execution,
    traces: &[ExecutionTrace],
    joined: &[Vec<Joined>],
) -> Result<(), Error> {
    let Some(first) = joined.first() else { return Ok(()) };
    let program = &mut execution.program;
    for (trace, own) in traces.iter().zip(joined) {
        let is_other = |(a, b): (&Joined, &Joined)| a.1 != b.1;
        let differs = own.iter().zip(first).position(is_other);
        if differs.is_some() || own.len() != first.len() {
            let at = differs.unwrap_or_else(|| own.len().min(first.len()));
            let named = |all: &[Joined]| {
                let named = all.get(at).map(|one| format!("{:?}", one.1));
                format!("{} as collective {at}", named.unwrap_or_else(|| "none".to_owned()))
            };
            let expected = format!("{}, as on rank {}", named(first), traces[0].rank);
            return Err(Error::Execution { rank: trace.rank, expected, got: named(own) });
        }
    }
    // A group that is larger than the number of traces shows that the traces of some ranks are
    // missing.
    let is_partial = group_size(traces) as usize > traces.len();
    for (at, (_, name, _)) in first.iter().enumerate() {
        let Some(operation) = parse_operation(name) else { continue };
        execution.partial_collectives += usize::from(is_partial);
        // Ranks can send different numbers of bytes, and the largest number determines the
        // duration.
        let bytes = joined.iter().map(|own| own[at].2).max().unwrap_or_default();
        let parts: Vec<(usize, u32)> =
            joined.iter().enumerate().map(|(rank, own)| (rank, own[at].0)).collect();
        program.add_collective(Collective { operation, bytes, parts });
    }
    Ok(())
}

/// Returns the number of ranks of the largest process group, or of the traces if they are more.
#[must_use]
pub fn group_size(traces: &[ExecutionTrace]) -> u32 {
    let nodes = traces.iter().flat_map(|trace| &trace.nodes);
    let sizes = nodes.filter_map(|node| node.collective.as_ref()?.group_size);
    sizes.chain([traces.len() as u32]).max().unwrap_or(1)
}

/// Returns the name of the runtime call that launched most kernels of the calibration.
fn usual_call(calibration: &Calibration) -> String {
    most(calibration, |name, _| name.to_owned()).unwrap_or_else(|| "cudaLaunchKernel".to_owned())
}

/// Returns the number of the stream on which most kernels of the calibration ran.
fn usual_stream(calibration: &Calibration) -> i32 {
    most(calibration, |_, stream| stream).unwrap_or(7)
}

/// Returns the most frequent value of a property over all launched kernels.
fn most<T: Ord>(calibration: &Calibration, of: impl Fn(&str, i32) -> T) -> Option<T> {
    let mut counts: BTreeMap<T, u64> = BTreeMap::new();
    let variants = calibration.launches.inner.values().flat_map(BTreeMap::values).flatten();
    for variant in variants {
        for call in &variant.calls {
            for work in call.launches.iter().filter(|work| work.collective.is_none()) {
                *counts.entry(of(&call.name, work.stream)).or_default() += variant.count;
            }
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(what, _)| what)
}
