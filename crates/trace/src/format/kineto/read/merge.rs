//! Merges the parts parsed by the workers, in file order, and maps each worker's ids (of strings,
//! categories and tracks) to ids of the trace.
//!
//! The trace assigns an id at its first use in file order. Therefore the result does not depend on
//! which worker read which part.

use std::collections::HashMap;

use super::part::{Edge, Named, TextPart, ThreadId, TrackName};
use super::row;
use crate::store::{Loss, Slices, StringId, Trace, TraceHeader, TrackId, TrackKey, reserve};

/// A trace under construction, to which parts are appended.
#[derive(Debug)]
pub struct Merge {
    trace: Trace,
    workers: Vec<WorkerNumbers>,
    tracks: HashMap<(TrackKey, TrackKey), TrackId>,
    categories: HashMap<Box<str>, u8>,
    edges: Vec<Edge>,
    labels: Vec<TrackName>,
}

/// The kind of entries found in a list of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    Events,
    Nothing,
    /// The list has only entries that are not events.
    Losses,
}

/// Maps the ids of one worker to ids of the trace.
#[derive(Debug, Default)]
struct WorkerNumbers {
    texts: Map<Box<str>, u32>,
    categories: Map<Box<str>, u8>,
    tracks: Map<(ThreadId, ThreadId), u32>,
}

/// The keys of a worker's ids, and the trace's ids of the keys that are in use.
#[derive(Debug)]
struct Map<K, V> {
    keys: Vec<Option<K>>,
    values: Vec<V>,
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self { keys: Vec::new(), values: Vec::new() }
    }
}

impl<K, V: Copy + Default> Map<K, V> {
    fn add(&mut self, new: &mut Vec<K>) {
        self.keys.extend(new.drain(..).map(Some));
        self.values.resize(self.keys.len(), V::default());
    }

    /// Assigns an id of the trace to each key that is used for the first time.
    fn use_all(&mut self, used: &mut Vec<u32>, mut number: impl FnMut(K) -> V) {
        for local in used.drain(..) {
            if let Some(key) = self.keys[local as usize].take() {
                self.values[local as usize] = number(key);
            }
        }
    }
}

