//! Finds synchronization points, which are calls that returned only after certain work had ended.
//! Each synchronization point bounds the skew of a device's clock.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::{EventKind, Trace, TrackId};

use crate::facts::calls::{self, CallKind, Direction};
use crate::facts::scope::Scope;

/// Minimum duration of a call that certainly waited for a device.
const BLOCKED_NS: i64 = 50_000;
/// A call that waited for work returns at most this long after the work ended.
const RETURN_NS: i64 = 20_000;

/// Device work whose launch was recorded, for each device and stream, sorted by start.
pub(super) struct Streams(BTreeMap<(i32, i32), Vec<LaunchedWork>>);

/// A piece of device work whose launch was recorded.
#[derive(Clone, Copy)]
pub(super) struct LaunchedWork {
    /// Start of the latest launch on this stream, up to and including the launch of this work, so
    /// it never decreases within a stream.
    at: i64,
    pub row: u32,
    pub call: u32,
}

impl Streams {
    /// Collects the device work of a scope, without work whose launch was not recorded.
    pub fn new(scope: &Scope<'_>) -> Self {
        let trace = scope.trace;
        let mut streams: BTreeMap<(i32, i32), Vec<LaunchedWork>> = BTreeMap::new();
        for &row in &scope.device_rows {
            let Some(call) = scope.links().call(row) else { continue };
            let works = streams.entry((trace.device(row), trace.stream(row))).or_default();
            let before = works.last().map_or(i64::MIN, |last| last.at);
            works.push(LaunchedWork { at: trace.slices.start(call).max(before), row, call });
        }
        Self(streams)
    }

    /// Iterates over the work of all streams, sorted by device and stream, and by start within a
    /// stream.
    pub fn all(&self) -> impl Iterator<Item = &LaunchedWork> {
        self.0.values().flatten()
    }

    /// Iterates over the last work that was launched on each stream before a given time.
    fn last(&self, before: i64) -> impl Iterator<Item = ((i32, i32), u32)> {
        self.0.iter().filter_map(move |(stream, works)| {
            let earlier = works.partition_point(|work| work.at < before);
            earlier.checked_sub(1).map(|at| (*stream, works[at].row))
        })
    }

    fn has_one_device(&self) -> bool {
        let devices: BTreeSet<i32> = self.0.keys().map(|(device, _)| *device).collect();
        devices.len() == 1
    }
}

/// Returns the calls that certainly blocked, each with the work that it waited for. `ahead` is the
/// largest possible skew of each device.
pub(super) fn blocking(
    scope: &Scope<'_>,
    streams: &Streams,
    ahead: &BTreeMap<i32, i64>,
) -> Vec<(u32, u32)> {
    let trace = scope.trace;
    let names = calls::names(trace);
    let does = |row: u32| names[trace.slices.name[row as usize].0 as usize];
    let recorded = RecordedWaits::new(trace, does);
    let mut sync_points = SyncPoints { scope, streams, ahead, recorded };
    let mut found = Vec::new();
    for call in trace.rows() {
        if !trace.kind(call).is_call() || !scope.starts_inside(call) {
            continue;
        }
        let does = does(call);
        match does {
            CallKind::Plain | CallKind::BlockingCopy => {
                let own = scope.links().work(call).iter();
                let blocking = own.filter(|row| blocks(trace, does, call, **row));
                found.extend(blocking.map(|work| (call, *work)));
            }
            CallKind::StreamSync | CallKind::DeviceSync => {
                found.extend(sync_points.find_stream_work(call, does).map(|work| (call, work)));
            }
            CallKind::EventSync => {
                found.extend(sync_points.find_event_work(call).map(|work| (call, work)));
            }
            // The profiler does not always name the event of a wait, so the last event of each
            // thread is remembered.
            CallKind::EventRecord => {
                let track = trace.slices.track[call as usize];
                sync_points.recorded.last.insert(track, trace.slices.start(call));
            }
            CallKind::Free | CallKind::StreamWait | CallKind::Execute => {}
        }
    }
    found
}

/// Waits and recorded events as the profiler wrote them into the trace.
struct RecordedWaits {
    /// Stream of the awaited event and the call that recorded it, by correlation id of the waiting
    /// call.
    waits: BTreeMap<u64, (Option<i64>, Option<u64>)>,
    /// Time at which an event was recorded, by correlation id of the recording call.
    events: BTreeMap<u64, i64>,
    /// Time of the latest event that each thread has recorded so far.
    last: BTreeMap<TrackId, i64>,
}

