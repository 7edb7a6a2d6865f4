//! Links the nodes of an execution trace to the rows of a Kineto trace of the same job.
//!
//! If both traces have record-function ids from the same recording, the ids link them. Otherwise
//! the order in which each thread started its operators does. The order also links one recorded
//! iteration to many iterations of another recording.

mod align;
mod order;
mod sequence;

use std::collections::{BTreeMap, HashMap};

use crate::execution_trace::ExecutionTrace;
use crate::store::{Trace, TrackId};
use sequence::{HostSequence, Sequence};

/// The result of linking: which node is which row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLink {
    pub method: LinkMethod,
    /// The row of each node, indexed like [`ExecutionTrace::nodes`]. If the recording repeats the
    /// nodes, these are the rows of the first complete repetition.
    pub rows: Vec<Option<u32>>,
    /// Rows of the later complete repetitions, in order of time.
    pub repetitions: Vec<Vec<Option<u32>>>,
    /// By the number of the thread in the execution trace.
    pub threads: Vec<ThreadLink>,
}

/// The evidence by which nodes and rows were linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkMethod {
    /// Rows whose `Record function id` equals the nodes' `rf_id`, with equal names.
    RecordFunction,
    /// Equal names in order of start, thread by thread.
    Order,
}

/// Counts of linked nodes and rows of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadLink {
    pub thread: u64,
    /// The corresponding track of the Kineto trace, if one was found.
    pub track: Option<TrackId>,
    /// Nodes that can be linked: all but roots and process groups.
    pub nodes: u64,
    /// Operators and annotations of the track between the first and the last linked row.
    pub rows: u64,
    pub matched: u64,
}

impl TraceLink {
    /// Returns the share of nodes that were linked, 0..=1. `None` if there are no nodes.
    pub fn node_score(&self) -> Option<f64> {
        self.score(|thread| thread.nodes)
    }

    /// Returns the share of the rows between the first and the last linked one that were linked,
    /// 0..=1. `None` if there are no rows.
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

/// Links by record-function id. Ids start anew in every process, so names must agree too.
fn by_record_function(
    execution: &ExecutionTrace,
    trace: &Trace,
    host: &HostSequence<'_>,
) -> Vec<Option<u32>> {
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

/// Counts the linked nodes and rows of the first repetition.
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

/// Counts the rows of a track from the first linked one to the last.
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
