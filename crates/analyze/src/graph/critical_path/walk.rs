//! Walks the critical path backwards from the end of the window, from each event to the predecessor
//! that finished last.

use crate::graph::measured::{MeasuredGraph, PathCategory};
use crate::graph::{self, DependencyGraph, EdgeId, EdgeKind, NodeId, NodeTimes};

/// Whether a walk stays on its rank or follows waits to other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The walk stays on its rank, and waiting for a peer is a stretch of its own.
    Rank,
    /// The walk follows a wait to the peer that was awaited.
    Job,
}

/// One stretch of a walk, which is never empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalkStretch {
    pub start: i64,
    pub end: i64,
    pub what: StretchPlace,
    pub category: PathCategory,
    /// The kind of edge by which the stretch began.
    pub via: Option<EdgeKind>,
    /// A node of the peer that was awaited during the stretch.
    pub peer: Option<NodeId>,
}

/// The node or the edge of the graph on which a stretch of the path lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StretchPlace {
    Node(NodeId),
    Edge(EdgeId),
}

/// A measured graph, as recorded or with edits, together with the times that follow from it.
#[derive(Clone, Copy)]
pub(crate) struct RelaxedGraph<'a> {
    pub measured: &'a MeasuredGraph,
    pub graph: &'a DependencyGraph,
    pub times: &'a NodeTimes,
}

impl<'a> RelaxedGraph<'a> {
    /// Returns the graph and the times as they were recorded.
    pub fn recorded(measured: &'a MeasuredGraph) -> Self {
        Self { measured, graph: &measured.graph, times: &measured.times }
    }
}

/// Walks from the end of a rank's window back to the start of the window of the rank where the walk
/// arrives.
///
/// The stretches cover the time in between without gaps.
pub(crate) fn walk(relaxed: RelaxedGraph<'_>, rank: usize, reach: Reach) -> Vec<WalkStretch> {
    let end = relaxed.measured.ranks[rank].end;
    let mut stretches = walk_from(relaxed, end, reach, i64::MIN);
    stretches.reverse();
    stretches
}

/// Walks back from the end of a node to a given time, and returns the stretches in reverse order of
/// time.
pub(crate) fn walk_from(
    relaxed: RelaxedGraph<'_>,
    from: NodeId,
    reach: Reach,
    until: i64,
) -> Vec<WalkStretch> {
    let RelaxedGraph { measured, graph, times } = relaxed;
    let mut stretches = Vec::new();
    let mut node = from;
    let mut at = times.end[node.index()];
    loop {
        let origin = measured.origins[node.index()];
        // The start of the window is an edge's target too, but the path must not leave the window.
        let starts = node == measured.ranks[origin.scope as usize].start;
        let next = if starts { None } else { step(relaxed, node, reach) };
        let via = next.as_ref().map(|step| graph.edge(step.edge).kind);
        let start = times.start[node.index()];
        if start < at {
            let (what, category) = (StretchPlace::Node(node), origin.category);
            stretches.push(WalkStretch { start, end: at, what, category, via, peer: None });
            at = start;
        }
        let Some(WalkStep { edge, peer }) = next.filter(|_| at > until) else { break };
        let joined = graph.edge(edge);
        let ended = times.end[joined.source.index()];
        if ended < at {
            let (what, category) = (StretchPlace::Edge(edge), measured.edge_category(&joined));
            stretches.push(WalkStretch { start: ended, end: at, what, category, via, peer });
            at = ended;
        }
        node = joined.source;
    }
    stretches
}

/// One step of a walk: the edge to follow backwards and, if the path would leave the rank, the node
/// of the peer that arrived last.
struct WalkStep {
    edge: EdgeId,
    peer: Option<NodeId>,
}

/// Returns the edge by which the walk leaves a node backwards.
fn step(relaxed: RelaxedGraph<'_>, node: NodeId, reach: Reach) -> Option<WalkStep> {
    let RelaxedGraph { measured, graph, times } = relaxed;
    let deciding = graph::deciding_edge(graph, times, node)?;
    let edge = graph.edge(deciding);
    let leaves =
        edge.kind == EdgeKind::Rendezvous && measured.origins[edge.source.index()].row.is_none();
    if reach == Reach::Job || !leaves {
        return Some(WalkStep { edge: deciding, peer: None });
    }
    // The node at which ranks meet would lead to another rank, so the walk takes the arrival of its
    // own rank.
    let is_own = |source: NodeId| measured.origins[source.index()].row.is_some();
    let own = graph.edges_into(node).find(|(_, edge)| is_own(edge.source));
    let last = graph::deciding_edge(graph, times, edge.source);
    let peer = last.map(|last| graph.edge(last).source);
    own.map(|(edge, _)| WalkStep { edge, peer })
}
