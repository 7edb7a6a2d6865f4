//! Finds what the host and the streams waited for, as the profiler recorded it, or else inferred
//! from the names, order and times of calls.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::{EventKind, TrackKey};

use super::device::DeviceWork;
use super::label::WaitEvidence;
use super::segment::ThreadSegment;
use crate::facts::calls::{self, CallKind, Direction};
use crate::facts::scope::Scope;
use crate::facts::tree;

/// The waits in a rank's window that were recorded, and the data from which others are inferred.
pub(super) struct Waits<'a, 'b> {
    scope: &'a Scope<'b>,
    /// Kind of call, by name.
    calls: Vec<CallKind>,
    /// Whether the rows of a name load input, by name.
    loading: Vec<bool>,
    /// Rows of category `cuda_sync` with their correlation ids, sorted by id.
    syncs: Vec<(u64, u32)>,
    /// Calls that record events with their correlation ids, sorted by id.
    records: Vec<(u64, u32)>,
    /// Device and stream number of each stream.
    streams: Vec<(i32, i32)>,
    /// Devices that each track may use: those to which its thread launched, or else those of its
    /// process, or else all.
    used: Vec<BTreeSet<i32>>,
}

/// State of a thread after the calls processed so far, which decides what later work waits for.
#[derive(Debug, Default)]
pub(super) struct ThreadOrder {
    /// Time at which the thread recorded its last event.
    recorded: Option<i64>,
    /// Waits of streams for events that may concern work still to be launched.
    pending: Vec<PendingWait>,
}

/// A wait of a stream whose stream is not named. Such a wait concerns the next launch on the
/// waiting stream.
#[derive(Debug)]
struct PendingWait {
    /// Time of the waiting call. Work that is launched later is not awaited.
    before: i64,
    /// Streams on which work was launched since the wait.
    seen: Vec<usize>,
}

/// Maximum number of unnamed waits that are kept per thread.
const PENDING: usize = 8;

impl<'a, 'b> Waits<'a, 'b> {
    /// Collects the recorded waits and event records of a rank, each with its correlation id.
    pub fn new(scope: &'a Scope<'b>, device: &DeviceWork) -> Self {
        let trace = scope.trace;
        let calls = calls::names(trace);
        let streams = device.names.clone();
        let (syncs, records, used) = (Vec::new(), Vec::new(), used(scope, &streams));
        let loading = trace.strings.iter().map(tree::is_data_loading).collect();
        let mut waits = Self { scope, calls, loading, syncs, records, streams, used };
        // Most traces have no rows of waits, so the pass over all rows is skipped for them.
        if trace.slices.sync.is_empty() {
            return waits;
        }
        for row in trace.rows() {
            let Some(correlation) = trace.slices.correlation(row) else { continue };
            match trace.kind(row) {
                EventKind::Sync => waits.syncs.push((correlation, row)),
                EventKind::Runtime | EventKind::Driver
                    if waits.call(row) == CallKind::EventRecord =>
                {
                    waits.records.push((correlation, row));
                }
                _ => {}
            }
        }
        waits.syncs.sort_unstable();
        waits.records.sort_unstable();
        waits
    }

    /// Returns the times of the calls that made a stream wait.
    pub fn stream_waits(&self) -> Vec<i64> {
        let trace = self.scope.trace;
        let is_wait =
            |row: &u32| trace.kind(*row).is_call() && self.call(*row) == CallKind::StreamWait;
        let mut times: Vec<i64> =
            trace.rows().filter(is_wait).map(|row| trace.slices.start(row)).collect();
        times.sort_unstable();
        times
    }

    /// Returns whether a row loads input.
    pub fn is_loading(&self, row: u32) -> bool {
        self.loading[self.scope.trace.slices.name[row as usize].0 as usize]
    }

    /// Returns the kind of a call, judged by its name.
    pub fn call(&self, row: u32) -> CallKind {
        self.calls[self.scope.trace.slices.name[row as usize].0 as usize]
    }

