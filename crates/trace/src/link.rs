//! Links the nodes of an execution trace to the rows of a Kineto trace of the same job.
//!
//! If both traces have record-function ids from the same recording, the ids link them. Otherwise,
//! the order in which each thread started its operators links them. The order can also link one
//! recorded iteration to many iterations of another recording.

mod align;
mod order;
mod sequence;

use std::collections::{BTreeMap, HashMap};

use crate::execution_trace::ExecutionTrace;
use crate::store::{Trace, TrackId};
use sequence::{HostSequence, Sequence};

/// The result of linking, which states the row of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLink {
    pub method: LinkMethod,
    /// The row of each node, indexed like [`ExecutionTrace::nodes`]. If the recording repeats the
    /// nodes, the rows are those of the first complete repetition.
    pub rows: Vec<Option<u32>>,
    /// Rows of the later complete repetitions, in order of time.
    pub repetitions: Vec<Vec<Option<u32>>>,
    /// Counts for each thread of the execution trace, in ascending order of thread number.
    pub threads: Vec<ThreadLink>,
}

/// The evidence by which nodes and rows were linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkMethod {
    /// Rows and nodes have the same name, and the row's `Record function id` equals the node's
    /// `rf_id`.
    RecordFunction,
    /// Rows and nodes have the same names in the order of their starts, thread by thread.
    Order,
}

/// Counts of the linked nodes and rows of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadLink {
    pub thread: u64,
    /// The corresponding track of the Kineto trace, or `None` if no track corresponds.
    pub track: Option<TrackId>,
    /// Number of nodes that can be linked, which excludes roots and process groups.
    pub nodes: u64,
    /// Number of operators and annotations of the track from the first linked row to the last.
    pub rows: u64,
    pub matched: u64,
}

impl TraceLink {
    /// Returns the share of nodes that were linked, 0..=1, or `None` if there are no nodes.
    pub fn node_score(&self) -> Option<f64> {
        self.score(|thread| thread.nodes)
    }

    /// Returns the share of rows that were linked, 0..=1. Only rows from the first linked row to
    /// the last count. Returns `None` if there are no rows.
    pub fn row_score(&self) -> Option<f64> {
        self.score(|thread| thread.rows)
    }

    fn score(&self, total: impl Fn(&ThreadLink) -> u64) -> Option<f64> {
        let all: u64 = self.threads.iter().map(total).sum();
        let matched: u64 = self.threads.iter().map(|thread| thread.matched).sum();
        (all > 0).then(|| matched as f64 / all as f64)
    }
}

/// Links the nodes of an execution trace to the rows of a trace.
///
/// # Cost
/// `O(n log n)` in nodes and rows, times the number of threads of the execution trace.
pub fn join(execution: &ExecutionTrace, trace: &Trace) -> TraceLink {
    let host = HostSequence::new(execution, trace);
    let by_id = by_record_function(execution, trace, &host);
    let matched = count(&by_id);
    // Ids of different recordings agree only by chance. If the ids link fewer than half of the
    // nodes, the order is tried too, and the method that links more nodes is used.
    if matched > 0 && 2 * matched >= host.node_count() {
        return link(LinkMethod::RecordFunction, vec![by_id], &host);
    }
    let by_order = order::repetitions(&host);
    match by_order.first() {
        Some(first) if count(first) >= matched => link(LinkMethod::Order, by_order, &host),
        None if matched == 0 => link(LinkMethod::Order, vec![by_id], &host),
        _ => link(LinkMethod::RecordFunction, vec![by_id], &host),
    }
}

fn count(rows: &[Option<u32>]) -> usize {
    rows.iter().flatten().count()
}

/// Links nodes to rows by record-function id. Ids start anew in every process, so the names must be
/// equal too.
fn by_record_function(
    execution: &ExecutionTrace,
    trace: &Trace,
    host: &HostSequence<'_>,
) -> Vec<Option<u32>> {
    // If an id occurs several times, the first row in the file is used.
    let mut rows: HashMap<u64, u32> = HashMap::new();
    for (row, id) in trace.slices.record_function.iter() {
        if host.name_of_row(row).is_some() {
            rows.entry(*id).or_insert(row);
        }
    }
    let mut row_of_node = vec![None; execution.nodes.len()];
    for node in host.threads.iter().flat_map(|thread| &thread.places) {
        let id = execution.nodes[*node as usize].record_function;
        let row = rows.get(&id).copied().filter(|_| id != 0);
        row_of_node[*node as usize] =
            row.filter(|row| host.name_of_row(*row) == host.name_of_node(*node));
    }
    row_of_node
}

/// Counts the linked nodes and rows of the first repetition, and builds the result.
fn link(
    method: LinkMethod,
    mut repetitions: Vec<Vec<Option<u32>>>,
    host: &HostSequence<'_>,
) -> TraceLink {
    let rows = repetitions.remove(0);
    let threads = host.threads.iter().map(|thread| {
        let joined: Vec<u32> =
            thread.places.iter().filter_map(|place| rows[*place as usize]).collect();
        let track = most_common(joined.iter().map(|row| host.track_of_row(*row)));
        let sequence = track.and_then(|track| host.tracks.iter().find(|all| all.key == track));
        ThreadLink {
            thread: thread.key,
            track: track.map(|track| TrackId(track as u32)),
            nodes: thread.places.len() as u64,
            rows: sequence.map_or(0, |sequence| between(sequence, &joined)),
            matched: joined.len() as u64,
        }
    });
    TraceLink { method, threads: threads.collect(), rows, repetitions }
}

/// Counts the rows of a track from the first linked row to the last.
fn between(track: &Sequence, joined: &[u32]) -> u64 {
    let mut joined = joined.to_vec();
    joined.sort_unstable();
    let is_joined = |row: &u32| joined.binary_search(row).is_ok();
    let first = track.places.iter().position(is_joined);
    let last = track.places.iter().rposition(is_joined);
    first.zip(last).map_or(0, |(first, last)| (last - first + 1) as u64)
}

fn most_common(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    counts.into_iter().find(|(_, count)| *count == most).map(|(value, _)| value)
}
