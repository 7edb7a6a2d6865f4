//! Defines the nodes and edges of the dependency graph.

use schema::CellType;
use serde::Serialize;

use super::weights::Weights;

/// Identifies a node of a [`DependencyGraph`](super::DependencyGraph) by its index among the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// Identifies an edge of a [`DependencyGraph`](super::DependencyGraph) by its index among the
/// edges, which are sorted by target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct EdgeId(pub u32);

/// The kind of activity that a node represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A thread of the host works.
    HostWork,
    /// A thread of the host hands work to a device.
    Launch,
    /// A device runs a kernel, a copy or a memset.
    Kernel,
    /// The part of one rank in a collective, or the moment at which all ranks have arrived.
    Collective,
    /// The start or the end of a step or window, which takes no time.
    StepMarker,
}

/// The reason why a node waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// The thread ran the source before the target. The weight of the edge is the unrecorded time
    /// between the two.
    ProgramOrder,
    /// The call launched the work, and the weight of the edge is the launch delay.
    Launch,
    /// The stream ran the source before the target. The weight of the edge is the gap between the
    /// two.
    StreamOrder,
    /// A stream or the host waited for work of a device.
    Synchronization,
    /// A thread waited for data that another thread produced.
    Data,
    /// All ranks of a collective wait for the last one to arrive.
    Rendezvous,
}

/// A node of the graph, which is an activity with a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphNode {
    pub kind: NodeKind,
    /// Duration in nanoseconds, from start to end.
    pub weight: i64,
}

/// An edge of the graph: the target starts after the end of the source plus the weight of the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub kind: EdgeKind,
    pub source: NodeId,
    /// The node that waits for the source.
    pub target: NodeId,
    /// Nanoseconds from the end of the source to the earliest start of the target.
    pub weight: i64,
}

/// Edges of a graph, one array per property.
#[derive(Debug, Default)]
pub(super) struct EdgeArrays {
    pub(super) kinds: Vec<EdgeKind>,
    pub(super) sources: Vec<NodeId>,
    pub(super) targets: Vec<NodeId>,
    pub(super) weights: Weights,
}

impl EdgeArrays {
    /// Makes room for more edges.
    pub fn reserve(&mut self, edges: usize) {
        self.kinds.reserve(edges);
        self.sources.reserve(edges);
        self.targets.reserve(edges);
        self.weights.reserve(edges);
    }

    /// Adds an edge after all others.
    pub fn push(&mut self, edge: Edge) {
        self.kinds.push(edge.kind);
        self.sources.push(edge.source);
        self.targets.push(edge.target);
        self.weights.push(edge.weight);
    }

    /// Sorts the edges by target. Edges of one target keep their order.
    pub(super) fn sort(&mut self) {
        if self.targets.is_sorted() {
            return;
        }
        // Builders add edges mostly by target, and the sort recognizes sorted stretches.
        let mut order: Vec<u32> = (0..self.targets.len() as u32).collect();
        order.sort_by_key(|at| self.targets[*at as usize]);
        self.kinds = in_order(&order, &self.kinds);
        self.sources = in_order(&order, &self.sources);
        self.targets = in_order(&order, &self.targets);
        self.weights = order.iter().map(|at| self.weights.get(*at as usize)).collect();
    }
}

fn in_order<T: Copy>(order: &[u32], values: &[T]) -> Vec<T> {
    order.iter().map(|at| values[*at as usize]).collect()
}

impl FromIterator<Edge> for EdgeArrays {
    fn from_iter<I: IntoIterator<Item = Edge>>(edges: I) -> Self {
        let mut arrays = Self::default();
        edges.into_iter().for_each(|edge| arrays.push(edge));
        arrays
    }
}

impl NodeId {
    /// Returns the id as an array index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
