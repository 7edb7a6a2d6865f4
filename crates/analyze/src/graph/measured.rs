//! Builds the dependency graph of recorded traces, for one or several ranks.
//!
//! The nodes are pieces of what threads and streams did in their windows. An operator is one node
//! for each stretch between the operators inside it. A call is split where the work that it
//! launched begins. If a node began later than the known work that it waited for, the edge from the
//! predecessor that ended last gets the remaining time as its weight. Therefore
//! [`relax`](super::relax) reproduces the measured times to the nanosecond. Every other edge gets
//! the usual duration of such a wait, but never more than the time that passed. Such an edge
//! decides the start of its target only if other work becomes faster. Times of a device are
//! converted to the clock of its host ([`skew`](crate::facts::skew)).

mod device;
mod draft;
mod gap;
mod hand_off;
mod host;
mod label;
mod loader;
mod pause;
mod rendezvous;
mod rows;
mod segment;
#[cfg(test)]
mod tests;
mod wait;

use std::collections::BTreeSet;

use trace::store::TrackId;

use super::{DependencyGraph, Edge, EdgeKind, NodeId, NodeTimes};
use crate::facts::collectives::Collectives;
use crate::facts::interval::{self, Interval};
use crate::facts::job::RankFacts;
use crate::facts::scope::Scope;
use draft::{Candidate, Draft};
use label::PlacedRank;

pub use label::{CATEGORIES, NodeOrigin, Party, PathCategory, ThreadLabel, WaitEvidence};
pub use pause::Pauses;
pub use rows::RowNodes;

/// The nodes that mark the beginning and the end of a rank's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markers {
    pub rank: u32,
    /// Node of zero length at the start of the window.
    pub start: NodeId,
    /// Node of zero length at the end of the window.
    pub end: NodeId,
    /// Nodes at the start and the end of the devices' steps, if these are longer than the host's
    /// steps.
    pub device: Option<(NodeId, NodeId)>,
}

/// The dependency graph of measured windows, with the measured times of its nodes.
#[derive(Clone, Debug)]
pub struct MeasuredGraph {
    /// The graph of all ranks. Relaxing it from `times.origin` without changes reproduces `times`.
    pub graph: DependencyGraph,
    /// Measured times of the nodes in absolute nanoseconds, clipped to the windows.
    pub times: NodeTimes,
    /// Origin of each node: its rank, row, track and category.
    pub origins: Vec<NodeOrigin>,
    /// Start and end markers of each rank, in the order of the scopes.
    pub ranks: Vec<Markers>,
    /// Annotations that label each thread's time between nodes, by rank, track and start.
    pub labels: Vec<Vec<Vec<ThreadLabel>>>,
    /// Times in which recorded Python frames ran, by rank, track and start.
    framed: Vec<Vec<Vec<Interval>>>,
    /// Threads of each rank that load input for other threads.
    loaders: Vec<BTreeSet<TrackId>>,
    /// Number of recorded waits, and of inferred ones.
    pub evidence: WaitEvidence,
}

