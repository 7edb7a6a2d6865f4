//! Both traces as sequences of names: what each thread began, in order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::execution_trace::ExecutionTrace;
use crate::store::{EventKind, Trace};

/// A name of the execution trace; [`OTHER`] for names it does not have.
pub type Name = u32;
pub const OTHER: Name = u32::MAX;

/// What one thread began, in order.
pub struct Sequence {
    /// The thread's number, or the track's.
    pub key: u64,
    pub names: Vec<Name>,
    /// The nodes, or the rows.
    pub places: Vec<u32>,
}

/// What the host did, as both traces saw it.
pub struct HostSequence<'a> {
    trace: &'a Trace,
    /// Threads of the execution trace, by number.
    pub threads: Vec<Sequence>,
    /// Threads of the trace, by track.
    pub tracks: Vec<Sequence>,
    /// By the place of the node.
    node_names: Vec<Name>,
    /// By the trace's string id.
    row_names: Vec<Name>,
}

impl<'a> HostSequence<'a> {
    /// Threads of the execution trace, and tracks with operators or annotations of the trace.
    pub fn new(execution: &ExecutionTrace, trace: &'a Trace) -> Self {
        let mut vocabulary: HashMap<&str, Name> = HashMap::new();
        let mut name = |text| {
            let next = vocabulary.len() as Name;
            *vocabulary.entry(text).or_insert(next)
        };
        let node_names: Vec<Name> =
            execution.nodes.iter().map(|node| name(plain(execution.name(node)))).collect();
        let row_name = |text| vocabulary.get(plain(text)).copied().unwrap_or(OTHER);
        let row_names = trace.strings.iter().map(row_name).collect();
        let threads = execution.threads().into_iter().map(|(key, mut places)| {
            places.retain(|place| !is_group(execution, *place));
            let names = places.iter().map(|place| node_names[*place as usize]).collect();
            Sequence { key, names, places }
        });
        let threads = threads.collect();
        let mut host = Self { trace, threads, tracks: Vec::new(), node_names, row_names };
        host.tracks = host.tracks();
        host
    }

    fn tracks(&self) -> Vec<Sequence> {
        let mut tracks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let is_host = |row: &u32| {
            matches!(self.trace.kind(*row), EventKind::Operator | EventKind::Annotation)
        };
        for row in self.trace.rows().filter(is_host) {
            tracks.entry(self.track_of_row(row)).or_default().push(row);
        }
        let slices = &self.trace.slices;
        // Where times are equal, the profiler's own count decides; without one, what lasts longer
        // lies outside.
        let order = |row: &u32| {
            let index = slices.event_index.get(*row).copied().unwrap_or(u64::MAX);
            let duration = slices.end(*row) - slices.start(*row);
            (slices.start(*row), index, Reverse(duration), *row)
        };
        let sequence = |(key, mut places): (u64, Vec<u32>)| {
            places.sort_by_cached_key(order);
            let name = |row: &u32| self.row_names[slices.name[*row as usize].0 as usize];
            Sequence { key, names: places.iter().map(name).collect(), places }
        };
        tracks.into_iter().map(sequence).collect()
    }

    /// How many nodes could be joined.
    pub fn node_count(&self) -> usize {
        self.threads.iter().map(|thread| thread.places.len()).sum()
    }

    /// How many nodes there are.
    pub fn place_count(&self) -> usize {
        self.node_names.len()
    }

    /// The name of a node.
    pub fn name_of_node(&self, place: u32) -> Option<Name> {
        Some(self.node_names[place as usize])
    }

    /// The name of an operator or annotation that the execution trace has too.
    pub fn name_of_row(&self, row: u32) -> Option<Name> {
        let is_host = matches!(self.trace.kind(row), EventKind::Operator | EventKind::Annotation);
        let name = self.row_names[self.trace.slices.name[row as usize].0 as usize];
        Some(name).filter(|name| is_host && *name != OTHER)
    }

    /// The track of a row.
    pub fn track_of_row(&self, row: u32) -> u64 {
        self.trace.slices.track[row as usize].0.into()
    }

    /// From the first start to the last end.
    pub fn span(&self, rows: impl Iterator<Item = u32>) -> Option<(i64, i64)> {
        let slices = &self.trace.slices;
        let spans = rows.map(|row| (slices.start(row), slices.end(row)));
        spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Start of a row.
    pub fn start(&self, row: u32) -> i64 {
        self.trace.slices.start(row)
    }
}

/// Steps are counted differently by each recording.
fn plain(name: &str) -> &str {
    const STEP: &str = "ProfilerStep#";
    if name.starts_with(STEP) { STEP } else { name }
}

/// Written by the observer when it starts, not a part of the work.
fn is_group(execution: &ExecutionTrace, place: u32) -> bool {
    execution.name(&execution.nodes[place as usize]) == "## process_group:init ##"
}
