//! Work waiting per stream: `get_queue_length_summary`.

use serde::Serialize;

use super::{View, ViewRow};

/// The calls that put work on a stream, as far as that tool knows them.
const LAUNCHES: [&str; 12] = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemcpyAsync",
    "hipMemsetAsync",
    "hipMemcpyWithStream",
];

/// A row of `get_queue_length_summary`. Its mean, deviation and quantiles are left out: they
/// depend on the order of simultaneous events, which an unstable sort decides there, and are not
/// weighted by time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueSummary {
    pub rank: u32,
    pub stream: i32,
    /// `count`: launches and starts on the device.
    pub change_count: u64,
    /// `min`: how many were waiting at least; negative where a row starts before its call does.
    pub length_min: i64,
    /// `max`: how many were waiting at most.
    pub length_max: i64,
}

/// A launch or a start on the device: in this order where simultaneous.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum QueueChange {
    Launch,
    Start,
}

/// When the length of a stream's queue changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LengthChange {
    stream: i32,
    time_us: i64,
    step: QueueChange,
}

/// `get_queue_length_summary(ranks=all)`, by stream. Simultaneous events count in the order launch,
/// then start.
///
/// Where several calls share a correlation id that tool stops with an assertion; each counts here.
pub fn queue(views: &[View<'_>]) -> Vec<QueueSummary> {
    views.iter().flat_map(queue_of).collect()
}

fn queue_of(view: &View<'_>) -> Vec<QueueSummary> {
    let changes = changes(view);
    let of_stream = |changes: &[LengthChange]| {
        let mut length = 0;
        let lengths = changes.iter().map(|change| {
            length += match change.step {
                QueueChange::Launch => 1,
                QueueChange::Start => -1,
            };
            length
        });
        let (min, max) = lengths
            .fold((i64::MAX, i64::MIN), |(min, max), length| (min.min(length), max.max(length)));
        QueueSummary {
            rank: view.rank(),
            stream: changes[0].stream,
            change_count: changes.len() as u64,
            length_min: min,
            length_max: max,
        }
    };
    changes.chunk_by(|a, b| a.stream == b.stream).map(of_stream).collect()
}

/// By stream, then time.
fn changes(view: &View<'_>) -> Vec<LengthChange> {
    let id = |row: &ViewRow| view.trace.slices.correlation(row.row);
    let is_call =
        |row: &&ViewRow| view.is_linked(row.row) && LAUNCHES.contains(&view.trace.name(row.row));
    let mut calls: Vec<(u64, &ViewRow)> = view
        .host
        .iter()
        .chain(&view.device)
        .filter(is_call)
        .filter_map(|row| Some((id(row)?, row)))
        .collect();
    calls.sort_by_key(|(id, _)| *id);
    let mut changes = Vec::with_capacity(2 * calls.len());
    for row in &view.device {
        let Some(correlation) = id(row) else { continue };
        let from = calls.partition_point(|(id, _)| *id < correlation);
        let launches = calls[from..].iter().take_while(|(id, _)| *id == correlation);
        let mut add = |at: &ViewRow, step: QueueChange| {
            let change = LengthChange { stream: row.stream, time_us: at.start_us, step };
            changes.extend(std::iter::repeat_n(change, row.copies as usize));
        };
        let mut launches = launches.peekable();
        let is_launched = launches.peek().is_some();
        launches.for_each(|(_, call)| add(call, QueueChange::Launch));
        if is_launched {
            add(row, QueueChange::Start);
        }
    }
    changes.sort_unstable();
    changes
}
