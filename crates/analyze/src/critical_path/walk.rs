//! The walk back from the end of a window along what decided. Knows no rows and no names.

use crate::graph::measured::{Category, MeasuredGraph};
use crate::graph::{self, DependencyGraph, EdgeId, EdgeKind, NodeId, Times};

/// How far a walk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It stays on its rank: waiting for a peer is a stretch.
    Rank,
    /// It hops to the peer that was waited for.
    Job,
}

/// Part of a walk, never empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub start: i64,
    pub end: i64,
    pub what: What,
    pub category: Category,
    /// The edge by which it began.
    pub via: Option<EdgeKind>,
    /// A node of the rank that was waited for.
    pub peer: Option<NodeId>,
}

/// What a stretch lies on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Node(NodeId),
    Edge(EdgeId),
}

/// Walks from the end of a rank's window to the start of the window of the rank where it arrives.
///
/// `graph` and `times` may be those of a what-if; the stretches tile what lies between.
pub(crate) fn walk(
    measured: &MeasuredGraph,
    graph: &DependencyGraph,
    times: &Times,
    (rank, reach): (usize, Reach),
) -> Vec<Stretch> {
    let end = measured.ranks[rank].end;
    let mut stretches = walk_from((measured, graph, times), end, (reach, i64::MIN));
    stretches.reverse();
    stretches
}

/// Walks back from the end of a node until a time; the stretches come latest first.
pub(crate) fn walk_from(
    (measured, graph, times): (&MeasuredGraph, &DependencyGraph, &Times),
    from: NodeId,
    (reach, until): (Reach, i64),
) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut node = from;
    let mut at = times.end[node.index()];
    loop {
        let origin = measured.origins[node.index()];
        let starts = node == measured.ranks[origin.scope as usize].start;
        let next = if starts { None } else { step(measured, graph, times, (node, reach)) };
        let via = next.as_ref().map(|step| graph.edge(step.edge).kind);
        let start = times.start[node.index()];
        if start < at {
            let (what, category) = (What::Node(node), origin.category);
            stretches.push(Stretch { start, end: at, what, category, via, peer: None });
            at = start;
        }
        let Some(Step { edge, peer }) = next.filter(|_| at > until) else { break };
        let joined = graph.edge(edge);
        let ended = times.end[joined.source.index()];
        if ended < at {
            let (what, category) = (What::Edge(edge), measured.edge_category(&joined));
            stretches.push(Stretch { start: ended, end: at, what, category, via, peer });
            at = ended;
        }
        node = joined.source;
    }
    stretches
}

struct Step {
    edge: EdgeId,
    peer: Option<NodeId>,
}

/// The edge a walk leaves a node by.
fn step(
    measured: &MeasuredGraph,
    graph: &DependencyGraph,
    times: &Times,
    (node, reach): (NodeId, Reach),
) -> Option<Step> {
    let deciding = graph::deciding_edge(graph, times, node)?;
    let edge = graph.edge(deciding);
    let leaves =
        edge.kind == EdgeKind::Rendezvous && measured.origins[edge.source.index()].row.is_none();
    if reach == Reach::Job || !leaves {
        return Some(Step { edge: deciding, peer: None });
    }
    // Through the meeting point the walk would leave the rank; its own arrival is beside it.
    let is_own = |source: NodeId| measured.origins[source.index()].row.is_some();
    let own = graph.edges_into(node).find(|(_, edge)| is_own(edge.source));
    let last = graph::deciding_edge(graph, times, edge.source);
    let peer = last.map(|last| graph.edge(last).source);
    own.map(|(edge, _)| Step { edge, peer })
}
