//! Continues a simulated step with equal steps until they take equally long. What a step leaves
//! running on streams and threads delays the next one.

use analyze::graph::{self, EdgeId, NodeId};

use super::{Simulation, StreamNodes};

/// Most steps that are simulated.
const MOST: usize = 64;
/// Largest relative difference between two steps that count as equally long.
const EQUAL: f64 = 1e-5;

impl Simulation {
    /// Repeats the step until it is as long as the step before it. A rank's next step begins when
    /// its main thread ends this one. Streams and other threads continue when they are free, and
    /// what earlier steps left running is what this step leaves running.
    ///
    /// After edits of the graph, the method continues from the present state.
    ///
    /// # Cost
    /// `O(n)` for each step, where `n` is the number of nodes. Few steps are enough unless a queue
    /// fills slowly.
    #[must_use]
    pub fn into_steady(mut self) -> Self {
        self.is_steady = true;
        let left = self.ranks.iter().flat_map(|rank| &rank.left_running);
        let kept = left.map(|(_, repeated)| repeated.steps as usize).max().unwrap_or(1);
        let mut earlier = Vec::new();
        let mut before = Vec::new();
        for _ in 0..MOST {
            earlier.insert(0, self.times.clone());
            earlier.truncate(kept);
            self.continue_from(&earlier);
            let lengths = self.lengths();
            let equal = |(now, before): (&i64, &i64)| {
                (now - before).abs() as f64 <= EQUAL * now.abs().max(1) as f64
            };
            if before.len() == lengths.len() && lengths.iter().zip(&before).all(equal) {
                break;
            }
            before = lengths;
        }
        self
    }

    /// Simulates the next step. `earlier` has the times of the steps before it, the latest first.
    fn continue_from(&mut self, earlier: &[graph::NodeTimes]) {
        let Self { graph, times, ranks, .. } = self;
        let latest = &earlier[0];
        let end = |node: NodeId| latest.end[node.index()];
        for rank in ranks.iter() {
            let begins = end(rank.last_action(rank.main));
            graph.set_node_weight(rank.start, begins - times.origin);
            for (thread, begin) in rank.threads.iter().enumerate() {
                if thread != rank.main {
                    let free = end(rank.last_action(thread)) - begins;
                    set_edge_into(graph, *begin, free.max(0));
                }
            }
            for stream in &rank.streams {
                if let Some(free) = stream.works.iter().map(|work| end(*work)).max() {
                    set_edge_into(graph, stream.free, free - begins);
                }
            }
            for (left, repeated) in &rank.left_running {
                let Some(then) = earlier.get(repeated.steps as usize - 1) else { continue };
                let (first, last) = rank.works[repeated.by as usize];
                let started = graph.start(then, first);
                let (node, _) = rank.works[*left as usize];
                set_edge_into(graph, node, started - begins);
                graph.set_node_weight(node, then.end[last.index()] - started);
            }
        }
        graph::relax_into(graph, times);
    }

    /// Returns the lengths of the step on all main threads and streams.
    fn lengths(&self) -> Vec<i64> {
        let lengths_on = |at: usize| {
            let rank = &self.ranks[at];
            let host_ns = self.end(rank.last_action(rank.main)) - self.end(rank.start);
            let streams = rank.streams.iter().map(|stream| self.stream_ns(stream));
            std::iter::once(host_ns).chain(streams)
        };
        (0..self.ranks.len()).flat_map(lengths_on).collect()
    }

    /// Returns the time that a step takes on a stream: from the end of the earlier work to the end
    /// of this step's work, and at least the sum of this work. The sum decides where a stream that
    /// is still idle between works falls behind a little in every step.
    pub(super) fn stream_ns(&self, stream: &StreamNodes) -> i64 {
        let Some(ends) = stream.works.iter().map(|work| self.end(*work)).max() else { return 0 };
        let sum: i64 = stream.works.iter().map(|work| self.graph.node(*work).weight).sum();
        sum.max(ends - self.end(stream.free))
    }
}

/// Sets the weight of the only edge into a node.
fn set_edge_into(graph: &mut graph::DependencyGraph, node: NodeId, ns: i64) {
    let edge: Option<EdgeId> = graph.edges_into(node).next().map(|(edge, _)| edge);
    if let Some(edge) = edge {
        graph.set_edge_weight(edge, ns);
    }
}
