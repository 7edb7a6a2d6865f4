//! Defines the dependency graph, which records what had to wait for what, and its one algorithm
//! [`relax`], a longest path in (max, +) algebra.
//!
//! The graph answers three questions: which chain of events bounded a step, how long the step would
//! take with a faster kernel, and how long an unrecorded step takes. All answers are longest paths
//! in a graph whose nodes wait for the latest of their predecessors.

pub mod critical_path;
mod cycle;
pub mod edit;
pub mod measured;
mod node;
pub mod slack;
#[cfg(test)]
mod tests;
pub mod what_if;

use std::collections::BTreeSet;

pub use cycle::Cycle;
pub use node::{Edge, EdgeId, EdgeKind, GraphNode, NodeId, NodeKind};

/// The nodes, the edges into each node, and an order in which every edge points forwards.
///
/// ```
/// use analyze::graph::{DependencyGraph, Edge, EdgeKind, GraphNode, NodeId, NodeKind, relax};
///
/// let node = |weight| GraphNode { kind: NodeKind::HostWork, weight };
/// let edge = |source, target, weight| Edge {
///     kind: EdgeKind::ProgramOrder,
///     source: NodeId(source),
///     target: NodeId(target),
///     weight,
/// };
/// // The last node waits for two others.
/// let edges = [edge(0, 2, 3), edge(1, 2, 0)];
/// let graph = DependencyGraph::new(vec![node(5), node(9), node(1)], &edges);
/// assert_eq!(relax(&graph, 0).end, [5, 9, 10]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct DependencyGraph {
    nodes: Vec<GraphNode>,
    /// Edges sorted by target; the edges of one target keep the order in which they were given.
    edges: Vec<Edge>,
    /// Index of the first edge into each node, with one entry more than there are nodes.
    first_edge: Vec<u32>,
    /// The nodes in topological order.
    order: Vec<NodeId>,
    /// Index of each node in `order`.
    place: Vec<u32>,
    /// Edges grouped by source: the edges out of a node begin at its entry of `first_leaving`.
    leaving: Vec<u32>,
    first_leaving: Vec<u32>,
}

/// Start and end times of all nodes of a graph, indexed by node id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTimes {
    /// Time at which nodes without predecessors start.
    pub origin: i64,
    pub start: Vec<i64>,
    pub end: Vec<i64>,
}

/// A node on a critical path, with the edge by which the path reached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    pub node: NodeId,
    /// The edge that decided when the node started; `None` at the beginning of a path.
    pub via: Option<EdgeId>,
}

impl DependencyGraph {
    /// Creates a graph from nodes and edges. Several edges may connect the same two nodes.
    ///
    /// # Cost
    /// The cost is `O(nodes + edges)`.
    /// # Panics
    /// Panics if an edge names a node that does not exist, or if edges form a cycle, because both
    /// are mistakes of the caller.
    pub fn new(nodes: Vec<GraphNode>, edges: &[Edge]) -> Self {
        let built = Self::try_new(nodes, edges);
        assert!(built.is_ok(), "dependencies form no cycle");
        built.unwrap_or_default()
    }