impl Merge {
    /// Creates an empty trace for the given number of workers.
    pub fn new(workers: usize) -> Self {
        Self {
            trace: Trace::default(),
            workers: (0..workers).map(|_| WorkerNumbers::default()).collect(),
            tracks: HashMap::new(),
            categories: HashMap::new(),
            edges: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// Drops a part that was parsed from a wrong guess. The ids that its worker assigned in the
    /// part stay valid.
    pub fn discard(&mut self, worker: usize, part: &mut TextPart) {
        let map = &mut self.workers[worker];
        map.texts.add(&mut part.used.new_texts);
        map.categories.add(&mut part.used.new_categories);
        map.tracks.add(&mut part.used.new_tracks);
        *part = TextPart::default();
    }

    /// Appends the next part to the trace, and leaves the part empty.
    pub fn append(&mut self, worker: usize, part: &mut TextPart) {
        self.number(worker, part);
        let Self { trace, workers, edges, labels, .. } = self;
        let WorkerNumbers { texts, categories, tracks } = &workers[worker];
        let (texts, categories, tracks) = (&texts.values, &categories.values, &tracks.values);
        let first_row = trace.slices.len() as u32;
        renumber(&mut part.slices, texts, tracks);
        let category = |local: u16| categories[usize::from(local)];
        trace.slices.append(&mut part.slices);
        trace.slices.category.extend(part.slice_categories.drain(..).map(category));
        for (flow, local) in part.flows.iter_mut().zip(part.flow_categories.drain(..)) {
            flow.track = TrackId(tracks[flow.track.0 as usize]);
            flow.category = category(local);
        }
        trace.flows.append(&mut part.flows);
        for (instant, local) in part.instants.iter_mut().zip(part.instant_categories.drain(..)) {
            instant.track = TrackId(tracks[instant.track.0 as usize]);
            instant.name = StringId(texts[instant.name.0 as usize]);
            instant.category = category(local);
        }
        trace.instants.append(&mut part.instants);
        for counter in &mut part.counters {
            counter.track = TrackId(tracks[counter.track.0 as usize]);
            counter.name = StringId(texts[counter.name.0 as usize]);
            counter.series = StringId(texts[counter.series.0 as usize]);
        }
        trace.counters.append(&mut part.counters);
        for allocation in &mut part.allocations {
            allocation.track = TrackId(tracks[allocation.track.0 as usize]);
        }
        trace.allocations.append(&mut part.allocations);
        // Rows of the part become rows of the trace, because an end event in a later part may set
        // their duration.
        edges.extend(part.edges.drain(..).map(|edge| Edge {
            row: edge.row.map(|row| first_row + row),
            track: tracks[edge.track as usize],
            ..edge
        }));
        labels.extend(
            part.labels
                .drain(..)
                .map(|label| TrackName { track: tracks[label.track as usize], ..label }),
        );
        count_phases(trace, part);
        trace.losses.append(std::mem::take(&mut part.losses));
    }

    /// Reserves memory for the whole text, of which the share `share` has been read.
    pub fn reserve(&mut self, share: f64) {
        self.trace.slices.reserve(share);
        reserve::extrapolate(&mut self.trace.flows, share);
        reserve::extrapolate(&mut self.trace.counters, share);
        reserve::extrapolate(&mut self.trace.instants, share);
        reserve::extrapolate(&mut self.trace.allocations, share);
    }

    fn number(&mut self, worker: usize, part: &mut TextPart) {
        let Self { trace, workers, tracks, categories, .. } = self;
        let map = &mut workers[worker];
        map.texts.add(&mut part.used.new_texts);
        map.categories.add(&mut part.used.new_categories);
        map.tracks.add(&mut part.used.new_tracks);
        // Texts are interned in the order in which the part uses them, which is the file order.
        map.texts.use_all(&mut part.used.texts, |text| trace.strings.intern(&text).0);
        map.categories.use_all(&mut part.used.categories, |name| {
            *categories.entry(name).or_insert_with_key(|name| {
                if trace.categories.len() >= usize::from(u8::MAX) {
                    let what = || format!("expected 255 categories at most, got also {name:?}");
                    trace.losses.count(Loss::ManyCategories, what);
                }
                trace.category(name)
            })
        });
        map.tracks.use_all(&mut part.used.tracks, |(pid, tid)| {
            let key = (track_key(pid), track_key(tid));
            let next = TrackId(trace.tracks.len() as u32);
            let track_id = tracks.entry(key).or_insert_with_key(|(pid, tid)| {
                trace.tracks.push(crate::store::Track::new(pid.clone(), tid.clone()));
                next
            });
            track_id.0
        });
    }

    /// Classifies the entries that were merged so far.
    pub fn holds(&self) -> Holds {
        let has_phase = self.trace.phases.keys().any(|phase| !phase.is_empty());
        match (has_phase, self.trace.losses.is_empty()) {
            (true, _) => Holds::Events,
            (false, true) => Holds::Nothing,
            (false, false) => Holds::Losses,
        }
    }

    /// Completes the trace: pairs begin and end events, names tracks, and adds the base time.
    pub fn finish(mut self, header: TraceHeader) -> Trace {
        pair(&mut self.trace, &self.edges);
        name_tracks(&mut self.trace, self.labels);
        self.trace.separate_mtia_events(0);
        self.trace.recognize_rows_without_category();
        self.trace.split_stacks();
        self.trace.rank = header.distributed.as_ref().and_then(|d| d.rank).unwrap_or_default();
        if header.base_time_ns != 0 {
            shift(&mut self.trace, header.base_time_ns);
        }
        self.trace.header = header;
        self.trace
    }
}

fn track_key(key: ThreadId) -> TrackKey {
    match key {
        ThreadId::Number(number) => TrackKey::Number(number),
        ThreadId::Text(text) => TrackKey::Text(text.into()),
    }
}

fn renumber(slices: &mut Slices, texts: &[u32], tracks: &[u32]) {
    let text = |id: &mut StringId| *id = StringId(texts[id.0 as usize]);
    slices.name.iter_mut().for_each(text);
    slices.track.iter_mut().for_each(|track| *track = TrackId(tracks[track.0 as usize]));
    for (_, collective) in slices.collective.iter_mut() {
        text(&mut collective.name);
        text(&mut collective.dtype);
        text(&mut collective.splits_in);
        text(&mut collective.splits_out);
        text(&mut collective.group);
        text(&mut collective.group_description);
        text(&mut collective.group_ranks);
    }
    slices.call_stack.iter_mut().for_each(|(_, stack)| text(stack));
}

fn count_phases(trace: &mut Trace, part: &mut TextPart) {
    for (letter, count) in part.letters.0.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
        let phase = char::from(letter as u8).to_string();
        *trace.phases.entry(phase).or_default() += std::mem::take(count);
    }
    for (phase, count) in std::mem::take(&mut part.phases) {
        *trace.phases.entry(phase).or_default() += count;
    }
}

/// Sets the durations of slices that are written as begin and end events. An end event closes the
/// last open begin event on its track.
fn pair(trace: &mut Trace, edges: &[Edge]) {
    let mut open: Vec<Vec<Edge>> = vec![Vec::new(); trace.tracks.len()];
    let lost = |trace: &mut Trace, edge: &Edge, what: &str| {
        trace.losses.count(Loss::Unpaired, || format!("byte {}: {what}", edge.offset));
    };
    for edge in edges {
        let open = &mut open[edge.track as usize];
        if edge.row.is_some() {
            open.push(*edge);
            continue;
        }
        let Some(begin) = open.pop() else {
            lost(trace, edge, "expected a begin event before this end event, got none");
            continue;
        };
        let duration = edge.time.saturating_sub(begin.time);
        if duration < 0 {
            trace.losses.count(Loss::NegativeDuration, || {
                format!("byte {}: expected an end after its begin, got {duration} ns", edge.offset)
            });
        }
        if let Some(row) = begin.row {
            trace.slices.duration[row as usize] = duration.max(0);
        }
    }
    let mut left: Vec<Edge> = open.into_iter().flatten().collect();
    // Losses are counted in file order, whatever the track.
    left.sort_by_key(|edge| edge.row);
    for edge in &left {
        lost(trace, edge, "expected an end event after this begin event, got none");
    }
    if !left.is_empty() {
        let rows: Vec<u32> = left.iter().filter_map(|edge| edge.row).collect();
        trace.slices.remove(&rows);
    }
}

/// Names threads and processes. If a process has several names, the last one is used, even for
/// tracks that appear later in the file.
fn name_tracks(trace: &mut Trace, labels: Vec<TrackName>) {
    let mut processes: HashMap<TrackKey, (String, String)> = HashMap::new();
    for label in labels {
        let track = &mut trace.tracks[label.track as usize];
        if label.what == Named::Thread {
            track.thread_name = label.text.into();
            continue;
        }
        if !processes.contains_key(&track.pid) {
            processes.insert(track.pid.clone(), Default::default());
        }
        let Some((name, process_label)) = processes.get_mut(&track.pid) else { continue };
        match label.what {
            Named::ProcessLabel => *process_label = label.text.into(),
            _ => *name = label.text.into(),
        }
    }
    for track in &mut trace.tracks {
        if let Some((name, label)) = processes.get(&track.pid) {
            track.process_name.clone_from(name);
            track.process_label.clone_from(label);
        }
    }
}

/// Adds the base time to all times. Events whose time is then out of range are dropped and counted.
fn shift(trace: &mut Trace, base: i64) {
    let moved = |time: &mut i64| {
        *time += base;
        row::is_in_range(*time)
    };
    let starts = trace.slices.start.iter_mut().zip(0u32..);
    let rows: Vec<u32> = starts.filter_map(|(start, row)| (!moved(start)).then_some(row)).collect();
    if !rows.is_empty() {
        trace.slices.remove(&rows);
    }
    let held = |trace: &Trace| {
        let marks = trace.counters.len() + trace.instants.len() + trace.allocations.len();
        marks + trace.flows.len()
    };
    let before = held(trace);
    trace.flows.retain_mut(|flow| moved(&mut flow.time));
    trace.counters.retain_mut(|counter| moved(&mut counter.time));
    trace.instants.retain_mut(|instant| moved(&mut instant.time));
    trace.allocations.retain_mut(|allocation| moved(&mut allocation.time));
    for _ in 0..rows.len() + before - held(trace) {
        trace.losses.count(Loss::BadNumber, || {
            format!("expected a time within 2^61 ns of 0 with the base of {base} ns, got more")
        });
    }
}
