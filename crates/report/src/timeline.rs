//! The timeline tab of the page: all events of some steps, arranged in lanes and packed for a
//! canvas.
//!
//! A lane is a line of a thread or stream on which no two events overlap. Examples are one level of
//! a stack of operators, and the kernels of a stream. [`pack`] describes the packed format.

mod choose;
mod event;
mod lay;
mod pack;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use analyze::kernels;
use analyze::{Scope, WorkClass, cpu_run};
use serde::Serialize;
use trace::store::{EventKind, StringId, Trace};

use crate::clock::Zero;
use crate::{Error, Options};
use event::DrawnEvent;
use lay::PackedLane;

/// The events of some steps, in the packed form that the page's script draws.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timeline {
    /// Start of the timeline on the page's clock.
    pub start_ns: i64,
    /// End of the timeline on the page's clock, exclusive.
    pub end_ns: i64,
    /// Numbers of the included steps. The list is empty if all steps are included or the traces
    /// have no steps.
    pub steps: Vec<i64>,
    /// Number of steps in the windows of the traces.
    pub step_count: u64,
    pub event_count: u64,
    /// Number of Python frames in the range that are omitted because of the limit.
    pub python_left_out_count: u64,
    /// Whether later events of the step are omitted because of the limit.
    pub is_cut: bool,
    /// Threads and streams, sorted by rank.
    pub tracks: Vec<TrackView>,
    /// For each lane: the index of its track, its depth, and its number of events.
    pub lanes: Vec<(u32, u32, u32)>,
    /// Labels of events by descending frequency: name, index in `kinds`, and short name. The short
    /// name is empty if it equals the name.
    pub labels: Vec<(String, u8, String)>,
    pub kinds: [&'static str; KINDS.len()],
    /// Details of device work, such as launch shapes, bytes and messages. Events refer to them by
    /// index.
    pub notes: Vec<String>,
    /// The packed events, lane after lane, as base64.
    pub events: String,
    /// Indices of the events on the job's critical path, packed as base64.
    pub marked: String,
}

/// A thread or a stream, which is shown as a group of lanes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrackView {
    pub rank: u32,
    pub side: &'static str,
    /// Index of the device, or `None` for threads of the host.
    pub device: Option<i32>,
    pub name: String,
    pub depth: u32,
}

/// The kinds of events, each of which has its own color. Classes of device work keep their usual
/// names.
pub const KINDS: [&str; 12] = [
    "compute",
    "communication",
    "memory",
    "other",
    "operator",
    "annotation",
    "runtime",
    "driver",
    "sync",
    "python",
    "overhead",
    "unknown",
];

/// Builds the timeline of the selected steps of all ranks. `marked` contains pairs of a rank and a
/// row on the critical path.
pub(crate) fn build_timeline(
    scopes: &[Scope<'_>],
    marked: &[(u32, u32)],
    zero: &Zero,
    options: &Options,
) -> Result<Timeline, Error> {
    let chosen = choose::choose_range(scopes, zero, options)?;
    let mut texts = InternedTexts::default();
    let mut lines: Vec<PackedLane> = Vec::new();
    let mut tracks = Vec::new();
    for scope in scopes {
        let drawn = choose::rows(scope, zero, &chosen);
        add_rank(
            scope,
            zero,
            &drawn,
            &mut LaneSink { texts: &mut texts, lines: &mut lines, tracks: &mut tracks },
        );
    }
    let labels = texts.by_frequency();
    let packed = pack::events(scopes, &lines, &labels.place);
    let places = packed.places(scopes, marked);
    Ok(Timeline {
        start_ns: chosen.start,
        end_ns: chosen.end,
        steps: chosen.steps,
        step_count: chosen.step_count,
        event_count: lines.iter().map(|line| line.events.len() as u64).sum(),
        python_left_out_count: chosen.python_left_out,
        is_cut: chosen.is_cut,
        tracks,
        lanes: lines.iter().map(|l| (l.track, l.depth, l.events.len() as u32)).collect(),
        labels: labels.texts,
        kinds: KINDS,
        notes: texts.notes,
        events: pack::text(&packed.bytes),
        marked: pack::text(&pack::ascending(&places)),
    })
}

/// Collects the lanes, tracks and texts of all ranks.
struct LaneSink<'a> {
    texts: &'a mut InternedTexts,
    lines: &'a mut Vec<PackedLane>,
    tracks: &'a mut Vec<TrackView>,
}

