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
/// The stretches cover the time in between without gaps, and the latest stretch comes first.
pub(crate) fn walk_back(relaxed: RelaxedGraph<'_>, rank: usize, reach: Reach) -> PathWalk<'_> {
    walk_back_from(relaxed, relaxed.measured.ranks[rank].end, reach, i64::MIN)
}

/// Walks back from the end of a node to a given time.
pub(crate) fn walk_back_from(
    relaxed: RelaxedGraph<'_>,
    from: NodeId,
    reach: Reach,
    until: i64,
) -> PathWalk<'_> {
    let at = relaxed.times.end[from.index()];
    PathWalk { relaxed, reach, until, at, place: Some(WalkPlace::Node(from)) }
}

/// A walk in progress, which yields its stretches.
pub(crate) struct PathWalk<'a> {
    relaxed: RelaxedGraph<'a>,
    reach: Reach,
    until: i64,
    /// Time down to which stretches were yielded.
    at: i64,
    /// The next place to visit; `None` at the end of the walk.
    place: Option<WalkPlace>,
}

/// A node or an edge on the way of a walk.
enum WalkPlace {
    Node(NodeId),
    Edge(WalkStep),
}

impl Iterator for PathWalk<'_> {
    type Item = WalkStretch;

    fn next(&mut self) -> Option<WalkStretch> {
        loop {
            let stretch = match self.place.take()? {
                WalkPlace::Node(node) => self.visit_node(node),
                WalkPlace::Edge(step) => self.visit_edge(&step),
            };
            // A place that takes no time yields nothing.
            let start = stretch.start.min(self.at);
            let end = std::mem::replace(&mut self.at, start);
            if start < end {
                return Some(WalkStretch { end, ..stretch });
            }
        }
    }
}

impl PathWalk<'_> {
    fn visit_node(&mut self, node: NodeId) -> WalkStretch {
        let RelaxedGraph { measured, graph, times } = self.relaxed;
        let origin = measured.origins[node.index()];
        // The start of the window is an edge's target too, but the path must not leave the window.
        let is_start = node == measured.ranks[origin.scope as usize].start;
        let next = if is_start { None } else { step(self.relaxed, node, self.reach) };
        let via = next.as_ref().map(|step| graph.edge(step.edge).kind);
        let start = graph.start(times, node);
        let goes_on = self.at.min(start) > self.until;
        self.place = next.filter(|_| goes_on).map(WalkPlace::Edge);
        let (what, category) = (StretchPlace::Node(node), origin.category);
        WalkStretch { start, end: self.at, what, category, via, peer: None }
    }

    fn visit_edge(&mut self, step: &WalkStep) -> WalkStretch {
        let RelaxedGraph { measured, graph, times } = self.relaxed;
        let edge = graph.edge(step.edge);
        self.place = Some(WalkPlace::Node(edge.source));
        let start = times.end[edge.source.index()];
        WalkStretch {
            start,
            end: self.at,
            what: StretchPlace::Edge(step.edge),
            // The category of an edge without time of its own costs a search and is not used.
            category: match start < self.at {
                true => measured.edge_category(&edge),
                false => PathCategory::UntracedHost,
            },
            via: Some(edge.kind),
            peer: step.peer,
        }
    }
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
        edge.kind == EdgeKind::Rendezvous && measured.origins[edge.source.index()].row().is_none();
    if reach == Reach::Job || !leaves {
        return Some(WalkStep { edge: deciding, peer: None });
    }
    // The node at which ranks meet would lead to another rank, so the walk takes the arrival of its
    // own rank.
    let is_own = |source: NodeId| measured.origins[source.index()].row().is_some();
    let own = graph.edges_into(node).find(|(_, edge)| is_own(edge.source));
    let last = graph::deciding_edge(graph, times, edge.source);
    let peer = last.map(|last| graph.edge(last).source);
    own.map(|(edge, _)| WalkStep { edge, peer })
}