    /// Returns the device work that a call waited for before it returned.
    pub fn find_awaited_work(
        &self,
        segment: &ThreadSegment,
        call: CallKind,
        launched: &[u32],
        device: &DeviceWork,
        evidence: &mut WaitEvidence,
    ) -> Vec<u32> {
        let mut awaited = match call {
            CallKind::Plain | CallKind::BlockingCopy => self.copies(call, launched, device),
            CallKind::EventRecord | CallKind::StreamWait => return Vec::new(),
            _ => match self.recorded(segment.row) {
                Some(sync) => {
                    evidence.host_waits_recorded += 1;
                    return self.find_recorded_work(segment, sync, call, device);
                }
                None => self.inferred(segment, call, device),
            },
        };
        awaited.retain(|work| device.works[*work as usize].end <= segment.end);
        let end = |work: &u32| device.works[*work as usize].end;
        // If all awaited work had ended before the call began, the call did not wait.
        let has_waited = awaited.iter().any(|work| end(work) > segment.start);
        evidence.host_waits_inferred += u64::from(has_waited);
        awaited
    }

    /// Returns the work that an operator of rowmill's own trainer waited for. The launching thread
    /// takes part in the pool's work, so it waited for every kernel that it launched and that ended
    /// inside the operator.
    pub fn find_pool_work(
        &self,
        segment: &ThreadSegment,
        launched: &[u32],
        device: &DeviceWork,
    ) -> Vec<u32> {
        if launched.is_empty() || !self.scope.trace.name(segment.row).starts_with("rowmill::") {
            return Vec::new();
        }
        let works = launched.iter().filter_map(|row| device.work(*row));
        let is_inside = |work: &u32| {
            let work = &device.works[*work as usize];
            segment.start <= work.end && work.end <= segment.end
        };
        works.filter(is_inside).collect()
    }

    /// Returns the copies that block their call, which are copies to or from pageable memory and
    /// copies from the device.
    fn copies(&self, call: CallKind, launched: &[u32], device: &DeviceWork) -> Vec<u32> {
        let trace = self.scope.trace;
        let blocks = |work: &u32| {
            let row = device.works[*work as usize].row;
            let name = trace.name(row);
            trace.kind(row) == EventKind::Memcpy
                && (call == CallKind::BlockingCopy
                    || calls::is_pageable(name)
                    || calls::direction(name) == Direction::ToHost)
        };
        launched.iter().copied().filter(blocks).collect()
    }

    /// Returns the row in which the profiler recorded the wait of a call.
    fn recorded(&self, call: u32) -> Option<u32> {
        let correlation = self.scope.trace.slices.correlation(call)?;
        let first = self.syncs.partition_point(|(id, _)| *id < correlation);
        let same = self.syncs[first..].iter().take_while(|(id, _)| *id == correlation);
        // Correlation ids are unique only within a process.
        let slices = &self.scope.trace.slices;
        let apart = |row: u32| slices.start(row).abs_diff(slices.start(call));
        same.map(|(_, row)| *row).min_by_key(|row| apart(*row))
    }

    /// Returns the device work for which the host waited in a recorded wait.
    fn find_recorded_work(
        &self,
        segment: &ThreadSegment,
        sync: u32,
        call: CallKind,
        device: &DeviceWork,
    ) -> Vec<u32> {
        let slices = &self.scope.trace.slices;
        let wait = slices.sync.get(sync).copied().unwrap_or_default();
        let record = wait.record_correlation.and_then(|id| self.record(id));
        // An event wait covers only the work launched before the event was recorded.
        let before = record.unwrap_or(segment.start);
        let own = slices.stream(sync).map(i64::from);
        let stream = wait.stream.filter(|id| *id >= 0).or(own.filter(|id| *id >= 0));
        let device_id = self.device_of(sync);
        let is_stream_meant = |at: &usize| {
            let (on, number) = self.streams[*at];
            let is_named = match (call, stream) {
                (CallKind::StreamSync | CallKind::EventSync, Some(id)) => i64::from(number) == id,
                _ => true,
            };
            is_named && device_id.map_or_else(|| self.reaches(segment.row, *at), |id| id == on)
        };
        let streams = (0..device.streams.len()).filter(is_stream_meant);
        let works = streams.filter_map(|at| device.last_launched(at, before));
        let ended: Vec<u32> =
            works.filter(|work| device.works[*work as usize].end <= segment.end).collect();
        let is_one = call != CallKind::DeviceSync && stream.is_none();
        if is_one { latest(ended, device) } else { ended }
    }