impl RecordedWaits {
    fn new(trace: &Trace, does: impl Fn(u32) -> CallKind) -> Self {
        let mut recorded =
            Self { waits: BTreeMap::new(), events: BTreeMap::new(), last: BTreeMap::new() };
        if trace.slices.sync.is_empty() {
            return recorded;
        }
        for row in trace.rows() {
            let Some(id) = trace.slices.correlation(row) else { continue };
            if trace.kind(row) == EventKind::Sync {
                let wait = trace.slices.sync.get(row);
                let named = wait.and_then(|wait| wait.stream);
                let own = || trace.slices.stream(row).map(i64::from);
                let stream = named.or_else(own).filter(|stream| *stream >= 0);
                recorded.waits.insert(id, (stream, wait.and_then(|wait| wait.record_correlation)));
            } else if trace.kind(row).is_call() && does(row) == CallKind::EventRecord {
                recorded.events.insert(id, trace.slices.start(row));
            }
        }
        recorded
    }
}

/// Inputs of the search for synchronization points, which are calls that return only after certain
/// device work.
struct SyncPoints<'a, 'b> {
    scope: &'a Scope<'b>,
    streams: &'a Streams,
    ahead: &'a BTreeMap<i32, i64>,
    recorded: RecordedWaits,
}

impl SyncPoints<'_, '_> {
    /// Finds the work that a stream or device synchronization waited for. The answer must be
    /// certain: the call names its stream, there is only one stream, or the times leave only one
    /// candidate.
    fn find_stream_work(&self, call: u32, does: CallKind) -> Option<u32> {
        let slices = &self.scope.trace.slices;
        let named = slices.correlation(call).and_then(|id| self.recorded.waits.get(&id)?.0);
        let launched = self.streams.last(slices.start(call));
        let meant = launched.filter(|((_, stream), _)| match (does, named) {
            (CallKind::DeviceSync, _) => self.streams.has_one_device(),
            (_, Some(named)) => i64::from(*stream) == named && self.streams.has_one_device(),
            (_, None) => self.streams.0.len() == 1,
        });
        let last = meant.map(|(_, work)| work).max_by_key(|work| slices.end(*work));
        let by_times = || self.by_times(call, slices.start(call));
        last.or_else(|| named.is_none().then(by_times).flatten())
    }

    /// Finds the work that an event synchronization waited for, which is the last work on the
    /// event's stream when the event was recorded.
    fn find_event_work(&self, call: u32) -> Option<u32> {
        let slices = &self.scope.trace.slices;
        let wait = slices.correlation(call).and_then(|id| self.recorded.waits.get(&id));
        if let Some((Some(stream), Some(record))) = wait {
            let before = *self.recorded.events.get(record)?;
            let meant = self.streams.last(before).find(|((_, id), _)| i64::from(*id) == *stream);
            return meant.map(|(_, work)| work).filter(|_| self.streams.has_one_device());
        }
        let track = slices.track[call as usize];
        let found = self.by_times(call, *self.recorded.last.get(&track)?)?;
        // The awaited event may have been recorded earlier. If other work ended just before the
        // call returned, the call may have waited for that work, so the answer is uncertain.
        let (from, to) = (slices.end(call) - RETURN_NS, slices.end(call));
        let mut ends = self.streams.all().map(|work| slices.end(work.row));
        (!ends.any(|end| (from..=to).contains(&end))).then_some(found)
    }

    /// Finds the awaited work from times alone. Only one piece of work may qualify. No other
    /// candidate may end shortly before the call returned, and by the device's clock this one may
    /// end after the return by no more than the clock is ahead.
    fn by_times(&self, call: u32, before: i64) -> Option<u32> {
        let slices = &self.scope.trace.slices;
        let (start, end) = (slices.start(call), slices.end(call));
        if end - start < BLOCKED_NS {
            return None;
        }
        let mut behind = None;
        for ((device, _), work) in self.streams.last(before) {
            let late = slices.end(work) - end;
            if (-RETURN_NS..=0).contains(&late) {
                return None;
            }
            if late > 0 && late <= self.ahead.get(&device).copied().unwrap_or(0) {
                if behind.is_some() {
                    return None;
                }
                behind = Some(work);
            }
        }
        behind
    }
}

/// Returns whether a call returns only when its copy has ended. In CUDA, a pageable copy to a
/// device returns once its bytes are staged, and a copy within a device returns at once.
fn blocks(trace: &Trace, does: CallKind, call: u32, row: u32) -> bool {
    if trace.kind(row) != EventKind::Memcpy {
        return false;
    }
    let name = trace.name(row);
    let direction = calls::direction(name);
    let is_hip = trace.name(call).starts_with("hip");
    match does {
        CallKind::BlockingCopy => {
            direction == Direction::ToHost || (direction == Direction::ToDevice && is_hip)
        }
        _ => direction == Direction::ToHost && calls::is_pageable(name),
    }
}
