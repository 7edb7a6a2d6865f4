//! Nodes and edges of the dependency graph.

use schema::CellType;
use serde::Serialize;

/// A node of a [`DependencyGraph`](super::DependencyGraph): its place among the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// An edge of a [`DependencyGraph`](super::DependencyGraph): its place among the edges, which stand
/// by target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct EdgeId(pub u32);

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A thread of the host works.
    HostWork,
    /// A thread of the host hands work to a device.
    Launch,
    /// A device works: a kernel, a copy, a set.
    Kernel,
    /// A rank's part of a collective, or the moment at which all ranks have arrived.
    Collective,
    /// The start or the end of a step or window; takes no time.
    StepMarker,
}

/// Why a node waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// The thread did the source before the target. The weight is the unrecorded time between them.
    ProgramOrder,
    /// The call launched the work; the weight is the launch delay.
    Launch,
    /// The stream ran the source before the target. The weight is the gap between them.
    StreamOrder,
    /// A stream or the host waited for work of a device.
    Synchronization,
    /// A thread waited for what another one produced.
    Data,
    /// All ranks of a collective wait for the last one.
    Rendezvous,
}

/// A node: an activity and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphNode {
    pub kind: NodeKind,
    /// Nanoseconds from start to end.
    pub weight: i64,
}

/// An edge: the target starts after the source has ended, plus a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub kind: EdgeKind,
    pub source: NodeId,
    /// The node that waits.
    pub target: NodeId,
    /// Nanoseconds from the end of the source to the earliest start of the target.
    pub weight: i64,
}

impl NodeId {
    /// Returns the id as an array index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
