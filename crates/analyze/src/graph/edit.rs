//! Applies edits to a measured graph, relaxes it, and undoes the edits. Both what-if questions and
//! the savings of findings use this editor.

use std::collections::BTreeMap;

use serde::Serialize;

use super::measured::{MeasuredGraph, PathCategory};
use super::{DependencyGraph, EdgeId, EdgeKind, NodeId, NodeTimes, relax_from};

/// Weight of an edge that can no longer decide any start. The weight makes the edge earlier than
/// any time, and is still far from overflow.
const NEVER: i64 = -(1 << 60);

/// The change that an edit makes to the nodes that it selects.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Multiplies the duration of the nodes by a factor; 0 removes the duration.
    Scale(f64),
    /// Limits the total duration of the nodes of each row to this many nanoseconds.
    ShortenTo(i64),
    /// Lets the nodes run in parallel with their successors, so they take no time of their own.
    Overlap,
    /// Removes the wait of the host inside a call, either for a device or for the thread that loads
    /// a batch.
    Unblock,
    /// Starts the nodes as soon as their thread or stream is free.
    CloseGap,
    /// Lets the rank arrive at the collective earlier by this many nanoseconds.
    ArriveEarlier(i64),
}

/// One action, applied to some nodes and edges of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    pub nodes: Vec<NodeId>,
    /// Edges to scale together with the nodes, and the nanoseconds of each that are scaled. Actions
    /// other than scaling find their edges by the nodes.
    pub edges: Vec<(EdgeId, i64)>,
    pub action: Action,
}

/// Total weight of the nodes and edges that an edit changed, before and after the edit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Number of node and edge weights that changed.
    pub changed: u64,
    pub old_ns: i64,
    pub new_ns: i64,
}

/// A measured graph to which edits are applied and from which they can be undone.
#[derive(Debug)]
pub struct Editor<'a> {
    measured: &'a MeasuredGraph,
    graph: DependencyGraph,
    /// The nodes and edges with changed weights, in the order of the changes.
    changes: Vec<Changed>,
    /// The effect of all edits since the last undo.
    effect: Effect,
    /// The earliest place in the graph's order that an edit has touched.
    earliest: Option<u32>,
}

/// A node or an edge whose weight an undo restores.
#[derive(Debug)]
enum Changed {
    Node(NodeId),
    Edge(EdgeId),
}

impl Effect {
    fn add(&mut self, old_ns: i64, new_ns: i64) {
        self.changed += 1;
        self.old_ns += old_ns;
        self.new_ns += new_ns;
    }

    fn since(self, before: Self) -> Self {
        Self {
            changed: self.changed - before.changed,
            old_ns: self.old_ns - before.old_ns,
            new_ns: self.new_ns - before.new_ns,
        }
    }
}

impl<'a> Editor<'a> {
    /// Creates an editor of the graph as it was measured.
    pub fn new(measured: &'a MeasuredGraph) -> Self {
        let graph = measured.graph.clone();
        Self { measured, graph, changes: Vec::new(), effect: Effect::default(), earliest: None }
    }

    /// Returns the graph with all edits applied.
    pub fn graph(&self) -> &DependencyGraph {
        &self.graph
    }

    /// Applies an edit on top of earlier edits, so that factors multiply.
    ///
    /// # Cost
    /// The cost is linear in the nodes of the edit and the edges into them, and for
    /// [`Action::ArriveEarlier`] in all edges.
    pub fn apply(&mut self, edit: &Edit) -> Effect {
        let before = self.effect;
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
        self.effect.since(before)
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
    /// The cost is linear in the nodes and edges after the first change in the graph's order, plus
    /// one copy of the measured times.
    pub fn update(&self, times: &mut NodeTimes) {
        let measured = &self.measured.times;
        times.origin = measured.origin;
        times.end.clone_from(&measured.end);
        if let Some(earliest) = self.earliest {
            relax_from(&self.graph, times, self.graph.order()[earliest as usize]);
        }
    }

    /// Undoes all edits, which restores the measured graph.
    pub fn undo(&mut self) {
        self.earliest = None;
        self.effect = Effect::default();
        let measured = &self.measured.graph;
        while let Some(change) = self.changes.pop() {
            match change {
                Changed::Node(node) => {
                    self.graph.set_node_weight(node, measured.node(node).weight);
                }
                Changed::Edge(edge) => {
                    self.graph.set_edge_weight(edge, measured.edge(edge).weight);
                }
            }
        }
    }

    fn scale(&mut self, node: NodeId, factor: f64) {
        let old = self.graph.node(node).weight;
        let new = scaled(old, factor);
        self.changes.push(Changed::Node(node));
        self.effect.add(old, new);
        self.graph.set_node_weight(node, new);
        self.touch(node);
    }

    fn scale_edge(&mut self, edge: EdgeId, part: i64, factor: f64) {
        let weight = self.graph.edge(edge).weight;
        let part = part.min(weight);
        self.set_edge(edge, weight - part + scaled(part, factor));
    }

    fn set_edge(&mut self, id: EdgeId, weight: i64) {
        let edge = self.graph.edge(id);
        self.changes.push(Changed::Edge(id));
        self.effect.add(edge.weight, weight.max(0));
        self.graph.set_edge_weight(id, weight);
        self.touch(edge.target);
    }

    fn shorten(&mut self, nodes: &[NodeId], ns: i64) {
        let row = |node: &NodeId| {
            let origin = self.measured.origins[node.index()];
            (origin.scope, origin.row())
        };
        let mut totals: BTreeMap<_, i64> = BTreeMap::new();
        for node in nodes {
            *totals.entry(row(node)).or_default() += self.measured.graph.node(*node).weight;
        }
        let factor = |node| (ns as f64 / totals[&row(node)].max(1) as f64).min(1.0);
        let factors: Vec<f64> = nodes.iter().map(factor).collect();
        nodes.iter().zip(factors).for_each(|(node, factor)| self.scale(*node, factor));
    }

    /// Removes the wait of a node, unless the awaited node is its only predecessor.
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

    /// Lowers the weights of the edges into a node whose kinds are selected.
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
