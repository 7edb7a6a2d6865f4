//! Computes slack, which is how much later each node could end without delaying any of the given
//! last nodes.

use super::{DependencyGraph, NodeId, NodeTimes};

/// Computes, for each node, the nanoseconds by which its end may move before one of the nodes
/// `last` ends later. Nodes that no node of `last` waits for have `None`. The slack is 0 on every
/// critical path.
///
/// `late(n) = min over edges e out of n of (late(target(e)) − weight(target(e)) − weight(e))`, and
/// at most the end of `n` itself if `n` is one of `last`.
///
/// # Cost
/// The cost is `O(nodes + edges)`, in one backward pass.
pub fn slacks(graph: &DependencyGraph, times: &NodeTimes, last: &[NodeId]) -> Vec<Option<i64>> {
    let mut late: Vec<Option<i64>> = vec![None; graph.len()];
    last.iter().for_each(|node| late[node.index()] = Some(times.end[node.index()]));
    for &node in graph.order().iter().rev() {
        let until = graph.edges_out_of(node).filter_map(|(_, edge)| {
            let target = late[edge.target.index()]?;
            Some(target - graph.node(edge.target).weight - edge.weight)
        });
        late[node.index()] = until.chain(late[node.index()]).min();
    }
    let slack = |(late, end): (Option<i64>, &i64)| late.map(|late| late - end);
    late.into_iter().zip(&times.end).map(slack).collect()
}
