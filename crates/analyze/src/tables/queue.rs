//! Measures the queue of each stream, which is the launched work that has not started, weighted by
//! time.
//!
//! Work waits in the queue from the start of its launch call to its own start. The work of a graph
//! counts once, until its first row starts.

use std::collections::BTreeMap;

use schema::TableRow;
use serde::Serialize;

use crate::facts::interval::Interval;
use crate::facts::scope::Scope;
use crate::percent::percent;

/// Queue length at which the next launch blocks its thread.
///
/// # Source
/// The value is the depth of CUDA's launch queue that Holistic Trace Analysis assumes.
pub const FULL: u32 = 1024;

/// Length and waiting times of the queue of one stream in the window.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct StreamQueue {
    pub rank: u32,
    pub device: i32,
    pub stream: i32,
    /// Number of launches whose work waited at any time in the window.
    pub launch_count: u64,
    /// Number of launches whose work starts before the call, because clocks disagree, so that it
    /// never waits.
    pub before_call_count: u64,
    /// Mean queue length over the time of the window, rounded to four decimals.
    pub length_mean: f64,
    pub length_min: u32,
    /// Queue length that is not exceeded in half of the window.
    pub length_p50: u32,
    /// Queue length that is not exceeded in 95 % of the window.
    pub length_p95: u32,
    pub length_max: u32,
    /// Total waiting time of the work of all launches in the window.
    pub waiting_ns: i64,
    /// Time in which the queue contains at least [`FULL`] launches.
    pub full_ns: i64,
    pub full_pct: Option<f64>,
}

/// A point at which the length of a queue changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TableRow)]
pub struct QueuePoint {
    pub rank: u32,
    pub device: i32,
    pub stream: i32,
    /// Time of the change, in absolute nanoseconds.
    pub time_ns: i64,
    /// Queue length from this point to the next one.
    pub length: u32,
}

/// Measures the queues of all streams that have launched work in the window, sorted by device and
/// stream.
///
/// # Cost
/// The cost is `O(n log n)` in the launches of the trace.
pub fn measure_queues(scope: &Scope<'_>) -> Vec<StreamQueue> {
    each(scope).map(|(key, stream)| stream.queue(scope, key)).collect()
}

/// Returns the queue lengths that [`measure_queues`] summarizes, with one point at the start of the
/// window and one at each change. The points are sorted by device, stream and time.
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

/// Waiting times of the work of one stream, from its launch to its start.
#[derive(Default)]
struct QueuedStream {
    /// Non-empty spans from the start of the call to the start of the work, clipped to the window.
    waits: Vec<Interval>,
    before_call_count: u64,
}

/// Iterates over the streams, each with those of its waits that overlap the window.
fn each(scope: &Scope<'_>) -> impl Iterator<Item = (StreamKey, QueuedStream)> {
    let trace = scope.trace;
    let (start, end) = (scope.window.start, scope.window.end);
    let mut streams = BTreeMap::<StreamKey, QueuedStream>::new();
    // Go from each call to its work, so that the work of a graph counts only once.
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

/// Cuts the window into consecutive stretches of constant queue length. Adjacent stretches always
/// differ in length.
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
        // By Little's law, the mean queue length is the total waiting time divided by the length of
        // the window.
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

/// Returns the smallest queue length that is not exceeded in `percent` percent of the window.
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