fn add_rank(scope: &Scope<'_>, zero: &Zero, drawn: &[u32], sink: &mut LaneSink<'_>) {
    let trace = scope.trace;
    let classes: BTreeMap<u32, WorkClass> =
        scope.device_rows.iter().copied().zip(scope.classes.iter().copied()).collect();
    let mut labels: HashMap<(StringId, u8), u32> = HashMap::new();
    let mut by_track: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for &row in drawn {
        by_track.entry(trace.slices.track[row as usize].0).or_default().push(row);
    }
    let steps: BTreeSet<u32> = scope.window.steps.iter().map(|step| step.row).collect();
    let mut order: Vec<(u32, Vec<u32>)> = by_track.into_iter().collect();
    order.sort_by_cached_key(|(track, rows)| {
        let is_device = is_device(trace, rows);
        let has_steps = rows.iter().any(|row| steps.contains(row));
        let name = is_device.then(|| trace.tracks[*track as usize].pid.clone());
        (is_device, name, !has_steps, std::cmp::Reverse(rows.len()), *track)
    });
    for (track, rows) in order {
        let is_device = is_device(trace, &rows);
        let event = |row: &u32| {
            let kind = kind(trace, *row, classes.get(row).copied());
            let name = trace.slices.name[*row as usize];
            let label = *labels
                .entry((name, kind))
                .or_insert_with(|| sink.texts.label(trace.strings.get(name), kind));
            sink.texts.counts[label as usize] += 1;
            let note = if is_device { sink.texts.note(trace, *row) } else { 0 };
            // The profiler's own work may begin before the first event, so its start is clamped to
            // 0.
            let start = zero.at(trace.rank, trace.slices.start(*row)).max(0);
            let end = zero.at(trace.rank, trace.slices.end(*row)).max(start);
            DrawnEvent { row: *row, start, end, label, note }
        };
        let events: Vec<DrawnEvent> = rows.iter().map(event).collect();
        let at = sink.tracks.len() as u32;
        let placed = lay::lanes(trace, events, is_device, trace.rank, at);
        sink.tracks.push(TrackView {
            rank: trace.rank,
            side: if is_device { "device" } else { "host" },
            device: rows.first().filter(|_| is_device).map(|row| trace.device(*row)),
            name: track_name(trace, track as usize, is_device),
            depth: placed.len() as u32,
        });
        sink.lines.extend(placed);
    }
}

fn is_device(trace: &Trace, rows: &[u32]) -> bool {
    let is_device = |kind: EventKind| {
        kind.is_device_work() || matches!(kind, EventKind::DeviceAnnotation | EventKind::Sync)
    };
    rows.iter().any(|row| is_device(trace.kind(*row)))
}

fn track_name(trace: &Trace, track: usize, is_device: bool) -> String {
    let track = &trace.tracks[track];
    if is_device && cpu_run::is_cpu_run(trace) {
        return "pool".to_owned();
    }
    if is_device {
        return format!("device {} stream {}", track.pid, track.tid);
    }
    match track.thread_name.trim() {
        "" => format!("thread {}", track.tid),
        name => name.to_owned(),
    }
}

/// Returns the index of an event's kind in [`KINDS`].
fn kind(trace: &Trace, row: u32, class: Option<WorkClass>) -> u8 {
    match trace.kind(row) {
        EventKind::Kernel | EventKind::Memcpy | EventKind::Memset => match class {
            Some(WorkClass::Compute) => 0,
            Some(WorkClass::Communication) => 1,
            Some(WorkClass::Memory) => 2,
            Some(WorkClass::Other) | None => 3,
        },
        EventKind::Operator => 4,
        EventKind::Annotation | EventKind::DeviceAnnotation => 5,
        EventKind::Runtime => 6,
        EventKind::Driver => 7,
        EventKind::Sync => 8,
        EventKind::Python => 9,
        EventKind::Overhead => 10,
        EventKind::Event | EventKind::Window | EventKind::Other => 11,
    }
}

