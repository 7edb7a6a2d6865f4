//! Finds the times from which rows of a cut recording may be missing, one function for each kind of
//! evidence. A row counts as read or lost by its place in the file, which is also the order of row
//! numbers.

use std::collections::HashMap;

use trace::store::{Trace, TrackId};

use crate::facts::captures::Captures;
use crate::facts::links::Links;
use crate::facts::window;

/// Minimum share of device rows without a launch, in percent, from which the file order bounds the
/// covered part.
const ORPHAN_PCT: f64 = 1.0;

/// Returns the start of the last call that was read. Calls after that time may be missing.
pub(super) fn last_call(trace: &Trace) -> Option<i64> {
    let last = trace.rows().filter(|row| trace.kind(*row).is_call()).last();
    last.map(|row| trace.slices.start(row))
}

/// Returns the calls that launch device work, either by their own name or because most calls of
/// that name launched some.
pub(super) fn launches(trace: &Trace, links: &Links) -> Vec<u32> {
    let mut counts: HashMap<u32, (u32, u32)> = HashMap::new();
    let calls = || trace.rows().filter(|row| trace.kind(*row).is_call());
    let name = |row: u32| trace.slices.name[row as usize].0;
    for row in calls() {
        let count = counts.entry(name(row)).or_default();
        count.0 += 1;
        count.1 += u32::from(!links.work(row).is_empty());
    }
    let is_launch = |row: &u32| {
        let (all, working) = counts.get(&name(*row)).copied().unwrap_or_default();
        2 * working > all || window::is_launch(trace.name(*row))
    };
    calls().filter(is_launch).collect()
}

/// Returns the launches whose device row is missing although they should have one.
fn lost_launches(trace: &Trace, links: &Links) -> Vec<u32> {
    let id = |row: u32| trace.slices.correlation(row);
    let is_work = |row: &u32| trace.kind(*row).is_device_work();
    let mut arrived: Vec<u64> = trace.rows().filter(is_work).filter_map(id).collect();
    arrived.sort_unstable();
    // A runtime call and the driver call inside it share an id, but the device work is linked to
    // only one of them.
    let is_lost = |row: &u32| id(*row).is_none_or(|id| arrived.binary_search(&id).is_err());
    let captures = Captures::from_pairs(trace);
    let passed = Passed::new(trace, links);
    let launches = launches(trace, links).into_iter();
    launches
        .filter(is_lost)
        .filter(|row| !captures.contains(trace, *row) && !passed.contains(trace, *row))
        .collect()
}

/// Returns the start of the first launch whose device row is missing although it should have one.
pub(super) fn first_lost_launch(trace: &Trace, links: &Links) -> Option<i64> {
    let lost = lost_launches(trace, links);
    lost.into_iter().map(|row| trace.slices.start(row)).min()
}

/// Returns whether more launches lack device rows than the normal end of a recording explains.
pub(super) fn has_lost_launches(trace: &Trace, links: &Links, most_pct: f64) -> bool {
    let all = launches(trace, links).len() as f64;
    100.0 * lost_launches(trace, links).len() as f64 > most_pct * all
}

/// Returns whether every launch without device work was captured into a graph and so never ran.
/// `launches` holds pairs of correlation id and row, and `lost[i]` is true if launch `i` has no
/// device work.
pub(super) fn has_only_captured(trace: &Trace, launches: &[(u64, u32)], lost: &[bool]) -> bool {
    let captures = Captures::from_pairs(trace);
    let mut rows = launches.iter().zip(lost).filter(|(_, is_lost)| **is_lost);
    rows.all(|((_, row), _)| captures.contains(trace, *row))
}

/// For each thread, the time until which the device rows of its launches are known to be complete.
/// On each stream that the thread uses, a later launch has its device row. Rows of a stream stand
/// in launch order, so the row of an earlier launch would have been read too.
struct Passed(HashMap<TrackId, i64>);

