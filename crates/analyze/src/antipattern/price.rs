//! What edits of the measured graph save. The engine is `graph::relax_from`; this only applies
//! edits, asks, and takes them back. Knows no rule.

use std::collections::BTreeSet;

use super::finding::{Action, Edit};
use crate::graph::measured::MeasuredGraph;
use crate::graph::{self, DependencyGraph, EdgeId, EdgeKind, NodeId, Times};
use crate::scope::Scope;

#[cfg(test)]
mod tests;

/// An edge that no longer decides: earlier than any time, and still far from overflow.
const NEVER: i64 = -(1 << 60);

/// A graph that can be edited and put back.
pub(super) struct Pricer<'a> {
    measured: &'a MeasuredGraph,
    graph: DependencyGraph,
    /// Per scope, per row of the trace, and one behind: its first place in `nodes`.
    first: Vec<Vec<u32>>,
    /// Per scope.
    nodes: Vec<Vec<NodeId>>,
    ranks: Vec<u32>,
    /// Weights before the edits.
    old_nodes: Vec<(NodeId, i64)>,
    old_edges: Vec<(EdgeId, i64)>,
    /// The earliest place in the order that an edit has touched.
    earliest: Option<usize>,
    /// Per node.
    place: Vec<u32>,
}

impl<'a> Pricer<'a> {
    /// # Cost
    /// `O(nodes + edges + rows)`.
    pub fn new(scopes: &[Scope<'_>], measured: &'a MeasuredGraph) -> Self {
        let rows = |scope: &Scope<'_>| vec![0u32; scope.trace.slices.len() + 1];
        let mut first: Vec<Vec<u32>> = scopes.iter().map(rows).collect();
        let origins = || measured.origins.iter().enumerate();
        for (_, origin) in origins() {
            if let Some(row) = origin.row {
                first[origin.scope as usize][row as usize + 1] += 1;
            }
        }
        for first in &mut first {
            for row in 1..first.len() {
                first[row] += first[row - 1];
            }
        }
        let mut next = first.clone();
        let empty =
            |first: &Vec<u32>| vec![NodeId(0); first.last().copied().unwrap_or_default() as usize];
        let mut nodes: Vec<Vec<NodeId>> = first.iter().map(empty).collect();
        for (node, origin) in origins() {
            if let Some(row) = origin.row {
                let place = &mut next[origin.scope as usize][row as usize];
                nodes[origin.scope as usize][*place as usize] = NodeId(node as u32);
                *place += 1;
            }
        }
        let mut place = vec![0; measured.graph.len()];
        for (at, node) in measured.graph.order().iter().enumerate() {
            place[node.index()] = at as u32;
        }
        Self {
            measured,
            graph: measured.graph.clone(),
            first,
            nodes,
            ranks: scopes.iter().map(|scope| scope.trace.rank).collect(),
            old_nodes: Vec::new(),
            old_edges: Vec::new(),
            earliest: None,
            place,
        }
    }

    /// Nanoseconds by which the windows of the ranks would be shorter, their mean.
    pub fn saving(&mut self, edits: &[Edit]) -> i64 {
        edits.iter().for_each(|edit| self.apply(edit));
        let Some(earliest) = self.earliest.take() else { return 0 };
        let mut times = self.measured.times.clone();
        graph::relax_from(&self.graph, &mut times, self.graph.order()[earliest]);
        let length = |at: usize, times: &Times| self.measured.length_ns(at, times);
        let shorter = |at: usize| length(at, &self.measured.times) - length(at, &times);
        let total: i64 = (0..self.measured.ranks.len()).map(shorter).sum();
        self.restore();
        total / (self.measured.ranks.len() as i64).max(1)
    }

    fn apply(&mut self, edit: &Edit) {
        let Some(scope) = self.ranks.iter().position(|rank| *rank == edit.rank) else { return };
        if let Action::ArriveEarlier(ns) = edit.action {
            return self.arrive_earlier(scope, &edit.rows, ns);
        }
        for row in &edit.rows {
            let (from, to) =
                (self.first[scope][*row as usize], self.first[scope][*row as usize + 1]);
            for at in from..to {
                let node = self.nodes[scope][at as usize];
                match edit.action {
                    Action::Scale(factor) => self.scale(node, factor),
                    Action::Overlap => self.scale(node, 0.0),
                    Action::ShortenTo(ns) => {
                        let total: i64 = (from..to)
                            .map(|at| {
                                self.measured.graph.node(self.nodes[scope][at as usize]).weight
                            })
                            .sum();
                        self.scale(node, (ns as f64 / total.max(1) as f64).min(1.0));
                    }
                    Action::Unblock => self.edges(node, &[EdgeKind::Synchronization], NEVER),
                    Action::CloseGap => {
                        let kinds =
                            [EdgeKind::ProgramOrder, EdgeKind::StreamOrder, EdgeKind::Launch];
                        self.edges(node, &kinds, 0);
                    }
                    Action::ArriveEarlier(_) => {}
                }
            }
        }
    }

    fn scale(&mut self, node: NodeId, factor: f64) {
        let old = self.graph.node(node).weight;
        self.old_nodes.push((node, old));
        self.graph.set_node_weight(node, (old as f64 * factor).round() as i64);
        self.touch(node);
    }

    /// Lowers the weights of edges of some kinds into a node.
    fn edges(&mut self, node: NodeId, kinds: &[EdgeKind], weight: i64) {
        let of_kind: Vec<(EdgeId, i64)> = self
            .graph
            .edges_into(node)
            .filter(|(_, edge)| kinds.contains(&edge.kind) && edge.weight > weight)
            .map(|(id, edge)| (id, edge.weight))
            .collect();
        // What waits for nothing else keeps its wait.
        let is_alone = self.graph.edges_into(node).count() == of_kind.len();
        if weight == NEVER && is_alone {
            return;
        }
        for (id, old) in of_kind {
            self.old_edges.push((id, old));
            self.graph.set_edge_weight(id, weight);
            self.touch(node);
        }
    }

    fn arrive_earlier(&mut self, scope: usize, rows: &[u32], ns: i64) {
        let rows: BTreeSet<u32> = rows.iter().copied().collect();
        let changed: Vec<(EdgeId, NodeId, i64)> = self
            .measured
            .graph
            .edges()
            .iter()
            .enumerate()
            .filter(|(_, edge)| edge.kind == EdgeKind::Rendezvous)
            .filter(|(_, edge)| {
                let origin = self.measured.origins[edge.source.index()];
                let is_ours = origin.scope as usize == scope;
                is_ours && origin.row.is_some_and(|row| rows.contains(&row))
            })
            .map(|(id, edge)| (EdgeId(id as u32), edge.target, edge.weight))
            .collect();
        for (id, target, old) in changed {
            self.old_edges.push((id, old));
            self.graph.set_edge_weight(id, old - ns);
            self.touch(target);
        }
    }

    fn touch(&mut self, node: NodeId) {
        let place = self.place[node.index()] as usize;
        self.earliest = Some(self.earliest.map_or(place, |earliest| earliest.min(place)));
    }

    /// Puts weights back, the last change first.
    fn restore(&mut self) {
        while let Some((node, weight)) = self.old_nodes.pop() {
            self.graph.set_node_weight(node, weight);
        }
        while let Some((edge, weight)) = self.old_edges.pop() {
            self.graph.set_edge_weight(edge, weight);
        }
    }
}