/// Interned labels and notes of events, with the number of events of each label.
#[derive(Debug)]
struct InternedTexts {
    labels: BTreeMap<(String, u8), u32>,
    counts: Vec<u64>,
    notes: Vec<String>,
    note_places: BTreeMap<String, u32>,
}

impl Default for InternedTexts {
    fn default() -> Self {
        // Index 0 is the empty note of events without details.
        let notes = vec![String::new()];
        Self { labels: BTreeMap::new(), counts: Vec::new(), notes, note_places: BTreeMap::new() }
    }
}

/// Labels in descending order of frequency.
struct Labels {
    texts: Vec<(String, u8, String)>,
    /// Position of each label in `texts`, indexed by the number from [`InternedTexts::label`].
    place: Vec<u32>,
}

impl InternedTexts {
    fn label(&mut self, name: &str, kind: u8) -> u32 {
        let new = self.counts.len() as u32;
        let number = *self.labels.entry((name.to_owned(), kind)).or_insert(new);
        if number == new {
            self.counts.push(0);
        }
        number
    }

    fn note(&mut self, trace: &Trace, row: u32) -> u32 {
        let text = note(trace, row);
        if text.is_empty() {
            return 0;
        }
        let new = self.notes.len() as u32;
        let place = *self.note_places.entry(text.clone()).or_insert(new);
        if place == new {
            self.notes.push(text);
        }
        place
    }

    fn by_frequency(&mut self) -> Labels {
        let mut all: Vec<_> = std::mem::take(&mut self.labels).into_iter().collect();
        let count = |number: u32| self.counts[number as usize];
        all.sort_by_key(|(_, number)| (std::cmp::Reverse(count(*number)), *number));
        let mut place = vec![0; all.len()];
        for (at, (_, number)) in all.iter().enumerate() {
            place[*number as usize] = at as u32;
        }
        Labels { texts: with_short(all.into_iter().map(|(label, _)| label).collect()), place }
    }
}

/// Adds short names to labels of device work. Different names get different short names. Names of
/// operators are short already, so they get none.
fn with_short(all: Vec<(String, u8)>) -> Vec<(String, u8, String)> {
    const OPERATOR: u8 = 4;
    let mut names: Vec<&str> =
        all.iter().filter(|(_, kind)| *kind < OPERATOR).map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let labels = kernels::labels(names.iter().copied());
    let short = |name: &str, kind: u8| {
        let place = names.binary_search(&name).ok().filter(|_| kind < OPERATOR);
        place.map(|at| labels[at].clone()).filter(|label| label != name).unwrap_or_default()
    };
    let texts = all.iter().map(|(name, kind)| short(name, *kind)).collect::<Vec<String>>();
    all.into_iter().zip(texts).map(|((name, kind), short)| (name, kind, short)).collect()
}

/// Describes device work beyond its name and times.
fn note(trace: &Trace, row: u32) -> String {
    let slices = &trace.slices;
    let mut said = Vec::new();
    if let Some(shape) = slices.launch_shape.get(row) {
        let sizes = |[x, y, z]: [u32; 3]| format!("{x}×{y}×{z}");
        said.push(format!("grid {}, block {}", sizes(shape.grid), sizes(shape.block)));
        said.push(format!("{} registers per thread", shape.registers));
        said.push(format!("{} B of shared memory", shape.shared_memory));
        if shape.blocks_per_sm.is_finite() {
            said.push(format!("{:.2} blocks per SM", shape.blocks_per_sm));
        }
        if shape.occupancy_pct.is_finite() {
            said.push(format!("estimated occupancy {:.0} %", shape.occupancy_pct));
        }
    }
    if let Some(bytes) = slices.bytes.get(row) {
        said.push(format!("{bytes} B"));
    }
    if let Some(rate) = slices.bandwidth.get(row).filter(|rate| rate.is_finite()) {
        said.push(format!("{rate:.1} GB/s"));
    }
    if let Some(collective) = slices.collective.get(row) {
        let text = |id| trace.strings.get(id);
        said.push(format!("{} of {}", text(collective.name), text(collective.dtype)));
        if let (Some(into), Some(out)) = (collective.elements_in, collective.elements_out) {
            said.push(format!("{into} elements in, {out} out"));
        }
        said.push(format!("group {}", text(collective.group)));
    }
    said.join("; ")
}
