//! Converts an execution trace and a Kineto trace to sequences of names, one per thread, in order
//! of start.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::execution_trace::ExecutionTrace;
use crate::store::{EventKind, Trace};

/// The id of a name that occurs in the execution trace. [`OTHER`] stands for all other names.
pub type Name = u32;
pub const OTHER: Name = u32::MAX;

/// The names of the operators that one thread started, in order.
pub struct Sequence {
    /// Number of the thread in the execution trace, or of the track in the Kineto trace.
    pub key: u64,
    pub names: Vec<Name>,
    /// Indices of the nodes in the execution trace, or of the rows in the Kineto trace.
    pub places: Vec<u32>,
}

/// The operators of the host as both traces recorded them.
pub struct HostSequence<'a> {
    trace: &'a Trace,
    /// Threads of the execution trace, by their number.
    pub threads: Vec<Sequence>,
    pub tracks: Vec<Sequence>,
    /// Name of each node, indexed like the nodes.
    node_names: Vec<Name>,
    /// Name of each text, indexed by the trace's string id.
    row_names: Vec<Name>,
}

impl<'a> HostSequence<'a> {
    /// Collects the threads of the execution trace, and the tracks of the Kineto trace that have
    /// operators or annotations.
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
        // If starts are equal, the profiler's event index decides. Without an event index, the
        // longer event is the outer one and comes first.
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

    /// Counts the nodes that can be linked.
    pub fn node_count(&self) -> usize {
        self.threads.iter().map(|thread| thread.places.len()).sum()
    }

    /// Counts all nodes of the execution trace.
    pub fn place_count(&self) -> usize {
        self.node_names.len()
    }

    /// Returns the name id of a node.
    pub fn name_of_node(&self, place: u32) -> Option<Name> {
        Some(self.node_names[place as usize])
    }

    /// Returns the name id of an operator or annotation. Returns `None` for other rows, and for
    /// names that do not occur in the execution trace.
    pub fn name_of_row(&self, row: u32) -> Option<Name> {
        let is_host = matches!(self.trace.kind(row), EventKind::Operator | EventKind::Annotation);
        let name = self.row_names[self.trace.slices.name[row as usize].0 as usize];
        Some(name).filter(|name| is_host && *name != OTHER)
    }

    /// Returns the index of a row's track.
    pub fn track_of_row(&self, row: u32) -> u64 {
        self.trace.slices.track[row as usize].0.into()
    }

    /// Returns the time from the first start to the last end of the given rows.
    pub fn span(&self, rows: impl Iterator<Item = u32>) -> Option<(i64, i64)> {
        let slices = &self.trace.slices;
        let spans = rows.map(|row| (slices.start(row), slices.end(row)));
        spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Returns the start time of a row in absolute nanoseconds.
    pub fn start(&self, row: u32) -> i64 {
        self.trace.slices.start(row)
    }
}

/// Removes the step number from a step's name, because each recording counts steps differently.
fn plain(name: &str) -> &str {
    const STEP: &str = "ProfilerStep#";
    if name.starts_with(STEP) { STEP } else { name }
}

/// Whether a node lists process groups. PyTorch's observer writes such a node when it starts, so
/// the node is not part of the work.
fn is_group(execution: &ExecutionTrace, place: u32) -> bool {
    execution.name(&execution.nodes[place as usize]) == "## process_group:init ##"
}