/// Builds the graph of the windows of some ranks, including the collectives that connect them.
///
/// The edges are the order of each thread and of each stream, launches, waits, hand-offs between
/// the threads of forward and backward pass, and the matched collectives. Waits of streams and of
/// the host are taken as the profiler recorded them, or else inferred (`WaitEvidence` counts both).
///
/// # Cost
/// The cost is `O(n log n)` in the rows of the windows.
pub fn build_measured_graph(facts: &[RankFacts<'_>], collectives: &Collectives) -> MeasuredGraph {
    let scopes = || facts.iter().map(|rank| rank.scope);
    let origin = scopes().map(|scope| scope.window.start).min().unwrap_or_default();
    // The first node must exist before all others, because it is the origin from which relaxing
    // starts.
    let mut draft = Draft::default();
    draft.marker(0, origin, draft::NodeOrder::Start);
    let meetings = rendezvous::meetings(facts, collectives);
    let mut ranks = Vec::new();
    let mut labels = Vec::new();
    let loaders: Vec<BTreeSet<TrackId>> = scopes().map(loader::tracks).collect();
    for (at, rank) in facts.iter().enumerate() {
        let clocks = device::RankClocks { skews: rank.skews(), meetings: &meetings };
        let inputs = KnownRank { clocks: &clocks, loaders: &loaders[at] };
        let (markers, named) = add_rank(&mut draft, at as u32, rank, &inputs);
        ranks.push(markers);
        labels.push(named);
    }
    // The nodes of a meeting belong to several ranks, so they are joined after all ranks were
    // added.
    rendezvous::join(&mut draft, &meetings);
    draft.times.origin = origin;
    let Draft { starts, times, origins, kinds, edges, evidence, .. } = draft;
    let weights = starts.into_iter().zip(&times.end).map(|(start, end)| end - start).collect();
    let graph = DependencyGraph::from_arrays(kinds, weights, edges);
    let framed = scopes().map(framed).collect();
    MeasuredGraph { graph, times, origins, ranks, labels, framed, loaders, evidence }
}

impl MeasuredGraph {
    /// Returns the length of a rank's steps on the host, or on the devices if that is longer.
    /// `rank` is the index of the rank among the scopes.
    pub fn length_ns(&self, rank: usize, times: &NodeTimes) -> i64 {
        let host = self.host_ns(rank, times);
        self.device_ns(rank, times).map_or(host, |device| host.max(device))
    }

    /// Returns the length of a rank's window on its host.
    pub fn host_ns(&self, rank: usize, times: &NodeTimes) -> i64 {
        let Markers { start, end, .. } = self.ranks[rank];
        // Edits to work before the window do not move the start of the window.
        times.end[end.index()] - self.times.end[start.index()]
    }

    /// Returns the length of the devices' steps, if they were measured to be longer than the
    /// host's.
    pub fn device_ns(&self, rank: usize, times: &NodeTimes) -> Option<i64> {
        let (from, to) = self.ranks[rank].device?;
        Some(times.end[to.index()] - times.end[from.index()])
    }

    /// Returns the annotation around a time in which a thread ran nothing else that was recorded.
    pub fn label(&self, scope: u32, track: TrackId, time: i64) -> Option<u32> {
        let labels = self.labels[scope as usize].get(track.0 as usize)?;
        let at = labels.partition_point(|label| label.end <= time);
        labels.get(at).filter(|label| label.start <= time).map(|label| label.row)
    }

    /// Returns whether a node belongs to a thread that loads input for another one, so that pauses
    /// of the other thread are waits for this one.
    fn is_loading(&self, of: NodeOrigin) -> bool {
        of.track().is_some_and(|track| self.loaders[of.scope as usize].contains(&track))
    }

    /// Returns how much of the time across an edge was spent in recorded Python frames, and the
    /// total time across it.
    pub fn framed_ns(&self, edge: &Edge) -> (i64, i64) {
        let (target, source) =
            (self.origins[edge.target.index()], self.origins[edge.source.index()]);
        let span =
            (self.times.end[edge.source.index()], self.graph.start(&self.times, edge.target));
        let origin = if target.track().is_some() { target } else { source };
        let track_spans = |track: TrackId| self.framed[origin.scope as usize].get(track.0 as usize);
        let framed = origin.track().and_then(track_spans).map_or(&[][..], Vec::as_slice);
        let passed = (span.1 - span.0).max(0);
        (if passed > 0 { interval::length_within(framed, span) } else { 0 }, passed)
    }

    /// Returns the category on which most of the time across an edge was spent.
    pub fn edge_category(&self, edge: &Edge) -> PathCategory {
        let target = self.origins[edge.target.index()];
        match edge.kind {
            EdgeKind::Launch => PathCategory::LaunchDelay,
            EdgeKind::StreamOrder => PathCategory::DeviceGap,
            EdgeKind::Synchronization if target.category.is_of_device() => PathCategory::DeviceGap,
            EdgeKind::Synchronization => PathCategory::SynchronizationReturn,
            EdgeKind::ProgramOrder if self.is_loading(target) => PathCategory::DataLoading,
            EdgeKind::ProgramOrder | EdgeKind::Data => {
                let (framed, passed) = self.framed_ns(edge);
                let is_mostly = framed > 0 && 2 * framed >= passed;
                if is_mostly { PathCategory::PythonFrame } else { PathCategory::UntracedHost }
            }
            EdgeKind::Rendezvous => PathCategory::CommunicationWait,
        }
    }
}

/// Returns, for each track, the times in which any Python frame ran.
fn framed(scope: &Scope<'_>) -> Vec<Vec<Interval>> {
    let all = (i64::MIN, i64::MAX);
    let framed_in = |track: usize| {
        let stretches = scope.frames().within(TrackId(track as u32), all);
        interval::union(stretches.map(|one| (one.start, one.end)).collect())
    };
    let count = if scope.frames().is_empty() { 0 } else { scope.trace.tracks.len() };
    (0..count).map(framed_in).collect()
}

/// Facts of one rank that are needed to build its part of the graph.
struct KnownRank<'a> {
    clocks: &'a device::RankClocks<'a>,
    loaders: &'a BTreeSet<TrackId>,
}

