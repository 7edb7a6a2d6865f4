//! Writes the tracks of a file in display order: processes, threads, devices, streams, lanes and
//! counters.
//!
//! Only processes and threads of the operating system are marked as processes and threads. Devices,
//! streams and the profiler's own rows are plain tracks, because Perfetto takes process 0 for the
//! idle process.

use std::io::{self, Write};

use super::field::{counter, process, thread, track};
use super::packet::Packets;
use super::wire::{message, signed, text, unsigned};
use crate::export::layout::{self, Process, ProcessClass};
use crate::lanes::SliceLanes;
use crate::merge::MergedPart;

/// The Perfetto ids of a part's tracks.
pub struct Tracks {
    lanes: Vec<Vec<u64>>,
    /// Perfetto id of the process of each track.
    processes: Vec<u64>,
    /// Perfetto id of the first process, to which counters of the part as a whole are attached.
    pub first: Option<u64>,
}

impl Tracks {
    /// Returns the Perfetto id of a lane.
    pub fn lane(&self, track: usize, lane: u32) -> u64 {
        self.lanes[track][lane as usize]
    }

    /// Returns the Perfetto ids of all lanes of a track.
    pub fn lanes(&self, track: usize) -> &[u64] {
        &self.lanes[track]
    }

    /// Returns the Perfetto id of a track's process.
    pub fn process(&self, track: usize) -> u64 {
        self.processes[track]
    }
}

/// Assigns Perfetto ids to tracks.
#[derive(Debug, Default)]
pub struct Numbers(u64);

impl Numbers {
    /// Returns the next unused id.
    pub fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Writes a descriptor which asks viewers to keep the stated order of tracks.
pub fn root<W: Write + ?Sized>(packets: &mut Packets<'_, W>) -> io::Result<()> {
    packets.track(|out| {
        unsigned(out, track::UUID, 0);
        unsigned(out, track::CHILD_ORDERING, track::EXPLICIT);
        unsigned(out, track::PROCESS_ORDERING, track::BY_ORDER);
        unsigned(out, track::THREAD_ORDERING, track::BY_ORDER);
    })
}

/// Writes descriptors for all tracks of a part.
pub fn write<W: Write + ?Sized>(
    packets: &mut Packets<'_, W>,
    part: &MergedPart<'_>,
    processes: &[(usize, &Process)],
    lanes: &SliceLanes,
    numbers: &mut Numbers,
) -> io::Result<Tracks> {
    let count = part.trace.tracks.len();
    let mut tracks =
        Tracks { lanes: vec![Vec::new(); count], processes: vec![0; count], first: None };
    for (order, known) in processes {
        let uuid = numbers.next();
        tracks.first.get_or_insert(uuid);
        packets.track(|out| describe_process(out, known, uuid, *order))?;
        let mut order = 0;
        for at in &known.tracks {
            tracks.processes[*at] = uuid;
            let line = TrackLine::new(part, known, *at);
            let mut parent = uuid;
            for lane in 0..lanes.count[*at] {
                let own = numbers.next();
                tracks.lanes[*at].push(own);
                packets.track(|out| line.describe(out, own, parent, order, lane))?;
                order += 1;
                // Further lanes of a thread are shown below the thread itself.
                if lane == 0 && line.thread.is_some() {
                    parent = own;
                }
            }
        }
    }
    Ok(tracks)
}

fn describe_process(out: &mut Vec<u8>, known: &Process, uuid: u64, order: usize) {
    unsigned(out, track::UUID, uuid);
    unsigned(out, track::CHILD_ORDERING, track::EXPLICIT);
    signed(out, track::ORDER, order as i64);
    let name = known.title();
    match system_process(known) {
        Some(pid) => message(out, track::PROCESS, |out| {
            signed(out, process::PID, pid);
            text(out, process::NAME, &name);
            if !known.label.is_empty() {
                text(out, process::LABELS, &known.label);
            }
        }),
        None => text(out, track::NAME, &name),
    }
}

/// Returns the process id of a process that Perfetto can display as a process of the operating
/// system.
fn system_process(known: &Process) -> Option<i64> {
    let pid = known.pid.number().filter(|_| known.class == ProcessClass::Host)?;
    (1..=i64::from(i32::MAX)).contains(&pid).then_some(pid)
}

/// A thread or a stream, as a track in the viewer.
struct TrackLine {
    name: String,
    /// Process id and thread id in the operating system.
    thread: Option<(i64, i64)>,
}

impl TrackLine {
    fn new(part: &MergedPart<'_>, known: &Process, at: usize) -> Self {
        let line = &part.trace.tracks[at];
        let tid = line.tid.number().filter(|tid| *tid > 0);
        let thread = system_process(known).zip(tid);
        Self { name: layout::track_name(line, known.class), thread }
    }

    fn describe(&self, out: &mut Vec<u8>, own: u64, parent: u64, order: i64, lane: u32) {
        unsigned(out, track::UUID, own);
        unsigned(out, track::PARENT, parent);
        signed(out, track::ORDER, order);
        match self.thread.filter(|_| lane == 0) {
            Some((pid, tid)) => message(out, track::THREAD, |out| {
                signed(out, thread::PID, pid);
                signed(out, thread::TID, tid);
                text(out, thread::NAME, &self.name);
            }),
            None => {
                text(out, track::NAME, &layout::lane_name(&self.name, lane));
                unsigned(out, track::MERGE, track::NEVER_MERGE);
            }
        }
    }
}

/// Writes the descriptor of a counter, and returns its Perfetto id.
pub fn write_counter<W: Write + ?Sized>(
    packets: &mut Packets<'_, W>,
    numbers: &mut Numbers,
    parent: Option<u64>,
    name: &str,
    unit: &str,
) -> io::Result<u64> {
    let own = numbers.next();
    packets.track(|out| {
        unsigned(out, track::UUID, own);
        parent.into_iter().for_each(|parent| unsigned(out, track::PARENT, parent));
        text(out, track::NAME, name);
        message(out, track::COUNTER, |out| {
            if !unit.is_empty() {
                text(out, counter::UNIT_NAME, unit);
            }
        });
    })?;
    Ok(own)
}
