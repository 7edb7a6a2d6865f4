//! Joins the nodes of an execution trace to the rows of a Kineto trace of the same job.
//!
//! By record-function id where both traces have it and were recorded together; otherwise by the
//! order in which each thread began its operators, which also joins one recorded iteration to the
//! many of another recording. Knows names and order, not what operators do.

mod align;
mod order;
mod sequence;

use std::collections::{BTreeMap, HashMap};

use crate::execution_trace::ExecutionTrace;
use crate::store::{Trace, TrackId};
use sequence::{HostSequence, Sequence};

/// Which node is which row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLink {
    /// How they were joined.
    pub method: LinkMethod,
    /// The row of each node, by its place in [`ExecutionTrace::nodes`]. Where a recording repeats
    /// the nodes, those of the first whole repetition.
    pub rows: Vec<Option<u32>>,
    /// Later whole repetitions, as `rows`, by time.
    pub repetitions: Vec<Vec<Option<u32>>>,
    /// The threads of the execution trace, by number.
    pub threads: Vec<ThreadLink>,
}

/// How nodes and rows were joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkMethod {
    /// `Record function id` of the rows is `rf_id` of the nodes, and names agree.
    RecordFunction,
    /// Names in order of start, thread by thread.
    Order,
}

/// How much of one thread was joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadLink {
    /// The thread in the execution trace.
    pub thread: u64,
    /// The thread in the Kineto trace; `None` if there is none like it.
    pub track: Option<TrackId>,
    /// Nodes that could be joined: all but roots and process groups.
    pub nodes: u64,
    /// Operators and annotations of the track, from the first joined to the last.
    pub rows: u64,
    /// Nodes that were joined.
    pub matched: u64,
}

impl TraceLink {
    /// Share of the nodes that were joined, 0..=1; `None` if there are none.
    pub fn node_score(&self) -> Option<f64> {
        self.score(|thread| thread.nodes)
    }

    /// Share of the rows in between that were joined, 0..=1; `None` if there are none.
    pub fn row_score(&self) -> Option<f64> {
        self.score(|thread| thread.rows)
    }

    fn score(&self, of: impl Fn(&ThreadLink) -> u64) -> Option<f64> {
        let all: u64 = self.threads.iter().map(of).sum();
        let matched: u64 = self.threads.iter().map(|thread| thread.matched).sum();
        (all > 0).then(|| matched as f64 / all as f64)
    }
}

/// Joins the nodes of an execution trace to the rows of a trace.
///
/// # Cost
/// `O(n log n)` in nodes and rows, times the threads of the execution trace.
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

/// Ids begin anew in every process, so names must agree too.
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
    let mut found = vec![None; execution.nodes.len()];
    for node in host.threads.iter().flat_map(|thread| &thread.places) {
        let id = execution.nodes[*node as usize].record_function;
        let row = rows.get(&id).copied().filter(|_| id != 0);
        found[*node as usize] =
            row.filter(|row| host.name_of_row(*row) == host.name_of_node(*node));
    }
    found
}

/// Counts how well the first repetition fits.
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

/// Rows of a track from the first joined one to the last.
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
