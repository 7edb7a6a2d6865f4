//! Finds the nodes of a cycle, for error messages about graphs that cannot be relaxed.

use super::node::{EdgeArrays, NodeId};

/// An error: the dependencies of a graph form a cycle, so it cannot be relaxed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("dependencies: expected no cycle, got one of {} nodes: {}", nodes.len(), named(nodes))]
pub struct Cycle {
    /// Nodes of the cycle: each waits for the one before it, and the first waits for the last. The
    /// list begins with the lowest id.
    pub nodes: Vec<NodeId>,
}

/// Maximum number of nodes that the error message names.
const NAMED: usize = 8;

fn named(nodes: &[NodeId]) -> String {
    let mut text: Vec<String> = nodes.iter().take(NAMED).map(|node| node.0.to_string()).collect();
    if nodes.len() > NAMED {
        text.push("…".to_owned());
    }
    text.join(" → ")
}

/// Finds a cycle among the nodes that have no place in the topological order. The edges must be
/// sorted by target.
pub(super) fn find(count: usize, edges: &EdgeArrays, order: &[NodeId]) -> Cycle {
    let mut is_ordered = vec![false; count];
    order.iter().for_each(|node| is_ordered[node.index()] = true);
    // Every node without a place in the order waits for another node without one. Following such
    // edges backwards never ends, so it reaches some node twice, and that closes a cycle.
    let mut before: Vec<Option<NodeId>> = vec![None; count];
    let edges = edges.sources.iter().zip(&edges.targets);
    for (source, target) in edges.filter(|(source, _)| !is_ordered[source.index()]) {
        before[target.index()].get_or_insert(*source);
    }
    let mut seen_at: Vec<Option<usize>> = vec![None; count];
    let mut path = Vec::new();
    let mut next = is_ordered.iter().position(|is| !is).map(|node| NodeId(node as u32));
    while let Some(node) = next {
        if let Some(first) = seen_at[node.index()] {
            path.drain(..first);
            break;
        }
        seen_at[node.index()] = Some(path.len());
        path.push(node);
        next = before[node.index()];
    }
    path.reverse();
    let lowest = path.iter().enumerate().min_by_key(|(_, node)| **node).map_or(0, |(at, _)| at);
    path.rotate_left(lowest);
    Cycle { nodes: path }
}
