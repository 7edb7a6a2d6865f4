//! Simulates a program on its hosts and devices. A program and its costs become a
//! [`DependencyGraph`], whose solution gives the start and end of every action and work.
//!
//! The graph and its solver belong to `analyze::graph`. Contention between kernels is not modeled
//! unless the costs already include it.

mod steady;
mod write;

use analyze::graph::{
    self, DependencyGraph, Edge, EdgeKind, GraphNode, NodeId, NodeKind, NodeTimes,
};
use trace::store::StringId;

use crate::Error;
use crate::cost::{Constants, Cost, Costs, RankCosts};
use crate::program::{Action, Call, Program, Rank, Repeated, Returns, Work, WorkId};

pub use write::traces;

/// The solved dependency graph of a program. The graph holds the start and end of every part.
#[derive(Clone, Debug)]
pub struct Simulation {
    pub graph: DependencyGraph,
    /// Start and end of each node, in nanoseconds on the clock that all ranks share.
    pub times: NodeTimes,
    ranks: Vec<RankNodes>,
    /// Whether the step begins with what equal steps before it left running.
    is_steady: bool,
}

/// First and last node of a work. The two nodes differ only for collectives.
type Ends = (NodeId, NodeId);

/// The graph nodes of one rank's step.
#[derive(Clone, Debug)]
struct RankNodes {
    start: NodeId,
    main: usize,
    /// The node at whose end each thread begins.
    threads: Vec<NodeId>,
    streams: Vec<StreamNodes>,
    /// The node at whose end each action ends, indexed by thread and action.
    actions: Vec<Vec<NodeId>>,
    /// First and last node of each work.
    works: Vec<Ends>,
    /// Works that earlier steps launched, with the works that repeat them.
    left_running: Vec<(WorkId, Repeated)>,
}

/// The graph nodes of a stream.
#[derive(Clone, Debug)]
struct StreamNodes {
    /// The node at whose end earlier steps leave the stream free.
    free: NodeId,
    /// Last node of each work that this step launches on the stream.
    works: Vec<NodeId>,
}

/// Weight of an edge that never delays its target. This weight is earlier than any time and far
/// from overflow.
const NEVER: i64 = -(1 << 50);

impl Simulation {
    /// Returns the time at which the step of a rank starts.
    pub fn start_ns(&self, rank: usize) -> i64 {
        self.end(self.ranks[rank].start)
    }

    /// Returns the step time of a rank. It is measured on the main host thread. In a steady
    /// simulation, a step also takes at least as long as each stream needs for it.
    pub fn step_ns(&self, rank: usize) -> i64 {
        let nodes = &self.ranks[rank];
        let host_ns = self.end(nodes.last_action(nodes.main)) - self.end(nodes.start);
        if !self.is_steady {
            return host_ns;
        }
        nodes.streams.iter().map(|stream| self.stream_ns(stream)).fold(host_ns, i64::max)
    }

    /// Returns the begin and end of an action.
    pub fn action_ns(&self, rank: usize, thread: usize, action: usize) -> (i64, i64) {
        let nodes = &self.ranks[rank];
        let actions = &nodes.actions[thread];
        let before = action.checked_sub(1).map_or(nodes.threads[thread], |before| actions[before]);
        (self.end(before), self.end(actions[action]))
    }

    /// Returns the begin and end of a device work.
    pub fn work_ns(&self, rank: usize, work: WorkId) -> (i64, i64) {
        let (first, last) = self.ranks[rank].works[work as usize];
        (self.graph.start(&self.times, first), self.end(last))
    }

    /// Returns the node whose weight is the own time of an action. For actions that only wait, this
    /// node is the waiting node.
    pub fn action_node(&self, rank: usize, thread: usize, action: usize) -> NodeId {
        self.ranks[rank].actions[thread][action]
    }

    /// Returns the node whose weight is the duration of a work. For a collective, this node is the
    /// node of the transfer.
    pub fn work_node(&self, rank: usize, work: WorkId) -> NodeId {
        self.ranks[rank].works[work as usize].1
    }

    fn end(&self, node: NodeId) -> i64 {
        self.times.end[node.index()]
    }
}

/// Simulates a program: builds its dependency graph and computes all start and end times.
///
/// # Cost
/// `O(n)` in the number of actions and works.
/// # Errors
/// [`Error::Cycle`] if the actions of the program wait for each other in a cycle.
pub fn run(program: &Program, costs: &Costs) -> Result<Simulation, Error> {
    let origin = costs.ranks.iter().map(|rank| rank.start_ns).min().unwrap_or_default();
    let mut draft = Draft { constants: &costs.constants, nodes: Vec::new(), edges: Vec::new() };
    let ranks: Vec<RankNodes> = program
        .ranks
        .iter()
        .zip(&costs.ranks)
        .map(|(rank, costs)| draft.rank(program, rank, costs, origin))
        .collect();
    for collective in &program.collectives {
        let hub = draft.node(NodeKind::Collective, 0);
        for (rank, work) in &collective.parts {
            let (arrival, transfer) = ranks[*rank].works[*work as usize];
            draft.edge(EdgeKind::Rendezvous, arrival, hub, 0);
            draft.edge(EdgeKind::Rendezvous, hub, transfer, 0);
        }
    }
    let graph = DependencyGraph::try_new(draft.nodes, draft.edges).map_err(|source| {
        let what =
            source.nodes.first().map_or_else(String::new, |node| named(program, &ranks, *node));
        Error::Cycle { what, source }
    })?;
    let times = graph::relax(&graph, origin);
    Ok(Simulation { graph, times, ranks, is_steady: false })
}

