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
mod weights;
pub mod what_if;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use node::EdgeArrays;
use weights::Weights;

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
/// let graph = DependencyGraph::new(vec![node(5), node(9), node(1)], edges.to_vec());
/// assert_eq!(relax(&graph, 0).end, [5, 9, 10]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct DependencyGraph {
    /// Shared by all copies, which differ in their weights alone.
    shape: Arc<GraphShape>,
    /// Nanoseconds from start to end, by node. Copies share the weights of nodes until one of them
    /// sets one, and likewise those of edges.
    node_weights: Arc<Weights>,
    /// Nanoseconds from the end of the source to the earliest start of the target, by edge.
    edge_weights: Arc<Weights>,
}

/// Everything of a graph but its weights, one array per property: relaxing reads sources alone.
#[derive(Debug, Default)]
struct GraphShape {
    node_kinds: Vec<NodeKind>,
    edge_kinds: Vec<EdgeKind>,
    /// Sources and targets by edge. Edges are sorted by target, and edges of one target keep their
    /// given order.
    sources: Vec<NodeId>,
    targets: Vec<NodeId>,
    /// Index of the first edge into each node, with one entry more than there are nodes.
    first_edge: Vec<u32>,
    /// The nodes in topological order.
    order: Vec<NodeId>,
    /// Index of each node in `order`.
    place: Vec<u32>,
    /// Built on first use, because analyses of traces do not follow edges forwards.
    leaving: OnceLock<LeavingEdges>,
}

/// Indices of edges, grouped by source.
#[derive(Debug)]
struct LeavingEdges {
    /// Index in `edges` of the first edge out of each node, with one entry more than there are
    /// nodes.
    first: Vec<u32>,
    edges: Vec<u32>,
}

