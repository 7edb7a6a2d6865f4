//! The processes and tracks of a file, their order and names.
//!
//! Devices follow the threads of their rank, then the profiler's own rows. Knows no format.

use std::collections::BTreeMap;

use crate::merge::{Merged, MergedPart};
use crate::store::{Track, TrackKey};

/// A process or a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Place of the part it belongs to.
    pub part: usize,
    /// Its id, unique over all parts.
    pub pid: TrackKey,
    pub class: ProcessClass,
    /// Its name; empty if unknown.
    pub name: String,
    /// Its label, such as `GPU 0`; empty if unknown.
    pub label: String,
    /// Its tracks, places in the part's trace, in order.
    pub tracks: Vec<usize>,
}

/// What a process id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessClass {
    /// A process of the operating system.
    Host,
    Device,
    /// Rows of the profiler.
    Other,
}

/// All processes, by rank, class and id.
pub fn processes(merged: &Merged<'_>) -> Vec<Process> {
    let parts = merged.parts.iter().enumerate();
    parts.flat_map(|(place, part)| of_part(place, part)).collect()
}

fn of_part(place: usize, part: &MergedPart<'_>) -> Vec<Process> {
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
        tracks.sort_by_key(|at| &part.trace.tracks[*at].tid);
        let known = |text: fn(&Track) -> &String| {
            let texts = tracks.iter().map(|at| text(&part.trace.tracks[*at]));
            texts.into_iter().find(|text| !text.is_empty()).cloned().unwrap_or_default()
        };
        let label = known(|track| &track.process_label);
        let name = known(|track| &track.process_name);
        let name =
            if part.is_one_of_several() { title(part, class, (pid, &name, &label)) } else { name };
        Process { part: place, pid: part.pid(pid), class, name, label, tracks }
    };
    processes.into_iter().map(process).collect()
}

/// A device's process may have tracks without slices, made by their names alone.
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

/// Such as "rank 3 · python 12345" and "rank 3 · GPU 0".
fn title(
    part: &MergedPart<'_>,
    class: ProcessClass,
    (pid, name, label): (&TrackKey, &str, &str),
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
    /// Its name, made up if it has none.
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

/// The name of a lane, such as "stream 7 (lane 2)"; the track's own line is the first.
pub fn lane_name(track: &str, lane: u32) -> String {
    if lane == 0 { track.to_owned() } else { format!("{track} (lane {})", lane + 1) }
}

/// The name of a track, made up if it has none.
pub fn track_name(track: &Track, class: ProcessClass) -> String {
    match (&track.tid, class) {
        _ if !track.thread_name.is_empty() => track.thread_name.clone(),
        (TrackKey::Number(stream), ProcessClass::Device) => format!("stream {stream}"),
        (TrackKey::Number(thread), _) => format!("thread {thread}"),
        (TrackKey::Text(text), _) => text.clone(),
    }
}
