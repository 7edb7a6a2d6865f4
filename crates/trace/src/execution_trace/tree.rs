//! Derives the nesting of nodes: parents, children, and top-level nodes.

use std::collections::HashMap;

use super::node::{Node, RecordScope};
use super::recorded::ExecutionTrace;

/// The nodes of an execution trace as a forest. A node is identified by its index in
/// [`ExecutionTrace::nodes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeForest {
    parents: Vec<Option<u32>>,
    first_child: Vec<u32>,
    children: Vec<u32>,
    outside_in: Vec<u32>,
    dangling: Vec<u32>,
    cyclic: Vec<u32>,
}

impl NodeForest {
    /// Builds the forest from the nodes' parents. A node whose parent does not exist becomes a
    /// root. If parents form a cycle, its node with the smallest id becomes a root.
    ///
    /// # Cost
    /// `O(n log n)` in the number of nodes.
    pub fn build(nodes: &[Node]) -> Self {
        let places: HashMap<u64, u32> =
            nodes.iter().enumerate().map(|(at, node)| (node.id, at as u32)).collect();
        let mut dangling = Vec::new();
        let mut parents: Vec<Option<u32>> = Vec::with_capacity(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            let parent = places.get(&node.parent).copied();
            if parent.is_none() {
                dangling.push(at as u32);
            }
            // The process is its own parent, which is not a cycle.
            parents.push(parent.filter(|parent| *parent != at as u32));
        }
        let cyclic = cut_cycles(nodes, &mut parents);
        let (first_child, children) = children(nodes, &parents);
        let outside_in = outside_in(&parents, &first_child, &children);
        Self { parents, first_child, children, outside_in, dangling, cyclic }
    }

    /// Returns the enclosing node, or `None` for a root.
    pub fn parent(&self, node: u32) -> Option<u32> {
        self.parents[node as usize]
    }

    /// Returns the direct children of a node in order of execution.
    pub fn children(&self, node: u32) -> &[u32] {
        let [from, to] = [0, 1].map(|next| self.first_child[node as usize + next] as usize);
        &self.children[from..to]
    }

    /// Returns the nodes whose parent does not exist in the trace.
    pub fn dangling(&self) -> &[u32] {
        &self.dangling
    }

    /// Returns the nodes that became roots because their parents formed a cycle.
    pub fn cyclic(&self) -> &[u32] {
        &self.cyclic
    }

    /// Returns the nodes that are not labels and are enclosed only by labels, in file order. Trace
    /// viewers call these nodes top-level.
    pub fn below_labels(&self, trace: &ExecutionTrace) -> Vec<u32> {
        self.outermost(|at| trace.nodes[at as usize].scope != RecordScope::User)
    }

    /// Returns the operators that are not nested in another operator, in file order.
    ///
    /// # Source
    /// facebookresearch/param, `et_replay`. [`ExecutionTrace::is_operator`] defines operators.
    pub fn operators(&self, trace: &ExecutionTrace) -> Vec<u32> {
        self.outermost(|at| trace.is_operator(&trace.nodes[at as usize]))
    }

    /// Selects the nodes that satisfy the predicate and have no ancestor that satisfies it.
    fn outermost(&self, takes: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut is_covered = vec![false; self.parents.len()];
        let mut outermost = Vec::new();
        for &at in &self.outside_in {
            let is_inside = self.parent(at).is_some_and(|parent| is_covered[parent as usize]);
            let is_taken = takes(at);
            is_covered[at as usize] = is_inside || is_taken;
            if is_taken && !is_inside {
                outermost.push(at);
            }
        }
        outermost.sort_unstable();
        outermost
    }
}

/// Removes the parent of the node with the smallest id in each cycle, and returns these nodes.
fn cut_cycles(nodes: &[Node], parents: &mut [Option<u32>]) -> Vec<u32> {
    const NEW: u32 = u32::MAX;
    // Each node is marked by the walk that first reached it, so that the search takes linear time.
    let mut walk_of = vec![NEW; nodes.len()];
    let mut cut = Vec::new();
    for start in 0..nodes.len() as u32 {
        let mut at = start;
        while walk_of[at as usize] == NEW {
            walk_of[at as usize] = start;
            match parents[at as usize] {
                Some(parent) => at = parent,
                None => break,
            }
        }
        if walk_of[at as usize] != start || parents[at as usize].is_none() {
            continue;
        }
        // The walk from `start` reached a node that it had already visited, so `at` lies on a cycle
        // of parents.
        let (mut smallest, mut next) = (at, parents[at as usize]);
        while let Some(member) = next.filter(|member| *member != at) {
            if nodes[member as usize].id < nodes[smallest as usize].id {
                smallest = member;
            }
            next = parents[member as usize];
        }
        parents[smallest as usize] = None;
        cut.push(smallest);
    }
    cut.sort_unstable();
    cut
}

/// Lists the children of all nodes in one array, ordered by parent and then by id. The other array
/// holds the offset of each node's first child.
fn children(nodes: &[Node], parents: &[Option<u32>]) -> (Vec<u32>, Vec<u32>) {
    let mut inside: Vec<(u32, u64, u32)> = parents
        .iter()
        .enumerate()
        .filter_map(|(at, parent)| Some(((*parent)?, nodes[at].id, at as u32)))
        .collect();
    inside.sort_unstable();
    let mut first = vec![0; nodes.len() + 1];
    for (parent, ..) in &inside {
        first[*parent as usize + 1] += 1;
    }
    for at in 1..first.len() {
        first[at] += first[at - 1];
    }
    (first, inside.into_iter().map(|(.., at)| at).collect())
}

/// Orders all nodes so that each node follows its parent.
fn outside_in(parents: &[Option<u32>], first: &[u32], children: &[u32]) -> Vec<u32> {
    let roots = parents.iter().enumerate().filter(|(_, parent)| parent.is_none());
    let mut order: Vec<u32> = roots.map(|(at, _)| at as u32).collect();
    let mut done = 0;
    while let Some(&at) = order.get(done) {
        let [from, to] = [0, 1].map(|next| first[at as usize + next] as usize);
        order.extend_from_slice(&children[from..to]);
        done += 1;
    }
    order
}