impl Passed {
    fn new(trace: &Trace, links: &Links) -> Self {
        let mut ordered: HashMap<(i32, i32), (i64, bool)> = HashMap::new();
        let mut last: HashMap<(TrackId, (i32, i32)), i64> = HashMap::new();
        for row in trace.rows().filter(|row| trace.kind(*row).is_device_work()) {
            let stream = (trace.device(row), trace.stream(row));
            let start = trace.slices.start(row);
            let (latest, is_ordered) = ordered.entry(stream).or_insert((start, true));
            *is_ordered &= *latest <= start;
            *latest = start.max(*latest);
            if let Some(call) = links.call(row) {
                let thread = trace.slices.track[call as usize];
                let launched = last.entry((thread, stream)).or_insert(i64::MIN);
                *launched = (*launched).max(trace.slices.start(call));
            }
        }
        let mut passed: HashMap<TrackId, i64> = HashMap::new();
        for ((thread, stream), launched) in last {
            // If a stream's rows are out of order, a later row does not prove that earlier ones
            // were read.
            let launched = if ordered[&stream].1 { launched } else { i64::MIN };
            // A launch is known to be complete only if it is complete on every stream that its
            // thread uses.
            let until = passed.entry(thread).or_insert(i64::MAX);
            *until = launched.min(*until);
        }
        Self(passed)
    }

    fn contains(&self, trace: &Trace, call: u32) -> bool {
        let until = self.0.get(&trace.slices.track[call as usize]);
        until.is_some_and(|until| trace.slices.start(call) < *until)
    }
}

/// Returns the start of the first graph launch of which some device rows may not have been read.
/// Rows may be unread if no row of a later launch follows in the file, or if the file groups its
/// rows by stream.
pub(super) fn first_open_graph(trace: &Trace, links: &Links) -> Option<i64> {
    let start = |row: u32| trace.slices.start(row);
    let is_graph = |row: &u32| {
        trace.kind(*row).is_call()
            && (links.work(*row).len() > 1 || trace.name(*row).contains("GraphLaunch"))
    };
    let graphs: Vec<u32> = trace.rows().filter(is_graph).collect();
    if graphs.is_empty() {
        return None;
    }
    let device: Vec<u32> = trace.rows().filter(|row| trace.kind(*row).is_device_work()).collect();
    if is_by_stream(trace, &device) {
        return graphs.into_iter().map(start).min();
    }
    // For each device row, the latest launch among the row itself and all rows after it in the
    // file.
    let mut latest = vec![i64::MIN; device.len() + 1];
    for (at, row) in device.iter().enumerate().rev() {
        let launched = links.call(*row).map_or(i64::MIN, start);
        latest[at] = launched.max(latest[at + 1]);
    }
    let is_open = |graph: &u32| {
        let last = links.work(*graph).iter().max();
        let behind = last.map_or(0, |last| device.partition_point(|row| row <= last));
        last.is_none() || latest[behind] <= start(*graph)
    };
    graphs.into_iter().filter(is_open).map(start).min()
}

/// Returns whether the file contains the rows of each stream as one block, stream after stream.
fn is_by_stream(trace: &Trace, device: &[u32]) -> bool {
    let stream = |row: &u32| (trace.device(*row), trace.stream(*row));
    let mut streams: Vec<(i32, i32)> = device.iter().map(stream).collect();
    streams.dedup();
    let runs = streams.len();
    streams.sort_unstable();
    streams.dedup();
    runs > 1 && runs == streams.len()
}

/// Bounds the covered part by file order, for recordings with many device rows without a launch.
/// Apart from rows out of order, no missing row starts before the last row that was read.
pub(super) fn last_orphan_bound(trace: &Trace, links: &Links) -> Option<i64> {
    let device: Vec<u32> = trace.rows().filter(|row| trace.kind(*row).is_device_work()).collect();
    let first_call = trace.rows().filter(|row| trace.kind(*row).is_call());
    let first_call = first_call.map(|row| trace.slices.start(row)).min()?;
    // Work that was queued before the recording began has no launch in any recording.
    let is_orphan =
        |row: &&u32| links.call(**row).is_none() && trace.slices.start(**row) > first_call;
    let orphans = device.iter().filter(is_orphan).count();
    if (100 * orphans) as f64 <= ORPHAN_PCT * device.len() as f64 {
        return None;
    }
    let (mut latest, mut disorder) = (i64::MIN, 0);
    for row in &device {
        let start = trace.slices.start(*row);
        latest = latest.max(start);
        disorder = disorder.max(latest - start);
    }
    let last = device.last()?;
    Some(trace.slices.start(*last).saturating_sub(disorder))
}
