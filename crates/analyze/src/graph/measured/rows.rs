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
        let origins = measured.origins.iter().enumerate();
        for (_, origin) in origins.clone() {
            if let Some(row) = origin.row() {
                first[origin.scope as usize][row as usize] += 1;
            }
        }
        // A counting sort: turn the counts into the ends of the rows, then place the nodes from the
        // last to the first, which moves each end to the start of its row.
        let mut nodes = Vec::new();
        for first in &mut first {
            let mut end = 0;
            for count in first.iter_mut() {
                end += *count;
                *count = end;
            }
            nodes.push(vec![NodeId(0); end as usize]);
        }
        for (node, origin) in origins.rev() {
            if let Some(row) = origin.row() {
                let place = &mut first[origin.scope as usize][row as usize];
                *place -= 1;
                nodes[origin.scope as usize][*place as usize] = NodeId(node as u32);
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
