//! Applies edits to a measured graph, relaxes it, and undoes the edits. What-ifs and the savings of
//! findings both use it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::measured::{MeasuredGraph, PathCategory};
use super::{DependencyGraph, EdgeId, EdgeKind, NodeId, NodeTimes, relax_from};

/// An edge that no longer decides: earlier than any time, and still far from overflow.
const NEVER: i64 = -(1 << 60);

/// The change that an edit makes to its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Multiplies its duration; 0 removes it.
    Scale(f64),
    /// Limits the nodes of one row to this many nanoseconds in all.
    ShortenTo(i64),
    /// Runs in parallel with its successor: priced as taking no time of its own.
    Overlap,
    /// Removes the wait of the host in it: for a device, or for the thread that loads a batch.
    Unblock,
    /// Starts as soon as its thread or stream is free.
    CloseGap,
    /// Its rank arrives at this collective earlier by this many nanoseconds.
    ArriveEarlier(i64),
}

/// One action on some nodes and edges of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    pub nodes: Vec<NodeId>,
    /// Edges that are scaled with them, and how many nanoseconds of each; other actions find theirs
    /// by the nodes.
    pub edges: Vec<(EdgeId, i64)>,
    pub action: Action,
}

/// Total weight of the nodes that an edit changed, before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Number of weights that changed.
    pub changed: u64,
    pub old_ns: i64,
    pub new_ns: i64,
}

/// A measured graph under edits.
#[derive(Debug)]
pub struct Editor<'a> {
    measured: &'a MeasuredGraph,
    graph: DependencyGraph,
    /// Changed weights with their old values, in the order of the changes.
    changes: Vec<EdgeChange>,
    /// The earliest place in the graph's order that an edit has touched.
    earliest: Option<u32>,
}

/// A changed weight with its old value in nanoseconds, which is what an undo restores.
#[derive(Debug)]
enum EdgeChange {
    Node(NodeId, i64),
    Edge(EdgeId, i64),
}

impl<'a> Editor<'a> {
    /// Creates an editor of the graph as it was measured.
    pub fn new(measured: &'a MeasuredGraph) -> Self {
        let graph = measured.graph.clone();
        Self { measured, graph, changes: Vec::new(), earliest: None }
    }

    /// Returns the edited graph.
    pub fn graph(&self) -> &DependencyGraph {
        &self.graph
    }

    /// Makes an edit, on top of those made before: factors multiply.
    ///
    /// # Cost
    /// Linear in the nodes of the edit and the edges into them; in all edges for
    /// [`Action::ArriveEarlier`].
    pub fn apply(&mut self, edit: &Edit) -> Effect {
        let before = self.changes.len();
        match edit.action {
            Action::Scale(factor) => {
                edit.nodes.iter().for_each(|node| self.scale(*node, factor));
                edit.edges.iter().for_each(|&(edge, part)| self.scale_edge(edge, part, factor));
            }
            Action::Overlap => edit.nodes.iter().for_each(|node| self.scale(*node, 0.0)),
            Action::ShortenTo(ns) => self.shorten(&edit.nodes, ns),
            Action::Unblock => {
                edit.nodes.iter().for_each(|node| self.unblock(*node));
            }
            Action::CloseGap => edit.nodes.iter().for_each(|node| self.close_gap(*node)),
            Action::ArriveEarlier(ns) => self.arrive_earlier(&edit.nodes, ns),
        }
        self.effect(before)
    }

    /// Returns the times of all nodes with the edits applied.
    pub fn times(&self) -> NodeTimes {
        let mut times = NodeTimes::default();
        self.update(&mut times);
        times
    }

    /// Writes [`Self::times`] into an existing buffer, which avoids an allocation.
    ///
    /// # Cost
    /// Linear in the nodes and edges that stand behind the first change in the graph's order, plus
    /// one copy of the measured times.
    pub fn update(&self, times: &mut NodeTimes) {
        let measured = &self.measured.times;
        times.origin = measured.origin;
        times.start.clone_from(&measured.start);
        times.end.clone_from(&measured.end);
        if let Some(earliest) = self.earliest {
            relax_from(&self.graph, times, self.graph.order()[earliest as usize]);
        }
    }

    /// Undoes all edits, which restores the measured graph.
    pub fn undo(&mut self) {
        self.earliest = None;
        while let Some(change) = self.changes.pop() {
            match change {
                EdgeChange::Node(node, weight) => self.graph.set_node_weight(node, weight),
                EdgeChange::Edge(edge, weight) => self.graph.set_edge_weight(edge, weight),
            }
        }
    }

