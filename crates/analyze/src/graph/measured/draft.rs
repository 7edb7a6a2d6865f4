//! Drafts a graph: collects nodes with their measured times, and derives the weights of the edges
//! from these times.

use super::label::{NodeOrigin, PathCategory, WaitEvidence};
use crate::graph::node::EdgeArrays;
use crate::graph::{Edge, EdgeKind, NodeId, NodeKind, NodeTimes};

/// A graph under construction. Nodes have one array per property, which the finished graph takes
/// over.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// Measured starts of the nodes.
    pub starts: Vec<i64>,
    /// Measured ends of the nodes.
    pub times: NodeTimes,
    pub origins: Vec<NodeOrigin>,
    pub kinds: Vec<NodeKind>,
    orders: Vec<NodeOrder>,
    pub edges: EdgeArrays,
    pub evidence: WaitEvidence,
}

/// A node of the draft, with its measured start and end.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftNode {
    pub kind: NodeKind,
    pub start: i64,
    pub end: i64,
    pub order: NodeOrder,
    pub origin: NodeOrigin,
}

/// Order of nodes that start at the same time. Edges point forwards in the order of (start,
/// `NodeOrder`, id), so they cannot form a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeOrder {
    Start,
    Host,
    Device,
    Meeting,
    Transfer,
    End,
}

/// A node that another node may have waited for, with the kind of that dependency.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub source: NodeId,
    pub kind: EdgeKind,
    /// Nanoseconds that usually pass from the end of the source to the start of the waiting node.
    pub usual: i64,
}

impl Draft {
    /// Adds a node and returns its id. Ids count up from 0 in the order in which nodes are added.
    pub fn add(&mut self, node: DraftNode) -> NodeId {
        let DraftNode { kind, start, end, order, origin } = node;
        self.starts.push(start);
        self.times.end.push(end);
        self.origins.push(origin);
        self.kinds.push(kind);
        self.orders.push(order);
        NodeId(self.kinds.len() as u32 - 1)
    }

    /// Makes room for more nodes and for the edges into them.
    pub fn reserve(&mut self, nodes: usize) {
        self.starts.reserve(nodes);
        self.times.end.reserve(nodes);
        self.origins.reserve(nodes);
        self.kinds.reserve(nodes);
        self.orders.reserve(nodes);
        // Graphs have slightly more edges than nodes.
        self.edges.reserve(nodes + nodes / 4);
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Adds a node of zero length that marks a moment.
    pub fn marker(&mut self, scope: u32, time: i64, order: NodeOrder) -> NodeId {
        let category = PathCategory::UntracedHost;
        let origin = NodeOrigin::without_row(scope, category);
        let kind = NodeKind::StepMarker;
        self.add(DraftNode { kind, start: time, end: time, order, origin })
    }

    /// Returns the measured end of a node.
    pub fn end(&self, node: NodeId) -> i64 {
        self.times.end[node.index()]
    }

    /// Returns the kind of a node.
    pub fn kind(&self, node: NodeId) -> NodeKind {
        self.kinds[node.index()]
    }

    /// Adds the edges into a node so that relaxing the graph gives the node's measured start. The
    /// candidate whose end plus usual wait comes last decides, and its edge gets all the time that
    /// passed. The edges of the other candidates get their usual wait, or less if less time passed.
    /// Candidates that contradict the measured times are left out. If none remains, `otherwise`
    /// decides.
    pub fn bind(&mut self, target: NodeId, candidates: &[Candidate], otherwise: Candidate) {
        let start = self.starts[target.index()];
        let is_possible = |draft: &Self, one: &Candidate| {
            draft.end(one.source) <= start && draft.precedes(one.source, target)
        };
        let mut deciding: Option<(i64, usize)> = None;
        for (at, one) in candidates.iter().enumerate() {
            let ready = (self.end(one.source) + one.usual).min(start);
            // If several candidates would be ready last, the first of them decides.
            if is_possible(self, one) && deciding.is_none_or(|(latest, _)| latest < ready) {
                deciding = Some((ready, at));
            }
        }
        for (at, one) in candidates.iter().enumerate() {
            if is_possible(self, one) {
                let passed = start - self.end(one.source);
                let decides = deciding.is_some_and(|(_, deciding)| deciding == at);
                let weight = if decides { passed } else { one.usual.min(passed) };
                self.edges.push(Edge { kind: one.kind, source: one.source, target, weight });
            }
        }
        if deciding.is_none() {
            let Candidate { source, kind, .. } = otherwise;
            self.edges.push(Edge { kind, source, target, weight: start - self.end(source) });
        }
    }

    fn precedes(&self, a: NodeId, b: NodeId) -> bool {
        let place = |id: NodeId| (self.starts[id.index()], self.orders[id.index()], id);
        place(a) < place(b)
    }
}