/// Times of all nodes of a graph. [`DependencyGraph::start`] derives their starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTimes {
    /// Time at which nodes without predecessors start.
    pub origin: i64,
    /// Ends of the nodes, indexed by node id.
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
    /// `O(nodes + edges)` if the edges are sorted by target, else `O(edges log edges)`.
    /// # Panics
    /// Panics if an edge names a node that does not exist, or if edges form a cycle, because both
    /// are mistakes of the caller.
    pub fn new(nodes: Vec<GraphNode>, edges: Vec<Edge>) -> Self {
        Self::acyclic(Self::try_new(nodes, edges))
    }

    /// Creates a graph like [`Self::new`], from one array per property.
    ///
    /// # Panics
    /// As [`Self::new`].
    fn from_arrays(kinds: Vec<NodeKind>, weights: Weights, edges: EdgeArrays) -> Self {
        Self::acyclic(Self::try_from_arrays(kinds, weights, edges))
    }

    fn acyclic(built: Result<Self, Cycle>) -> Self {
        assert!(built.is_ok(), "dependencies form no cycle");
        built.unwrap_or_default()
    }

    /// Builds a graph from edges that may form a cycle, such as those of an edited program.
    ///
    /// # Errors
    /// Returns a [`Cycle`] with the nodes of one cycle, if there is any.
    /// # Panics
    /// Panics if an edge names a node that does not exist.
    pub fn try_new(nodes: Vec<GraphNode>, edges: Vec<Edge>) -> Result<Self, Cycle> {
        let kinds = nodes.iter().map(|node| node.kind).collect();
        let weights = nodes.iter().map(|node| node.weight).collect();
        Self::try_from_arrays(kinds, weights, edges.into_iter().collect())
    }

    fn try_from_arrays(
        node_kinds: Vec<NodeKind>,
        node_weights: Weights,
        mut edges: EdgeArrays,
    ) -> Result<Self, Cycle> {
        let count = node_kinds.len();
        let is_node = |node: &NodeId| node.index() < count;
        assert!(
            edges.sources.iter().all(is_node) && edges.targets.iter().all(is_node),
            "edges join nodes of the graph"
        );
        edges.sort();
        let first_edge = first_of_groups(count, &edges.targets);
        let order = topological(&edges.targets, &first_edge, &edges.sources);
        if order.len() < count {
            return Err(cycle::find(count, &edges, &order));
        }
        let mut place = vec![0; count];
        for (at, node) in order.iter().enumerate() {
            place[node.index()] = at as u32;
        }
        let EdgeArrays { kinds: edge_kinds, sources, targets, weights: edge_weights } = edges;
        let shape = GraphShape {
            node_kinds,
            edge_kinds,
            sources,
            targets,
            first_edge,
            order,
            place,
            leaving: OnceLock::new(),
        };
        let (shape, node_weights) = (Arc::new(shape), Arc::new(node_weights));
        Ok(Self { shape, node_weights, edge_weights: Arc::new(edge_weights) })
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.shape.node_kinds.len()
    }

    /// Returns whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.shape.node_kinds.is_empty()
    }

    /// Returns all edges, each with its id; edges with the same target are neighbors.
    pub fn edges(&self) -> impl ExactSizeIterator<Item = (EdgeId, Edge)> {
        (0..self.edge_weights.len() as u32).map(|at| (EdgeId(at), self.edge(EdgeId(at))))
    }

    /// Returns the node with this id.
    pub fn node(&self, id: NodeId) -> GraphNode {
        let (kind, weight) = (self.shape.node_kinds[id.index()], self.node_weights.get(id.index()));
        GraphNode { kind, weight }
    }

    /// Returns the edge with this id.
    pub fn edge(&self, id: EdgeId) -> Edge {
        let (shape, at) = (&self.shape, id.0 as usize);
        Edge {
            kind: shape.edge_kinds[at],
            source: shape.sources[at],
            target: shape.targets[at],
            weight: self.edge_weights.get(at),
        }
    }

    /// Returns the edges into a node, each with its id.
    pub fn edges_into(&self, node: NodeId) -> impl Iterator<Item = (EdgeId, Edge)> {
        self.range(node).map(|at| EdgeId(at as u32)).map(|id| (id, self.edge(id)))
    }

    /// Returns the edges out of a node, each with its id.
    pub fn edges_out_of(&self, node: NodeId) -> impl Iterator<Item = (EdgeId, Edge)> {
        let GraphShape { leaving, sources, .. } = &*self.shape;
        let leaving = leaving.get_or_init(|| LeavingEdges::new(self.len(), sources));
        leaving.edges_from(node).iter().map(|at| (EdgeId(*at), self.edge(EdgeId(*at))))
    }

    /// Returns the nodes in an order in which every edge points forwards.
    pub fn order(&self) -> &[NodeId] {
        &self.shape.order
    }

    /// Returns the start of a node, which is its end minus its weight.
    pub fn start(&self, times: &NodeTimes, node: NodeId) -> i64 {
        times.end[node.index()] - self.node_weights.get(node.index())
    }

    /// Returns the place of a node in [`Self::order`].
    pub fn place(&self, node: NodeId) -> u32 {
        self.shape.place[node.index()]
    }

    /// Sets the weight of a node. Call [`relax_from`] afterwards to update the times.
    pub fn set_node_weight(&mut self, node: NodeId, weight: i64) {
        Arc::make_mut(&mut self.node_weights).set(node.index(), weight);
    }

    /// Sets the weight of an edge. Call [`relax_from`] on its target afterwards to update the
    /// times.
    pub fn set_edge_weight(&mut self, edge: EdgeId, weight: i64) {
        Arc::make_mut(&mut self.edge_weights).set(edge.0 as usize, weight);
    }

    /// Returns the earliest time at which an edge, given by its index, lets its target start.
    fn ready(&self, times: &NodeTimes, edge: usize) -> i64 {
        times.end[self.shape.sources[edge].index()] + self.edge_weights.get(edge)
    }

    fn range(&self, node: NodeId) -> std::ops::Range<usize> {
        let first = &self.shape.first_edge;
        first[node.index()] as usize..first[node.index() + 1] as usize
    }
}