    /// Sums the changes from an index on.
    fn effect(&self, before: usize) -> Effect {
        let changed = (self.changes.len() - before) as u64;
        let mut effect = Effect { changed, ..Effect::default() };
        for change in &self.changes[before..] {
            let (old, new) = match *change {
                EdgeChange::Node(node, old) => (old, self.graph.node(node).weight),
                EdgeChange::Edge(edge, old) => (old, self.graph.edge(edge).weight.max(0)),
            };
            effect.old_ns += old;
            effect.new_ns += new;
        }
        effect
    }

    fn scale(&mut self, node: NodeId, factor: f64) {
        let old = self.graph.node(node).weight;
        self.changes.push(EdgeChange::Node(node, old));
        self.graph.set_node_weight(node, scaled(old, factor));
        self.touch(node);
    }

    fn scale_edge(&mut self, edge: EdgeId, part: i64, factor: f64) {
        let weight = self.graph.edge(edge).weight;
        let part = part.min(weight);
        self.set_edge(edge, weight - part + scaled(part, factor));
    }

    fn set_edge(&mut self, id: EdgeId, weight: i64) {
        let edge = self.graph.edge(id);
        self.changes.push(EdgeChange::Edge(id, edge.weight));
        self.graph.set_edge_weight(id, weight);
        self.touch(edge.target);
    }

    fn shorten(&mut self, nodes: &[NodeId], ns: i64) {
        let row = |node: &NodeId| {
            let origin = self.measured.origins[node.index()];
            (origin.scope, origin.row)
        };
        let mut totals: BTreeMap<_, i64> = BTreeMap::new();
        for node in nodes {
            *totals.entry(row(node)).or_default() += self.measured.graph.node(*node).weight;
        }
        let factor = |node| (ns as f64 / totals[&row(node)].max(1) as f64).min(1.0);
        let factors: Vec<f64> = nodes.iter().map(factor).collect();
        nodes.iter().zip(factors).for_each(|(node, factor)| self.scale(*node, factor));
    }

    /// Removes the wait of a node, unless it has no other predecessor.
    fn unblock(&mut self, node: NodeId) {
        let loads = self.measured.origins[node.index()].category == PathCategory::DataLoading;
        let is_wait =
            |kind: EdgeKind| kind == EdgeKind::Synchronization || (loads && kind == EdgeKind::Data);
        if self.graph.edges_into(node).all(|(_, edge)| is_wait(edge.kind)) {
            return;
        }
        self.lower(node, is_wait, NEVER);
    }

    fn close_gap(&mut self, node: NodeId) {
        let is_gap = |kind: EdgeKind| {
            matches!(kind, EdgeKind::ProgramOrder | EdgeKind::StreamOrder | EdgeKind::Launch)
        };
        self.lower(node, is_gap, 0);
    }

    /// Lowers the weights of edges of some kinds into a node.
    fn lower(&mut self, node: NodeId, is_meant: impl Fn(EdgeKind) -> bool, weight: i64) {
        let edges = self.graph.edges_into(node);
        let above = edges.filter(|(_, edge)| is_meant(edge.kind) && edge.weight > weight);
        let above: Vec<EdgeId> = above.map(|(id, _)| id).collect();
        above.into_iter().for_each(|id| self.set_edge(id, weight));
    }

    fn arrive_earlier(&mut self, nodes: &[NodeId], ns: i64) {
        let mut arrivals: Vec<NodeId> = nodes.to_vec();
        arrivals.sort_unstable();
        let leaving = self.graph.edges().filter(|(_, edge)| {
            edge.kind == EdgeKind::Rendezvous && arrivals.binary_search(&edge.source).is_ok()
        });
        let leaving: Vec<(EdgeId, i64)> = leaving.map(|(id, edge)| (id, edge.weight)).collect();
        leaving.into_iter().for_each(|(id, weight)| self.set_edge(id, weight - ns));
    }

    fn touch(&mut self, node: NodeId) {
        let place = self.graph.place(node);
        self.earliest = Some(self.earliest.map_or(place, |earliest| earliest.min(place)));
    }
}

fn scaled(weight: i64, factor: f64) -> i64 {
    (weight as f64 * factor).round() as i64
}
