//! Determines the processes and tracks of an output file, with their order and names.
//!
//! Within a rank, devices follow the host's threads, and the profiler's own rows come last.

use std::collections::BTreeMap;

use crate::merge::{Merged, MergedPart};
use crate::store::{Track, TrackKey};

/// A process or a device as viewers show it, which is a group of tracks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Index of the part to which the process belongs.
    pub part: usize,
    /// Process id, made unique over all parts.
    pub pid: TrackKey,
    pub class: ProcessClass,
    pub name: String,
    /// Label such as `GPU 0`, or an empty string if the file has none.
    pub label: String,
    /// Indices into the tracks of the part's trace, in display order.
    pub tracks: Vec<usize>,
}

/// The meaning of a process id in a trace. The order of the variants is the display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessClass {
    Host,
    Device,
    /// Rows that the profiler itself adds, such as its overhead.
    Other,
}

/// Lists all processes, ordered by rank, class and id.
pub fn processes(merged: &Merged<'_>) -> Vec<Process> {
    let parts = merged.parts.iter().enumerate();
    parts.flat_map(|(place, part)| list_processes(place, part)).collect()
}

fn list_processes(place: usize, part: &MergedPart<'_>) -> Vec<Process> {
    let mut processes: BTreeMap<(ProcessClass, &TrackKey), Vec<usize>> = BTreeMap::new();
    for (at, track) in part.trace.tracks.iter().enumerate() {
        let class = match &track.pid {
            _ if part.is_device(at) => ProcessClass::Device,
            TrackKey::Number(pid) if *pid >= 0 => ProcessClass::Host,
            _ => ProcessClass::Other,
        };
        processes.entry((class, &track.pid)).or_default().push(at);
    }
    join_empty(part, &mut processes);
    let process = |((class, pid), mut tracks): ((ProcessClass, &TrackKey), Vec<usize>)| {
        // Numbers precede texts in the order of track keys, so lines with text ids come after
        // threads.
        tracks.sort_by_key(|at| &part.trace.tracks[*at].tid);
        let first_text = |text: fn(&Track) -> &String| {
            let texts = tracks.iter().map(|at| text(&part.trace.tracks[*at]));
            texts.into_iter().find(|text| !text.is_empty()).cloned().unwrap_or_default()
        };
        let label = first_text(|track| &track.process_label);
        let name = first_text(|track| &track.process_name);
        let name =
            if part.is_one_of_several() { title(part, class, pid, &name, &label) } else { name };
        Process { part: place, pid: part.pid(pid), class, name, label, tracks }
    };
    processes.into_iter().map(process).collect()
}

/// Merges the tracks of a device that have a name but no slices into the device's process. Tracks
/// without slices are otherwise taken for tracks of a host process with the same id.
fn join_empty(
    part: &MergedPart<'_>,
    processes: &mut BTreeMap<(ProcessClass, &TrackKey), Vec<usize>>,
) {
    let mut has_slices = vec![false; part.trace.tracks.len()];
    part.trace.slices.track.iter().for_each(|track| has_slices[track.0 as usize] = true);
    let devices: Vec<_> =
        processes.keys().filter(|(class, _)| *class == ProcessClass::Device).copied().collect();
    for (_, pid) in devices {
        let Some(hosts) = processes.get(&(ProcessClass::Host, pid)) else { continue };
        if hosts.iter().any(|at| has_slices[*at]) {
            continue;
        }
        let moved = processes.remove(&(ProcessClass::Host, pid)).unwrap_or_default();
        processes.entry((ProcessClass::Device, pid)).or_default().extend(moved);
    }
}

/// Formats titles such as "rank 3 · python 12345" and "rank 3 · GPU 0".
fn title(
    part: &MergedPart<'_>,
    class: ProcessClass,
    pid: &TrackKey,
    name: &str,
    label: &str,
) -> String {
    let rank = part.trace.rank;
    match (class, label, name) {
        (ProcessClass::Device, "", _) => format!("rank {rank} · device {pid}"),
        (ProcessClass::Device, label, _) => format!("rank {rank} · {label}"),
        (ProcessClass::Host, _, "") => format!("rank {rank} · process {pid}"),
        (ProcessClass::Host, _, name) => format!("rank {rank} · {name} {pid}"),
        (ProcessClass::Other, ..) => format!("rank {rank} · {pid}"),
    }
}

impl Process {
    /// Returns the display name of a process, which is constructed from the id if there is no name.
    pub fn title(&self) -> String {
        match (self.class, self.label.as_str(), self.name.as_str()) {
            (ProcessClass::Device, label, name) if !label.is_empty() && !name.contains(label) => {
                label.to_owned()
            }
            (ProcessClass::Device, _, "") => format!("device {}", self.pid),
            (_, _, "") => self.pid.to_string(),
            (.., name) => name.to_owned(),
        }
    }
}

/// Returns the name of a lane, such as "stream 7 (lane 2)". Lane 0 keeps the name of the track.
pub fn lane_name(track: &str, lane: u32) -> String {
    if lane == 0 { track.to_owned() } else { format!("{track} (lane {})", lane + 1) }
}

/// Returns the display name of a track, which is constructed from the id if there is no name.
pub fn track_name(track: &Track, class: ProcessClass) -> String {
    match (&track.tid, class) {
        _ if !track.thread_name.is_empty() => track.thread_name.clone(),
        (TrackKey::Number(stream), ProcessClass::Device) => format!("stream {stream}"),
        (TrackKey::Number(thread), _) => format!("thread {thread}"),
        (TrackKey::Text(text), _) => text.clone(),
    }
}