impl RankNodes {
    /// Returns the node at whose end a thread ends its step.
    fn last_action(&self, thread: usize) -> NodeId {
        self.actions[thread].last().copied().unwrap_or(self.threads[thread])
    }
}

/// Describes a node of the graph for error messages.
fn named(program: &Program, ranks: &[RankNodes], node: NodeId) -> String {
    for (rank, nodes) in program.ranks.iter().zip(ranks) {
        let works = rank.works.iter().zip(&nodes.works);
        for (work, (first, last)) in works {
            if (*first..=*last).contains(&node) {
                return format!("rank {}, work {:?}", rank.rank, program.text(work.name));
            }
        }
        for (thread, nodes) in rank.threads.iter().zip(&nodes.actions) {
            if let Some(at) = nodes.iter().position(|other| *other == node) {
                return format!("rank {}, thread {}, action {at}", rank.rank, thread.tid);
            }
        }
    }
    "a collective".to_owned()
}

/// A dependency graph to which nodes and edges are still being added.
struct Draft<'a> {
    constants: &'a Constants,
    nodes: Vec<GraphNode>,
    edges: Vec<Edge>,
}

impl Draft<'_> {
    fn node(&mut self, kind: NodeKind, weight: i64) -> NodeId {
        self.nodes.push(GraphNode { kind, weight });
        NodeId(self.nodes.len() as u32 - 1)
    }

    fn edge(&mut self, kind: EdgeKind, source: NodeId, target: NodeId, weight: i64) {
        self.edges.push(Edge { kind, source, target, weight });
    }

    fn rank(
        &mut self,
        program: &Program,
        rank: &Rank,
        costs: &RankCosts,
        origin: i64,
    ) -> RankNodes {
        let start = self.node(NodeKind::StepMarker, costs.start_ns - origin);
        let works: Vec<Ends> = rank
            .works
            .iter()
            .zip(&costs.works)
            .map(|(work, cost)| self.work_nodes(program, work, *cost))
            .collect();
        let signals = rank.threads.iter().flat_map(|thread| &thread.actions);
        let count = signals.filter_map(|action| match action {
            Action::Signal(signal) => Some(*signal as usize + 1),
            _ => None,
        });
        let mut open = PendingLinks {
            works: &works,
            launched: vec![None; works.len()],
            signalled: vec![None; count.max().unwrap_or(0)],
            awaiting: Vec::new(),
        };
        let threads: Vec<NodeId> = (0..rank.threads.len())
            .map(|thread| if thread == rank.main { start } else { self.node_after(start, 0) })
            .collect();
        let actions = rank.threads.iter().zip(&costs.actions).zip(&threads);
        let actions = actions.map(|((thread, costs), begin)| {
            let mut at = *begin;
            let one = |(action, cost): (&Action, &Cost)| {
                at = self.action(&mut open, action, cost.ns, at);
                at
            };
            thread.actions.iter().zip(costs).map(one).collect()
        });
        let actions: Vec<Vec<NodeId>> = actions.collect();
        // A thread may wait for a signal of a later thread, so these edges are added when all
        // actions have nodes.
        for (signal, node, name) in std::mem::take(&mut open.awaiting) {
            let Some(Some(source)) = open.signalled.get(signal as usize) else { continue };
            let weight = name.and_then(|name| self.constants.hand_over_ns.get(program.text(name)));
            let weight = weight.copied().unwrap_or_default();
            self.edge(EdgeKind::Data, *source, node, weight);
        }
        let launched = open.launched;
        let streams = self.work_edges(rank, costs, start, &works, &launched);
        let left = (0u32..).zip(&rank.works);
        let left_running = left.filter_map(|(at, work)| Some((at, work.repeated?))).collect();
        RankNodes { start, main: rank.main, threads, streams, actions, works, left_running }
    }

    /// Adds a node without a time of its own, some time after another one.
    fn node_after(&mut self, source: NodeId, ns: i64) -> NodeId {
        let node = self.node(NodeKind::StepMarker, 0);
        self.edge(EdgeKind::ProgramOrder, source, node, ns);
        node
    }

    /// Adds one node for a work. A collective gets two nodes: its arrival and its transfer.
    fn work_nodes(&mut self, program: &Program, work: &Work, cost: Cost) -> Ends {
        let collective = work.collective.map(|at| &program.collectives[at as usize]);
        let Some(collective) = collective else {
            let node = self.node(NodeKind::Kernel, cost.ns);
            return (node, node);
        };
        let transfer = self.constants.transfer_ns(collective.operation, collective.bytes);
        let arrival = self.node(NodeKind::Collective, 0);
        (arrival, self.node(NodeKind::Collective, transfer.unwrap_or(cost.ns)))
    }

    /// Adds an action and returns the node at whose end the action ends.
    fn action(
        &mut self,
        open: &mut PendingLinks<'_>,
        action: &Action,
        ns: i64,
        before: NodeId,
    ) -> NodeId {
        let order = EdgeKind::ProgramOrder;
        match action {
            Action::Begin(_) | Action::End => before,
            Action::Signal(signal) => {
                open.signalled[*signal as usize] = Some(before);
                before
            }
            Action::Host(_) => {
                let node = self.node(NodeKind::HostWork, ns);
                self.edge(order, before, node, 0);
                node
            }
            Action::Wait(works) => {
                let node = self.node(NodeKind::HostWork, 0);
                self.edge(order, before, node, 0);
                self.awaits(open, works, node, 0);
                node
            }
            Action::Await { signal, wakes } => {
                let node = self.node(NodeKind::HostWork, 0);
                self.edge(order, before, node, 0);
                open.awaiting.push((*signal, node, *wakes));
                node
            }
            Action::Call(call) => self.call(open, call, ns, before),
        }
    }

    fn call(
        &mut self,
        open: &mut PendingLinks<'_>,
        call: &Call,
        ns: i64,
        before: NodeId,
    ) -> NodeId {
        let order = EdgeKind::ProgramOrder;
        let mut at = before;
        if !call.launches.is_empty() {
            // The launch is a node of its own, because work may start before the call returns, and
            // a full queue delays the launch.
            at = self.node(NodeKind::Launch, 0);
            self.edge(order, before, at, 0);
            if let Some(room) = call.room {
                self.awaits(open, &[room], at, 0);
            }
            call.launches.iter().for_each(|work| open.launched[*work as usize] = Some(at));
        }
        let weight = match call.returns {
            Returns::AtOnce => ns,
            Returns::AfterCopy | Returns::AfterAwaited => 0,
        };
        let node = self.node(NodeKind::HostWork, weight);
        match call.returns {
            Returns::AtOnce => self.edge(order, at, node, 0),
            Returns::AfterCopy => {
                self.edge(order, at, node, 0);
                self.awaits(open, &call.awaits, node, self.constants.copy_return_ns);
            }
            Returns::AfterAwaited => {
                let returns = self.constants.sync_return_ns;
                self.edge(order, at, node, returns);
                self.awaits(open, &call.awaits, node, returns);
            }
        }
        node
    }

    fn awaits(&mut self, open: &PendingLinks<'_>, works: &[WorkId], node: NodeId, weight: i64) {
        for work in works {
            let source = open.works[*work as usize].1;
            self.edge(EdgeKind::Synchronization, source, node, weight);
        }
    }

    fn work_edges(
        &mut self,
        rank: &Rank,
        costs: &RankCosts,
        start: NodeId,
        nodes: &[Ends],
        launched: &[Option<NodeId>],
    ) -> Vec<StreamNodes> {
        let mut streams: Vec<StreamNodes> = rank
            .streams
            .iter()
            .map(|_| StreamNodes { free: self.node_after(start, NEVER), works: Vec::new() })
            .collect();
        let is_launched = |work: WorkId| rank.works[work as usize].is_launched;
        for (at, work) in rank.works.iter().enumerate() {
            let node = nodes[at].0;
            // Work that an earlier step launched has no launch in this step and only occupies its
            // stream.
            if let Some(left) = costs.left_running_ns.get(&(at as u32)) {
                self.edge(EdgeKind::StreamOrder, start, node, *left);
                continue;
            }
            let held = work.held_ns;
            let latency = self.constants.latency_ns(work.kind) + held;
            let source = launched[at].unwrap_or(start);
            self.edge(EdgeKind::Launch, source, node, latency);
            let gap = self.constants.queue_gap_ns + held;
            let stream = &mut streams[work.stream as usize];
            stream.works.push(nodes[at].1);
            if let Some(behind) = work.behind {
                self.edge(EdgeKind::StreamOrder, nodes[behind as usize].1, node, gap);
            }
            if !work.behind.is_some_and(is_launched) {
                self.edge(EdgeKind::StreamOrder, stream.free, node, gap);
            }
            for after in &work.after {
                let wait = self.constants.event_wait_ns + held;
                self.edge(EdgeKind::Synchronization, nodes[*after as usize].1, node, wait);
            }
        }
        streams
    }
}

/// Links between actions and works of a rank that are resolved while actions are added.
struct PendingLinks<'a> {
    works: &'a [Ends],
    /// For each work, the node at whose end its launch begins.
    launched: Vec<Option<NodeId>>,
    /// For each signal, the node at whose end it is sent.
    signalled: Vec<Option<NodeId>>,
    /// Nodes that wait for a signal, with the name that selects the hand-over time.
    awaiting: Vec<(u32, NodeId, Option<StringId>)>,
}
