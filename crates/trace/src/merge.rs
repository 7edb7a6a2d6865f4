//! Merges the traces of several ranks so that their process ids, correlation ids and clocks do not
//! collide.
//!
//! No event is copied. A [`MergedPart`] maps the ids and times of its trace when they are read.

mod namespace;

use std::collections::BTreeMap;

use crate::store::{EventKind, Job, Trace, TrackKey};
pub use namespace::IdKind;
use namespace::Namespace;

/// The offset of each rank's clock relative to a common clock. A rank that is not listed has offset
/// 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Nanoseconds by which each rank's clock is ahead, which are subtracted from the rank's times.
    pub ahead_ns: BTreeMap<u32, i64>,
}

/// The content of one output file: one trace, or several traces on a common clock.
#[derive(Clone, Debug)]
pub struct Merged<'a> {
    pub parts: Vec<MergedPart<'a>>,
}

/// The view of one rank's trace in a merged file.
#[derive(Clone, Debug)]
pub struct MergedPart<'a> {
    /// The trace with its original ids.
    pub trace: &'a Trace,
    /// Nanoseconds by which the trace's clock is ahead, which are subtracted from the trace's
    /// times.
    pub ahead_ns: i64,
    namespace: Option<Namespace>,
    device_tracks: Vec<bool>,
}

/// Creates a view of one trace that leaves all ids unchanged.
pub fn alone(trace: &Trace) -> Merged<'_> {
    Merged { parts: vec![MergedPart::new(trace, 0, None)] }
}

/// Merges all traces of a job. Ids are prefixed with the rank: process 12345 of rank 3 becomes
/// 312345.
///
/// A job with a single trace keeps its ids.
///
/// # Panics
/// Panics if two traces have the same rank.
pub fn merge<'a>(job: &'a Job, offsets: &Offsets) -> Merged<'a> {
    let ahead = |trace: &Trace| offsets.ahead_ns.get(&trace.rank).copied().unwrap_or(0);
    if let [trace] = job.traces.as_slice() {
        return Merged { parts: vec![MergedPart::new(trace, ahead(trace), None)] };
    }
    let mut traces: Vec<_> = job.traces.iter().collect();
    // The output lists ranks in ascending order, whatever the order of the job is.
    traces.sort_by_key(|trace| trace.rank);
    let distinct = traces.windows(2).all(|pair| pair[0].rank != pair[1].rank);
    assert!(distinct, "each trace of a job must have its own rank");
    let namespaces = namespace::assign(&traces);
    let part =
        |(trace, namespace): (&'a Trace, _)| MergedPart::new(trace, ahead(trace), Some(namespace));
    Merged { parts: traces.into_iter().zip(namespaces).map(part).collect() }
}

impl Merged<'_> {
    /// Returns the earliest time on the common clock, or `None` if there are no events.
    pub fn first_time(&self) -> Option<i64> {
        let mut first: Option<i64> = None;
        for part in &self.parts {
            part.each_time(|time| first = Some(first.map_or(time, |first| first.min(time))));
        }
        first
    }
}

impl<'a> MergedPart<'a> {
    fn new(trace: &'a Trace, ahead_ns: i64, namespace: Option<Namespace>) -> Self {
        Self { trace, ahead_ns, namespace, device_tracks: device_tracks(trace) }
    }

    /// Whether the part is one of several, so that its ids are prefixed.
    pub fn is_one_of_several(&self) -> bool {
        self.namespace.is_some()
    }

    /// Converts a time of the part's clock to the common clock.
    pub fn time(&self, time: i64) -> i64 {
        time.saturating_sub(self.ahead_ns)
    }

    /// Calls `seen` with the time of every event on the common clock. The time of a slice is its
    /// start.
    pub fn each_time(&self, mut seen: impl FnMut(i64)) {
        let trace = self.trace;
        trace.slices.start.iter().for_each(|start| seen(self.time(*start)));
        trace.flows.iter().for_each(|flow| seen(self.time(flow.time)));
        trace.counters.iter().for_each(|counter| seen(self.time(counter.time)));
        trace.instants.iter().for_each(|instant| seen(self.time(instant.time)));
        trace.allocations.iter().for_each(|allocation| seen(self.time(allocation.time)));
    }

    /// Makes an id unique over all parts. The id 0 means "no id" and stays 0.
    pub fn id(&self, kind: IdKind, id: u64) -> u64 {
        self.namespace.as_ref().map_or(id, |namespace| namespace.id(kind, id))
    }

    /// Makes a process id unique over all parts.
    pub fn pid(&self, pid: &TrackKey) -> TrackKey {
        self.namespace.as_ref().map_or_else(|| pid.clone(), |namespace| namespace.pid(pid))
    }

    /// Makes a device ordinal unique over all parts. Negative ordinals do not change.
    pub fn device(&self, device: i64) -> i64 {
        self.namespace.as_ref().map_or(device, |namespace| namespace.device(device))
    }

    /// Whether a track belongs to a device rather than to a host thread.
    pub fn is_device(&self, track: usize) -> bool {
        self.device_tracks[track]
    }
}

/// Determines from the rows of each track whether the track belongs to a device. The process id
/// does not suffice, because in a container it may equal a device's ordinal.
fn device_tracks(trace: &Trace) -> Vec<bool> {
    let mut device = vec![false; trace.tracks.len()];
    let mut host = vec![false; trace.tracks.len()];
    for (track, category) in trace.slices.track.iter().zip(&trace.slices.category) {
        match trace.categories[usize::from(*category)].kind {
            EventKind::Kernel
            | EventKind::Memcpy
            | EventKind::Memset
            | EventKind::DeviceAnnotation
            | EventKind::Sync
            | EventKind::Event => device[track.0 as usize] = true,
            _ => host[track.0 as usize] = true,
        }
    }
    device.iter().zip(&host).map(|(device, host)| *device && !host).collect()
}

#[cfg(test)]
mod tests;