fn add_rank(
    draft: &mut Draft,
    at: u32,
    rank: &RankFacts<'_>,
    known: &KnownRank<'_>,
) -> (Markers, Vec<Vec<ThreadLabel>>) {
    let KnownRank { clocks, loaders } = *known;
    let scope = rank.scope;
    let mut device = device::DeviceWork::draft(draft, (at, scope), clocks);
    let start = draft.marker(at, scope.window.start, draft::NodeOrder::Start);
    // Another thread may still be building the tree, so the device work comes first.
    let tree = rank.tree();
    // Each host row gives at most two segments.
    draft.reserve(2 * tree.nodes.len() + scope.device_rows.len());
    let waits = wait::Waits::new(scope, &device);
    let mut labels = vec![Vec::new(); scope.trace.tracks.len()];
    let mut chains = Vec::new();
    for thread in &tree.threads {
        let (waits, pressure) = (&waits, rank.pressure());
        let on = host::RankDraft { at, scope, waits, pressure, device: &mut device };
        let mut chain = host::ChainDraft::new(draft, on, thread.track);
        labels[thread.track.0 as usize] = host::add_segments(&mut chain, tree, thread);
        chains.push(chain.finish());
    }
    for track in loaders.iter().filter(|track| tree.thread(**track).is_none()) {
        let (waits, pressure) = (&waits, rank.pressure());
        let on = host::RankDraft { at, scope, waits, pressure, device: &mut device };
        let mut chain = host::ChainDraft::new(draft, on, *track);
        loader::add_puts(&mut chain, scope, *track);
        chains.push(chain.finish());
    }
    let loading = chains.iter_mut().filter(|chain| loaders.contains(&chain.track));
    loading.for_each(|chain| loader::mark(draft, chain));
    gap::explain(draft, scope, &waits, &mut device);
    device.stream_waits.sort_unstable();
    hand_off::find(draft, scope, &mut chains);
    loader::find(draft, scope, &mut chains, loaders);
    // In the order of the ids, so that the edges are sorted by target.
    device::bind(draft, &device, start);
    // The first node is the origin of all ranks.
    let origin = Candidate { source: NodeId(0), kind: EdgeKind::ProgramOrder, usual: 0 };
    draft.bind(start, &[], origin);
    for chain in &chains {
        host::bind(draft, chain, start, &device);
    }
    let end = end_marker(draft, (at, scope), start, &chains, &device);
    let device = device::steps(draft, (at, scope), start, end, &device);
    (Markers { rank: scope.trace.rank, start, end, device }, labels)
}

/// Adds the node that ends a window. The end waits for the node that ended last in the window, and
/// for device work if several nodes ended at that time. Threads that neither ran an operator nor
/// launched work are ignored, unless all threads are like that.
fn end_marker(
    draft: &mut Draft,
    (at, scope): PlacedRank<'_, '_>,
    start: NodeId,
    chains: &[host::Chain],
    device: &device::DeviceWork,
) -> NodeId {
    let end = draft.marker(at, scope.window.end, draft::NodeOrder::End);
    // The steps of devices that lag behind have an end of their own, because the window cuts off
    // their work.
    let streams = device.streams.iter().filter(|_| scope.device_span.is_none());
    let streams = streams.filter_map(|stream| {
        device.works[stream.clone()].iter().rev().find_map(|work| work.inside)
    });
    let only_watch = !chains.iter().any(|chain| chain.works);
    let threads = chains.iter().filter(|chain| chain.works || only_watch);
    let last = streams.chain(threads.filter_map(|chain| chain.nodes().next_back()));
    let kind = EdgeKind::ProgramOrder;
    let candidates: Vec<_> = last.map(|source| Candidate { source, kind, usual: 0 }).collect();
    draft.bind(end, &candidates, Candidate { source: start, kind, usual: 0 });
    end
}
