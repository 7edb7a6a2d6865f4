//! Several ranks' traces as one: whose process ids, correlations and clocks no longer collide.
//!
//! Nothing is copied: a [`MergedPart`] maps each number of its trace. Knows no format.

mod namespace;

use std::collections::BTreeMap;

use crate::store::{EventKind, Job, Trace, TrackKey};
pub use namespace::IdKind;
use namespace::Namespace;

/// By how much each rank's clock runs ahead of the others', by rank; 0 for ranks not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Nanoseconds, subtracted from the rank's times.
    pub ahead_ns: BTreeMap<u32, i64>,
}

/// The content of one file: one trace, or several that share only time.
#[derive(Clone, Debug)]
pub struct Merged<'a> {
    pub parts: Vec<MergedPart<'a>>,
}

/// One rank's share.
#[derive(Clone, Debug)]
pub struct MergedPart<'a> {
    /// The trace, in its own numbers.
    pub trace: &'a Trace,
    /// Where its clock is ahead, subtracted from its times.
    pub ahead_ns: i64,
    namespace: Option<Namespace>,
    device_tracks: Vec<bool>,
}

/// One trace, every number as it is.
pub fn alone(trace: &Trace) -> Merged<'_> {
    Merged { parts: vec![MergedPart::new(trace, 0, None)] }
}

/// All traces of a job, numbers prefixed with the rank: process 12345 of rank 3 becomes 312345.
///
/// A job of one trace keeps its numbers.
///
/// # Panics
/// If two traces have one rank.
pub fn merge<'a>(job: &'a Job, offsets: &Offsets) -> Merged<'a> {
    let ahead = |trace: &Trace| offsets.ahead_ns.get(&trace.rank).copied().unwrap_or(0);
    if let [trace] = job.traces.as_slice() {
        return Merged { parts: vec![MergedPart::new(trace, ahead(trace), None)] };
    }
    let mut traces: Vec<_> = job.traces.iter().collect();
    traces.sort_by_key(|trace| trace.rank);
    let distinct = traces.windows(2).all(|pair| pair[0].rank != pair[1].rank);
    assert!(distinct, "each trace of a job has a rank of its own");
    let namespaces = namespace::assign(&traces);
    let part =
        |(trace, namespace): (&'a Trace, _)| MergedPart::new(trace, ahead(trace), Some(namespace));
    Merged { parts: traces.into_iter().zip(namespaces).map(part).collect() }
}

impl Merged<'_> {
    /// The first time on the common clock; none if there is no event.
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

    /// Whether its numbers stand beside those of other ranks.
    pub fn is_one_of_several(&self) -> bool {
        self.namespace.is_some()
    }

    /// A time on the common clock.
    pub fn time(&self, time: i64) -> i64 {
        time.saturating_sub(self.ahead_ns)
    }

    /// Hands out the begin of every event.
    pub fn each_time(&self, mut seen: impl FnMut(i64)) {
        let trace = self.trace;
        trace.slices.start.iter().for_each(|start| seen(self.time(*start)));
        trace.flows.iter().for_each(|flow| seen(self.time(flow.time)));
        trace.counters.iter().for_each(|counter| seen(self.time(counter.time)));
        trace.instants.iter().for_each(|instant| seen(self.time(instant.time)));
        trace.allocations.iter().for_each(|allocation| seen(self.time(allocation.time)));
    }

    /// An id, unique over all parts. 0 stays: it stands for none.
    pub fn id(&self, kind: IdKind, id: u64) -> u64 {
        self.namespace.as_ref().map_or(id, |namespace| namespace.id(kind, id))
    }

    /// A process, unique over all parts.
    pub fn pid(&self, pid: &TrackKey) -> TrackKey {
        self.namespace.as_ref().map_or_else(|| pid.clone(), |namespace| namespace.pid(pid))
    }

    /// A device's ordinal, unique over all parts; negative ones stay.
    pub fn device(&self, device: i64) -> i64 {
        self.namespace.as_ref().map_or(device, |namespace| namespace.device(device))
    }

    /// Whether a track holds a device's work, not a thread's.
    pub fn is_device(&self, track: usize) -> bool {
        self.device_tracks[track]
    }
}

/// A process id tells little: in containers it may equal a device's ordinal.
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