    /// Infers the device work for which the host waited, from the name of the call and from the
    /// work that ended before it returned.
    fn inferred(&self, segment: &ThreadSegment, call: CallKind, device: &DeviceWork) -> Vec<u32> {
        let streams = || self.reached(segment.row);
        let end = |work: u32| device.works[work as usize].end;
        let last = |at: usize| device.last_launched(at, segment.start);
        let lasts = || streams().filter_map(last);
        let ended = || lasts().filter(|work| end(*work) <= segment.end);
        match call {
            CallKind::DeviceSync => ended().collect(),
            CallKind::Free if lasts().all(|work| end(work) <= segment.end) => lasts().collect(),
            CallKind::Free => Vec::new(),
            CallKind::StreamSync => latest(ended().collect(), device),
            // Another thread launches the work, and it does so after this call has begun.
            CallKind::Execute => {
                let ended = |at: usize| self.last_ended(at, device, segment.end);
                latest(streams().filter_map(ended).collect(), device)
            }
            // The awaited event may have been recorded before the last launch.
            _ => {
                let until = |at: usize, last: u32| {
                    let works = &device.works[device.streams[at].start..=last as usize];
                    let done = works.partition_point(|work| work.end <= segment.end);
                    (done > 0).then(|| (device.streams[at].start + done - 1) as u32)
                };
                let each = streams().filter_map(|at| until(at, last(at)?));
                latest(each.collect(), device)
            }
        }
    }

    /// Returns the last work of a stream that ended before a given time.
    fn last_ended(&self, stream: usize, device: &DeviceWork, before: i64) -> Option<u32> {
        let range = device.streams[stream].clone();
        let done = device.works[range.clone()].partition_point(|work| work.end <= before);
        (done > 0).then(|| (range.start + done - 1) as u32)
    }

    /// Returns the time at which the call with a given correlation id recorded its event.
    fn record(&self, correlation: u64) -> Option<i64> {
        let at = self.records.binary_search_by_key(&correlation, |(id, _)| *id).ok()?;
        Some(self.scope.trace.slices.start(self.records[at].1))
    }

    /// Records the effect of a call on streams, and infers for which work of other streams the
    /// launched work waited.
    pub fn note(
        &self,
        order: &mut ThreadOrder,
        segment: &ThreadSegment,
        call: CallKind,
        launched: &[u32],
        device: &mut DeviceWork,
        evidence: &mut WaitEvidence,
    ) {
        match call {
            CallKind::EventRecord => order.recorded = Some(segment.start),
            CallKind::StreamWait => match self.recorded(segment.row) {
                Some(sync) => {
                    if let Some(wait) = self.find_stream_wait(segment, sync, device) {
                        device.stream_waits.push(wait);
                        evidence.stream_waits_recorded += 1;
                    }
                }
                None => {
                    let before = order.recorded.unwrap_or(segment.start);
                    order.pending.push(PendingWait { before, seen: Vec::new() });
                    if order.pending.len() > PENDING {
                        order.pending.remove(0);
                    }
                }
            },
            _ => {
                let Some(&first) = launched.first() else { return };
                let stream = device.streams.partition_point(|range| range.end <= first as usize);
                let mut awaited = Vec::new();
                // An unnamed wait holds up the next launch on each stream, so it is dropped once
                // every stream was seen.
                order.pending.retain_mut(|wait| {
                    if !wait.seen.contains(&stream) {
                        wait.seen.push(stream);
                        awaited.extend(self.other(device, segment.row, first, wait.before));
                    }
                    wait.seen.len() < device.streams.len()
                });
                for source in latest(awaited, device) {
                    device.stream_waits.push((first, source));
                    evidence.stream_waits_inferred += 1;
                }
            }
        }
    }

    /// Returns the two pieces of work that a recorded stream wait joins: the next one on the
    /// waiting stream, and the last one that was launched on the awaited stream before the event
    /// was recorded.
    fn find_stream_wait(
        &self,
        segment: &ThreadSegment,
        sync: u32,
        device: &DeviceWork,
    ) -> Option<(u32, u32)> {
        let slices = &self.scope.trace.slices;
        let wait = slices.sync.get(sync)?;
        let device_id = self.device_of(sync);
        let place = |id: i64| {
            let is_meant = |(on, number): &(i32, i32)| {
                i64::from(*number) == id && device_id.is_none_or(|id| id == *on)
            };
            self.streams.iter().position(is_meant)
        };
        let waiting = place(i64::from(slices.stream(sync)?))?;
        let awaited = place(wait.stream?)?;
        let record = wait.record_correlation.and_then(|id| self.record(id));
        let source = device.last_launched(awaited, record.unwrap_or(segment.start))?;
        Some((device.first_launched(waiting, segment.start)?, source))
    }