    /// Builds a graph from edges that may form a cycle, such as those of an edited program.
    ///
    /// # Errors
    /// Returns a [`Cycle`] with the nodes of one cycle, if there is any.
    /// # Panics
    /// Panics if an edge names a node that does not exist.
    pub fn try_new(nodes: Vec<GraphNode>, edges: &[Edge]) -> Result<Self, Cycle> {
        let count = nodes.len();
        assert!(
            edges.iter().all(|e| e.source.index() < count && e.target.index() < count),
            "edges join nodes of the graph"
        );
        let (first_edge, by_target) = grouped(count, edges, |edge| edge.target);
        let sorted: Vec<Edge> = by_target.iter().map(|at| edges[*at as usize]).collect();
        let (first_leaving, leaving) = grouped(count, &sorted, |edge| edge.source);
        let order = topological(&sorted, &first_edge, &first_leaving, &leaving);
        if order.len() < count {
            return Err(cycle::find(count, &sorted, &order));
        }
        let mut place = vec![0; count];
        for (at, node) in order.iter().enumerate() {
            place[node.index()] = at as u32;
        }
        Ok(Self { nodes, edges: sorted, first_edge, order, place, leaving, first_leaving })
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the nodes, indexed by id.
    pub fn nodes(&self) -> &[GraphNode] {
        &self.nodes
    }

    /// Returns the edges, indexed by id and grouped by target.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Returns the node with this id.
    pub fn node(&self, id: NodeId) -> GraphNode {
        self.nodes[id.index()]
    }

    /// Returns the edge with this id.
    pub fn edge(&self, id: EdgeId) -> Edge {
        self.edges[id.0 as usize]
    }

    /// Returns the edges into a node, each with its id.
    pub fn edges_into(&self, node: NodeId) -> impl Iterator<Item = (EdgeId, Edge)> {
        self.range(node).map(|at| (EdgeId(at as u32), self.edges[at]))
    }

    /// Returns the edges out of a node, each with its id.
    pub fn edges_out_of(&self, node: NodeId) -> impl Iterator<Item = (EdgeId, Edge)> {
        let from = self.first_leaving[node.index()] as usize;
        let to = self.first_leaving[node.index() + 1] as usize;
        self.leaving[from..to].iter().map(|at| (EdgeId(*at), self.edges[*at as usize]))
    }

    /// Returns the nodes in an order in which every edge points forwards.
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// Sets the weight of a node. Call [`relax_from`] afterwards to update the times.
    pub fn set_node_weight(&mut self, node: NodeId, weight: i64) {
        self.nodes[node.index()].weight = weight;
    }

    /// Sets the weight of an edge. Call [`relax_from`] on its target afterwards to update the
    /// times.
    pub fn set_edge_weight(&mut self, edge: EdgeId, weight: i64) {
        self.edges[edge.0 as usize].weight = weight;
    }

    fn range(&self, node: NodeId) -> std::ops::Range<usize> {
        self.first_edge[node.index()] as usize..self.first_edge[node.index() + 1] as usize
    }
}

/// Computes the start and end of every node, assuming that no node waits longer than its
/// predecessors require.
///
/// `start(n) = max over edges e into n of (end(source(e)) + weight(e))`, `origin` without edges;
/// `end(n) = start(n) + weight(n)`.
///
/// # Cost
/// The cost is `O(nodes + edges)`, in one pass.
pub fn relax(graph: &DependencyGraph, origin: i64) -> NodeTimes {
    let mut times = NodeTimes { origin, ..NodeTimes::default() };
    relax_into(graph, &mut times);
    times
}

/// Like [`relax`], but starts from `times.origin` and reuses the memory of earlier times, which may
/// belong to another graph.
pub fn relax_into(graph: &DependencyGraph, times: &mut NodeTimes) {
    times.start.resize(graph.len(), 0);
    times.end.resize(graph.len(), 0);
    relax_places(graph, times, 0);
}

/// Updates times after the weights of some nodes, or of edges into them, have changed. Only the
/// nodes whose times move, and their direct successors, are recomputed.
///
/// # Cost
/// The cost is `O(k log k)` in the recomputed nodes and their edges; [`relax_into`] is faster if
/// most of the graph moves.
pub fn relax_changed(graph: &DependencyGraph, times: &mut NodeTimes, changed: &[NodeId]) {
    let mut waiting: BTreeSet<u32> = changed.iter().map(|node| graph.place[node.index()]).collect();
    while let Some(place) = waiting.pop_first() {
        let node = graph.order[place as usize];
        let before = times.end[node.index()];
        relax_one(graph, times, node);
        if times.end[node.index()] != before {
            let targets = graph.edges_out_of(node).map(|(_, edge)| edge.target);
            waiting.extend(targets.map(|target| graph.place[target.index()]));
        }
    }
}

/// Updates times after the weight of a node, or of an edge into it, has changed. Only the nodes
/// after it in the order are recomputed.
///
/// After several changes, call this function once with the changed node that comes first in
/// [`DependencyGraph::order`].
pub fn relax_from(graph: &DependencyGraph, times: &mut NodeTimes, changed: NodeId) {
    relax_places(graph, times, graph.place[changed.index()] as usize);
}

fn relax_places(graph: &DependencyGraph, times: &mut NodeTimes, first: usize) {
    for &node in &graph.order[first..] {
        relax_one(graph, times, node);
    }
}

fn relax_one(graph: &DependencyGraph, times: &mut NodeTimes, node: NodeId) {
    let edges = &graph.edges[graph.range(node)];
    let ready = edges.iter().map(|edge| times.end[edge.source.index()] + edge.weight).max();
    let start = ready.unwrap_or(times.origin);
    times.start[node.index()] = start;
    times.end[node.index()] = start + graph.nodes[node.index()].weight;
}

/// Returns the edge that decided when a given node started. If several edges decided, the one from
/// the lowest node is returned, and then the one with the lowest id. The result is `None` for a
/// node without edges into it.
pub fn deciding_edge(graph: &DependencyGraph, times: &NodeTimes, node: NodeId) -> Option<EdgeId> {
    let start = times.start[node.index()];
    let decides =
        |(_, edge): &(EdgeId, Edge)| times.end[edge.source.index()] + edge.weight == start;
    let deciding = graph.edges_into(node).filter(decides);
    deciding.min_by_key(|(id, edge)| (edge.source, *id)).map(|(id, _)| id)
}

/// Returns the critical path to a node in forward order, found by following the deciding edges
/// backwards.
pub fn critical_path(graph: &DependencyGraph, times: &NodeTimes, last: NodeId) -> Vec<Hop> {
    let mut path = Vec::new();
    let mut node = last;
    loop {
        let via = deciding_edge(graph, times, node);
        path.push(Hop { node, via });
        let Some(via) = via else { break };
        node = graph.edge(via).source;
    }
    path.reverse();
    path
}

/// Groups the indices of the edges by one of their nodes. Also returns the index at which each
/// group begins.
fn grouped(count: usize, edges: &[Edge], by: impl Fn(&Edge) -> NodeId) -> (Vec<u32>, Vec<u32>) {
    let mut first = vec![0u32; count + 1];
    edges.iter().for_each(|edge| first[by(edge).index() + 1] += 1);
    for node in 0..count {
        first[node + 1] += first[node];
    }
    let mut next = first.clone();
    let mut places = vec![0; edges.len()];
    for (at, edge) in edges.iter().enumerate() {
        let place = &mut next[by(edge).index()];
        places[*place as usize] = at as u32;
        *place += 1;
    }
    (first, places)
}

/// Sorts the nodes topologically. Nodes that lie on a cycle or depend on one are left out.
///
/// The node that became ready last is taken first, so the order follows a thread as long as
/// possible. Neighbors in the order are then neighbors in memory.
fn topological(edges: &[Edge], into: &[u32], first: &[u32], leaving: &[u32]) -> Vec<NodeId> {
    let count = into.len() - 1;
    let mut waits: Vec<u32> = into.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let ids = (0..count as u32).rev();
    let mut ready: Vec<NodeId> = ids.map(NodeId).filter(|node| waits[node.index()] == 0).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(node) = ready.pop() {
        order.push(node);
        let (from, to) = (first[node.index()] as usize, first[node.index() + 1] as usize);
        for edge in &leaving[from..to] {
            let target = edges[*edge as usize].target;
            let left = &mut waits[target.index()];
            *left -= 1;
            if *left == 0 {
                ready.push(target);
            }
        }
    }
    order
}
