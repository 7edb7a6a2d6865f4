use proptest::prelude::*;

use super::*;

fn node(weight: i64) -> GraphNode {
    GraphNode { kind: NodeKind::HostWork, weight }
}

fn edge(source: u32, target: u32, weight: i64) -> Edge {
    let kind = EdgeKind::ProgramOrder;
    Edge { kind, source: NodeId(source), target: NodeId(target), weight }
}

fn graph(weights: &[i64], edges: &[Edge]) -> DependencyGraph {
    DependencyGraph::new(weights.iter().map(|weight| node(*weight)).collect(), edges.to_vec())
}

#[test]
fn a_node_waits_for_the_latest_of_its_predecessors() {
    let graph = graph(&[5, 7, 3], &[edge(0, 2, 4), edge(1, 2, 1)]);
    let times = relax(&graph, 100);
    let start = |node| graph.start(&times, NodeId(node));
    assert_eq!([0, 1, 2].map(start), [100, 100, 109]);
    assert_eq!(times.end, [105, 107, 112]);
}

#[test]
fn ties_on_the_path_go_to_the_lowest_node() {
    let graph = graph(&[5, 5, 3], &[edge(1, 2, 0), edge(0, 2, 0)]);
    let times = relax(&graph, 0);
    let path = critical_path(&graph, &times, NodeId(2));
    assert_eq!(path.iter().map(|hop| hop.node.0).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(path[1].via.map(|via| graph.edge(via)), Some(edge(0, 2, 0)));
}

#[test]
fn an_empty_graph_takes_no_time() {
    let nothing = graph(&[], &[]);
    assert!(nothing.is_empty() && relax(&nothing, 5).end.is_empty());
}

#[test]
#[should_panic(expected = "no cycle")]
fn a_cycle_is_refused() {
    graph(&[1, 1], &[edge(0, 1, 0), edge(1, 0, 0)]);
}

/// Computes the longest path to a node by trying every path, as a simple reference for the engine.
fn longest(weights: &[i64], edges: &[Edge], node: u32) -> i64 {
    let into = edges.iter().filter(|edge| edge.target.0 == node);
    let end = |source: u32| longest(weights, edges, source) + weights[source as usize];
    into.map(|edge| end(edge.source.0) + edge.weight).max().unwrap_or(0)
}

/// Generates small graphs whose edges point from lower to higher numbers. Renaming the nodes hides
/// that order from the engine.
fn graphs() -> impl Strategy<Value = (Vec<i64>, Vec<Edge>)> {
    let sizes = (2..9u32).prop_flat_map(|count| {
        let weights = proptest::collection::vec(0..50i64, count as usize);
        let pair = (0..count, 0..count, 0..20i64).prop_filter("two nodes", |(a, b, _)| a != b);
        let order = Just((0..count).collect::<Vec<_>>()).prop_shuffle();
        (weights, proptest::collection::vec(pair, 0..14), order)
    });
    sizes.prop_map(|(weights, pairs, rename)| {
        let name = |node: u32| rename[node as usize];
        let one = |(a, b, weight): (u32, u32, i64)| edge(name(a.min(b)), name(a.max(b)), weight);
        (weights, pairs.into_iter().map(one).collect())
    })
}

proptest! {
    #[test]
    fn relax_equals_the_longest_path((weights, edges) in graphs()) {
        let graph = graph(&weights, &edges);
        let times = relax(&graph, 0);
        for node in 0..weights.len() as u32 {
            prop_assert_eq!(graph.start(&times, NodeId(node)), longest(&weights, &edges, node));
        }
        let last = NodeId(weights.len() as u32 - 1);
        let path = critical_path(&graph, &times, last);
        let along: i64 = path.iter().map(|hop| {
            graph.node(hop.node).weight + hop.via.map_or(0, |via| graph.edge(via).weight)
        }).sum();
        prop_assert_eq!(along, times.end[last.index()]);
    }

    #[test]
    fn a_suffix_relaxed_anew_equals_the_whole(
        (weights, edges) in graphs(), at in 0..9usize, weight in 0..90i64,
    ) {
        let mut graph = graph(&weights, &edges);
        let mut times = relax(&graph, 0);
        let changed = NodeId((at % weights.len()) as u32);
        graph.set_node_weight(changed, weight);
        relax_from(&graph, &mut times, changed);
        prop_assert_eq!(times, relax(&graph, 0));
    }
}

#[test]
fn a_cycle_error_names_its_nodes() {
    let nodes = vec![node(1); 5];
    let edges = [edge(0, 1, 0), edge(1, 2, 0), edge(2, 4, 0), edge(4, 1, 0), edge(2, 3, 0)];
    let cycle = DependencyGraph::try_new(nodes, edges.to_vec()).expect_err("a cycle");
    assert_eq!(cycle.nodes, [1, 2, 4].map(NodeId));
    let text = "dependencies: expected no cycle, got one of 3 nodes: 1 → 2 → 4";
    assert_eq!(cycle.to_string(), text);
    let itself = DependencyGraph::try_new(vec![node(1)], vec![edge(0, 0, 0)]).expect_err("a cycle");
    assert_eq!(itself.nodes, [NodeId(0)]);
}

#[test]
fn the_memory_of_times_is_reused() {
    let (small, large) = (graph(&[5], &[]), graph(&[5, 7, 3], &[edge(0, 2, 4), edge(1, 2, 1)]));
    let mut times = relax(&large, 100);
    relax_into(&small, &mut times);
    assert_eq!(times, relax(&small, 100));
    relax_into(&large, &mut times);
    assert_eq!(times, relax(&large, 100));
}

proptest! {
    #[test]
    fn changes_relaxed_anew_equal_the_whole(
        (weights, edges) in graphs(),
        changes in proptest::collection::vec((0..9usize, 0..90i64), 0..4),
        late in (0..14usize, -9..90i64),
    ) {
        let mut graph = graph(&weights, &edges);
        let mut times = relax(&graph, 0);
        let mut changed: Vec<NodeId> = Vec::new();
        for (at, weight) in changes {
            changed.push(NodeId((at % weights.len()) as u32));
            graph.set_node_weight(changed[changed.len() - 1], weight);
        }
        if let Some(at) = late.0.checked_rem(edges.len()) {
            let id = EdgeId(at as u32);
            changed.push(graph.edge(id).target);
            graph.set_edge_weight(id, late.1);
        }
        relax_changed(&graph, &mut times, &changed);
        prop_assert_eq!(times, relax(&graph, 0));
    }

    #[test]
    fn slack_is_the_delay_that_does_not_move_the_end((weights, edges) in graphs()) {
        let mut graph = graph(&weights, &edges);
        let last = [NodeId(0), NodeId(weights.len() as u32 - 1)];
        let times = relax(&graph, 0);
        let ends = |times: &NodeTimes| last.map(|node| times.end[node.index()]);
        let slack = slack::slacks(&graph, &times, &last);
        for (at, slack) in slack.into_iter().enumerate() {
            let (node, weight) = (NodeId(at as u32), weights[at]);
            let mut delayed = |by: i64| {
                graph.set_node_weight(node, weight + by);
                let found = ends(&relax(&graph, 0));
                graph.set_node_weight(node, weight);
                found
            };
            match slack {
                Some(slack) => {
                    prop_assert_eq!(delayed(slack), ends(&times));
                    prop_assert_ne!(delayed(slack + 1), ends(&times));
                }
                None => prop_assert_eq!(delayed(1_000_000), ends(&times)),
            }
        }
    }
}