/// Computes the end of every node, assuming that no node waits longer than its
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
    let mut waiting: BTreeSet<u32> = changed.iter().map(|node| graph.place(*node)).collect();
    while let Some(place) = waiting.pop_first() {
        let node = graph.order()[place as usize];
        let before = times.end[node.index()];
        relax_one(graph, times, node);
        if times.end[node.index()] != before {
            let targets = graph.edges_out_of(node).map(|(_, edge)| edge.target);
            waiting.extend(targets.map(|target| graph.place(target)));
        }
    }
}

/// Updates times after the weight of a node, or of an edge into it, has changed. Only the nodes
/// after it in the order are recomputed.
///
/// After several changes, call this function once with the changed node that comes first in
/// [`DependencyGraph::order`].
pub fn relax_from(graph: &DependencyGraph, times: &mut NodeTimes, changed: NodeId) {
    relax_places(graph, times, graph.place(changed) as usize);
}

fn relax_places(graph: &DependencyGraph, times: &mut NodeTimes, first: usize) {
    for &node in &graph.order()[first..] {
        relax_one(graph, times, node);
    }
}

fn relax_one(graph: &DependencyGraph, times: &mut NodeTimes, node: NodeId) {
    let ready = graph.range(node).map(|edge| graph.ready(times, edge)).max();
    let start = ready.unwrap_or(times.origin);
    times.end[node.index()] = start + graph.node_weights.get(node.index());
}

/// Returns the edge that decided when a given node started. If several edges decided, the one from
/// the lowest node is returned, and then the one with the lowest id. The result is `None` for a
/// node without edges into it.
pub fn deciding_edge(graph: &DependencyGraph, times: &NodeTimes, node: NodeId) -> Option<EdgeId> {
    let edges = graph.range(node);
    // Most nodes have a single edge, which needs no comparison of times.
    if edges.len() == 1 {
        return Some(EdgeId(edges.start as u32));
    }
    let start = graph.start(times, node);
    let deciding = edges.filter(|edge| graph.ready(times, *edge) == start);
    let deciding = deciding.min_by_key(|edge| (graph.shape.sources[*edge], *edge));
    deciding.map(|edge| EdgeId(edge as u32))
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

/// Returns where the group of each node begins if edges are grouped by these nodes; one entry more
/// than nodes.
fn first_of_groups(count: usize, nodes: &[NodeId]) -> Vec<u32> {
    let mut first = vec![0u32; count + 1];
    nodes.iter().for_each(|node| first[node.index() + 1] += 1);
    for node in 0..count {
        first[node + 1] += first[node];
    }
    first
}

impl LeavingEdges {
    fn new(count: usize, sources: &[NodeId]) -> Self {
        let first = first_of_groups(count, sources);
        let mut next = first.clone();
        let mut edges = vec![0; sources.len()];
        for (at, source) in sources.iter().enumerate() {
            let place = &mut next[source.index()];
            edges[*place as usize] = at as u32;
            *place += 1;
        }
        Self { first, edges }
    }

    fn edges_from(&self, node: NodeId) -> &[u32] {
        let (from, to) = (self.first[node.index()], self.first[node.index() + 1]);
        &self.edges[from as usize..to as usize]
    }
}

/// Sorts the nodes topologically. Nodes that lie on a cycle or depend on one are left out.
///
/// The node that became ready last is taken first, so the order follows a thread as long as
/// possible. Neighbors in the order are then neighbors in memory.
fn topological(targets: &[NodeId], into: &[u32], sources: &[NodeId]) -> Vec<NodeId> {
    let count = into.len() - 1;
    let leaving = LeavingEdges::new(count, sources);
    let mut waits: Vec<u32> = into.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let ids = (0..count as u32).rev();
    let mut ready: Vec<NodeId> = ids.map(NodeId).filter(|node| waits[node.index()] == 0).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(node) = ready.pop() {
        order.push(node);
        for edge in leaving.edges_from(node) {
            let target = targets[*edge as usize];
            let left = &mut waits[target.index()];
            *left -= 1;
            if *left == 0 {
                ready.push(target);
            }
        }
    }
    order
}
