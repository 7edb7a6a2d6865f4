//! Measures the queue of each stream: launched work that has not started, weighted by time.
//!
//! Work waits from the start of its call to its own start; a graph's work counts once, until its
//! first row starts.

use std::collections::BTreeMap;

use schema::TableRow;
use serde::Serialize;

use crate::facts::interval::Interval;
use crate::facts::scope::Scope;
use crate::percent::percent;

/// Queue length at which the next launch blocks its thread.
///
/// # Source
/// The depth of CUDA's launch queue, as Holistic Trace Analysis takes it.
pub const FULL: u32 = 1024;

/// The queue of a stream in the window.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct StreamQueue {
    pub rank: u32,
    pub device: i32,
    pub stream: i32,
    /// Launches that waited at any time in the window.
    pub launch_count: u64,
    /// Number of works that start before their call, because clocks disagree, and so never wait.
    pub before_call_count: u64,
    /// Mean length over the time of the window, four decimals.
    pub length_mean: f64,
    pub length_min: u32,
    /// Length that is not exceeded in half of the window.
    pub length_p50: u32,
    /// Length that is not exceeded in 95 % of the window.
    pub length_p95: u32,
    pub length_max: u32,
    /// Total waiting time of all launches in the window.
    pub waiting_ns: i64,
    /// Time in which the queue holds [`FULL`] or more.
    pub full_ns: i64,
    pub full_pct: Option<f64>,
}

/// A change of a queue's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TableRow)]
pub struct QueuePoint {
    pub rank: u32,
    pub device: i32,
    pub stream: i32,
    /// Absolute time in nanoseconds.
    pub time_ns: i64,
    /// Length from here to the next point.
    pub length: u32,
}

/// Measures the queues of all streams with launched work in the window, by device and stream.
///
/// # Cost
/// `O(n log n)` in the launches of the trace.
pub fn measure_queues(scope: &Scope<'_>) -> Vec<StreamQueue> {
    each(scope).map(|(key, stream)| stream.queue(scope, key)).collect()
}

/// Returns the lengths that [`measure_queues`] summarizes: one point at the start of the window and
/// one at each change, by device, stream and time.
pub fn series(scope: &Scope<'_>) -> Vec<QueuePoint> {
    let rank = scope.trace.rank;
    let points = |((device, stream), waiting): (StreamKey, QueuedStream)| {
        let levels = levels(waiting.waits, (scope.window.start, scope.window.end));
        levels.into_iter().map(move |((time_ns, _), length)| QueuePoint {
            rank,
            device,
            stream,
            time_ns,
            length,
        })
    };
    each(scope).flat_map(points).collect()
}

/// Key of a stream: its device and its number.
type StreamKey = (i32, i32);

/// Waiting times of one stream's work between its launch and its start.
#[derive(Default)]
struct QueuedStream {
    /// Non-empty spans from call to work, clipped to the window.
    waits: Vec<Interval>,
    before_call_count: u64,
}

/// Iterates over the streams, with their waits that overlap the window.
fn each(scope: &Scope<'_>) -> impl Iterator<Item = (StreamKey, QueuedStream)> {
    let trace = scope.trace;
    let (start, end) = (scope.window.start, scope.window.end);
    let mut streams = BTreeMap::<StreamKey, QueuedStream>::new();
    // Follow calls to their work, so that the work of a graph counts once.
    for call in trace.rows().filter(|row| trace.kind(*row).is_call()) {
        let work = scope.links().work(call).iter();
        let Some(row) = work.min_by_key(|row| (trace.slices.start(**row), **row)) else { continue };
        let (launched, began) = (trace.slices.start(call), trace.slices.start(*row));
        let is_over = began < start || (began == start && launched < start);
        if is_over || launched >= end {
            continue;
        }
        let stream = streams.entry((trace.device(*row), trace.stream(*row))).or_default();
        if launched < began {
            stream.waits.push((launched.max(start), began.min(end)));
        } else if began < launched {
            stream.before_call_count += 1;
        }
    }
    streams.into_iter()
}

/// Cuts the window into stretches of constant length, in order. Neighbors differ.
fn levels(waits: Vec<Interval>, (start, end): Interval) -> Vec<(Interval, u32)> {
    let (mut begins, mut ends): (Vec<i64>, Vec<i64>) = waits.into_iter().unzip();
    begins.sort_unstable();
    ends.sort_unstable();
    let mut levels: Vec<(Interval, u32)> = Vec::new();
    let (mut begun, mut ended, mut since) = (0, 0, start);
    while since < end {
        begun += begins[begun..].iter().take_while(|time| **time <= since).count();
        ended += ends[ended..].iter().take_while(|time| **time <= since).count();
        let next = begins.get(begun).into_iter().chain(ends.get(ended)).min();
        let until = next.map_or(end, |next| end.min(*next));
        let length = (begun - ended) as u32;
        match levels.last_mut() {
            Some(last) if last.1 == length => last.0.1 = until,
            _ => levels.push(((since, until), length)),
        }
        since = until;
    }
    levels
}

impl QueuedStream {
    fn queue(self, scope: &Scope<'_>, (device, stream): StreamKey) -> StreamQueue {
        let window_ns = scope.window.length();
        let launch_count = self.waits.len() as u64;
        let waiting_ns: i64 = self.waits.iter().map(|(from, to)| to - from).sum();
        let mut time = BTreeMap::<u32, i64>::new();
        for ((from, to), length) in levels(self.waits, (scope.window.start, scope.window.end)) {
            *time.entry(length).or_default() += to - from;
        }
        let mean = waiting_ns as f64 / window_ns.max(1) as f64;
        let full_ns = time.range(FULL..).map(|(_, ns)| ns).sum();
        StreamQueue {
            rank: scope.trace.rank,
            device,
            stream,
            launch_count,
            before_call_count: self.before_call_count,
            length_mean: (mean * 1e4).round() / 1e4,
            length_min: time.keys().next().copied().unwrap_or_default(),
            length_p50: quantile(&time, window_ns, 50),
            length_p95: quantile(&time, window_ns, 95),
            length_max: time.keys().next_back().copied().unwrap_or_default(),
            waiting_ns,
            full_ns,
            full_pct: percent(full_ns, window_ns),
        }
    }
}

/// Returns the smallest length that is not exceeded for `percent` percent of the window.
fn quantile(time: &BTreeMap<u32, i64>, window_ns: i64, percent: i128) -> u32 {
    let mut below = 0;
    let reached = time.iter().find(|(_, ns)| {
        below += **ns;
        i128::from(below) * 100 >= i128::from(window_ns) * percent
    });
    reached.map(|(length, _)| *length).unwrap_or_default()
}

#[cfg(test)]
mod tests;
