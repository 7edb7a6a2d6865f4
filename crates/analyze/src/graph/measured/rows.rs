//! Maps each row of a trace to the graph nodes that were made from it.

use super::MeasuredGraph;
use crate::facts::scope::Scope;
use crate::graph::NodeId;

/// The graph nodes of each row of the traces.
#[derive(Debug)]
pub struct RowNodes {
    /// For each scope, the index in `nodes` of each row's first node, with one entry more than
    /// there are rows.
    first: Vec<Vec<u32>>,
    nodes: Vec<Vec<NodeId>>,
}

impl RowNodes {
    /// Indexes a graph by the rows of the scopes it was built from.
    ///
    /// # Cost
    /// The cost is linear in nodes and rows.
    pub fn new(scopes: &[Scope<'_>], measured: &MeasuredGraph) -> Self {
        let rows = |scope: &Scope<'_>| vec![0u32; scope.trace.slices.len() + 1];
        let mut first: Vec<Vec<u32>> = scopes.iter().map(rows).collect();
        let origins = || measured.origins.iter().enumerate();
        for (_, origin) in origins() {
            if let Some(row) = origin.row {
                first[origin.scope as usize][row as usize + 1] += 1;
            }
        }
        // Turn the counts into offsets, then place the nodes: a counting sort that is linear in
        // nodes and rows.
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
        Self { first, nodes }
    }

    /// Returns the nodes of a row, sorted by id. `scope` is the index of the row's rank among the
    /// scopes.
    pub fn get_nodes(&self, scope: usize, row: u32) -> &[NodeId] {
        let (from, to) = (self.first[scope][row as usize], self.first[scope][row as usize + 1]);
        &self.nodes[scope][from as usize..to as usize]
    }
}