    /// Returns whether earlier work held up a copy that the host waited for. If so, it adds the
    /// copy's wait for the work that ended last. The earlier work must have been launched before
    /// the call, and must have ended before the copy began.
    pub fn hold_up(
        &self,
        segment: &ThreadSegment,
        copy: u32,
        device: &mut DeviceWork,
        evidence: &mut WaitEvidence,
    ) -> bool {
        let start = device.works[copy as usize].start;
        let streams = self.reached(segment.row);
        let before = streams.filter_map(|at| device.last_launched(at, segment.start));
        let end = |work: &u32| device.works[*work as usize].end;
        let ended = before.filter(|work| *work != copy && end(work) <= start);
        let Some(last) = ended.max_by_key(end).filter(|work| end(work) > segment.start) else {
            return false;
        };
        device.stream_waits.push((copy, last));
        evidence.stream_waits_inferred += 1;
        true
    }

    /// Among the last work launched on each other stream, returns the work that ended last before a
    /// given work began.
    fn other(&self, device: &DeviceWork, call: u32, work: u32, before: i64) -> Option<u32> {
        let start = device.works[work as usize].start;
        let is_other = |at: &usize| !device.streams[*at].contains(&(work as usize));
        let others = self.reached(call).filter(is_other);
        let works = others.filter_map(|at| device.last_launched(at, before));
        let ended = works.filter(|work| device.works[*work as usize].end <= start);
        ended.max_by_key(|work| device.works[*work as usize].end)
    }

    /// Returns the device of a recorded wait, if the row of the wait names one.
    fn device_of(&self, sync: u32) -> Option<i32> {
        let trace = self.scope.trace;
        match trace.slices.device(sync).filter(|id| *id >= 0) {
            // If the row does not name its device, it may lie on the track of a thread instead of a
            // stream.
            None => Some(trace.device(sync)).filter(|id| self.streams.iter().any(|of| of.0 == *id)),
            known => known,
        }
    }

    /// Iterates over the streams that the thread of a call may wait for.
    fn reached(&self, call: u32) -> impl Iterator<Item = usize> {
        (0..self.streams.len()).filter(move |at| self.reaches(call, *at))
    }

    /// Returns whether the thread of a call may wait for a stream.
    fn reaches(&self, call: u32, stream: usize) -> bool {
        let track = self.scope.trace.slices.track[call as usize];
        let used = &self.used[track.0 as usize];
        used.is_empty() || used.contains(&self.streams[stream].0)
    }
}

/// Returns, for each track, the devices on which its thread launched work, or else the devices of
/// its process.
fn used(scope: &Scope<'_>, streams: &[(i32, i32)]) -> Vec<BTreeSet<i32>> {
    let trace = scope.trace;
    let mut used = vec![BTreeSet::new(); trace.tracks.len()];
    if streams.chunk_by(|a, b| a.0 == b.0).count() < 2 {
        return used;
    }
    let mut of_process: BTreeMap<&TrackKey, BTreeSet<i32>> = BTreeMap::new();
    for row in &scope.device_rows {
        let Some(call) = scope.links().call(*row) else { continue };
        let track = trace.slices.track[call as usize].0 as usize;
        let device = trace.device(*row);
        if used[track].insert(device) {
            of_process.entry(&trace.tracks[track].pid).or_default().insert(device);
        }
    }
    for (used, track) in used.iter_mut().zip(&trace.tracks) {
        if let Some(devices) = of_process.get(&track.pid).filter(|_| used.is_empty()) {
            used.clone_from(devices);
        }
    }
    used
}

/// Keeps only the piece of work that ended last.
fn latest(works: Vec<u32>, device: &DeviceWork) -> Vec<u32> {
    let last = works.into_iter().max_by_key(|work| device.works[*work as usize].end);
    last.into_iter().collect()
}
