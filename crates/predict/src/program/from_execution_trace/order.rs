//! Orders the operators and labels of each thread of a rank by their start.

use std::collections::BTreeMap;

use analyze::tree::is_label_name;
use trace::execution_trace::{ExecutionTrace, NodeForest, RecordScope};

/// An outermost operator on a thread, or the begin or end of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Node id, which increases in the order in which nodes start.
    pub key: u64,
    pub thread: usize,
    pub node: u32,
    pub kind: ItemKind,
}

/// The kind of an [`Item`], which decides the actions written for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    Begin,
    End,
    /// An outermost operator with all of its descendants.
    Operator,
}

/// A thread that takes part in a step of an execution trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Number of the thread in the execution trace.
    pub number: u64,
    /// Whether the thread runs backward operators while another thread waits for them.
    pub is_autograd: bool,
}

/// The range of node ids that belong to a step in an execution trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRange {
    /// Index of the node that labels the step, or `None` if the trace has no step marks.
    pub root: Option<u32>,
    pub first: u64,
    /// First id after the step.
    pub behind: u64,
}

const MARK: &str = "ProfilerStep#";
/// Attribute of an operator with the stream to which an edit moved its kernels.
pub const STREAM: &str = "stream";

/// Returns the stream to which an edit moved the kernels of an operator.
pub fn moved_to(trace: &ExecutionTrace, at: u32) -> Option<i32> {
    let mut attributes = trace.nodes[at as usize].rest.iter();
    let (_, stream) = attributes.rfind(|(name, _)| trace.text(*name) == STREAM)?;
    i32::try_from(stream.int()?).ok()
}

/// Lists the steps of a trace in order. A trace without step marks counts as one step.
pub fn steps(trace: &ExecutionTrace) -> Vec<StepRange> {
    let marks = (0u32..).zip(&trace.nodes).filter(|(_, node)| trace.name(node).starts_with(MARK));
    let mut marks: Vec<(u64, u32)> = marks.map(|(at, node)| (node.id, at)).collect();
    marks.sort_unstable();
    if marks.is_empty() {
        return vec![StepRange { root: None, first: 0, behind: u64::MAX }];
    }
    let behind = marks.iter().skip(1).map(|mark| mark.0).chain([u64::MAX]);
    let step = |((first, root), behind): (&(u64, u32), u64)| StepRange {
        root: Some(*root),
        first: *first,
        behind,
    };
    marks.iter().zip(behind).map(step).collect()
}

/// Returns the threads of a step with the main thread first, and the items of all threads in order
/// of start.
pub fn order_items(
    trace: &ExecutionTrace,
    tree: &NodeForest,
    step: StepRange,
) -> (Vec<Thread>, Vec<Item>) {
    let threads = trace.threads();
    let main = match step.root {
        Some(root) => Some(trace.nodes[root as usize].thread),
        None => {
            let first = |nodes: &[u32]| nodes.first().map(|at| trace.nodes[*at as usize].id);
            let began = threads.iter().filter_map(|(thread, nodes)| Some((first(nodes)?, *thread)));
            began.min().map(|(_, thread)| thread)
        }
    };
    let backward = ends_of_backward(trace);
    let (mut found, mut items) = (Vec::new(), Vec::new());
    let others = threads.keys().copied().filter(|thread| Some(*thread) != main);
    for number in main.into_iter().chain(others) {
        let nodes = &threads[&number];
        let is_of_step = |at: &&u32| {
            let id = trace.nodes[**at as usize].id;
            (step.first..step.behind).contains(&id) && Some(**at) != step.root
        };
        let is_autograd = nodes.iter().any(|at| {
            let node = &trace.nodes[*at as usize];
            node.scope == RecordScope::BackwardFunction || node.forward_thread != 0
        });
        let walk = Walk { trace, tree, backward: &backward, thread: found.len() };
        let begun = items.len();
        match step.root.filter(|_| Some(number) == main) {
            Some(root) => tree.children(root).iter().for_each(|at| walk.node(*at, &mut items)),
            None => {
                let is_outermost = |at: &&u32| {
                    let parent = tree.parent(**at);
                    parent.is_none_or(|at| trace.is_root(&trace.nodes[at as usize]))
                };
                let outermost = nodes.iter().filter(is_of_step).filter(is_outermost);
                outermost.for_each(|at| walk.node(*at, &mut items));
            }
        }
        if items.len() > begun || Some(number) == main {
            found.push(Thread { number, is_autograd: is_autograd && Some(number) != main });
        }
    }
    // The sort is stable, so items of one thread with equal keys keep their order.
    items.sort_by_key(|item| item.key);
    (found, items)
}

/// Returns, for each node that called autograd, the last id that autograd ran for it. An autograd
/// thread works for one caller until it starts to work for another one.
fn ends_of_backward(trace: &ExecutionTrace) -> BTreeMap<u64, u64> {
    let threads: BTreeMap<u64, u64> =
        trace.nodes.iter().map(|node| (node.id, node.thread)).collect();
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for (thread, nodes) in trace.threads() {
        let mut caller = 0;
        for node in nodes.iter().map(|at| &trace.nodes[*at as usize]) {
            let parent = node.forward_parent;
            if parent != 0 && threads.get(&parent).is_some_and(|of| *of != thread) {
                caller = parent;
            }
            if caller != 0 {
                let end = ends.entry(caller).or_default();
                *end = node.id.max(*end);
            }
        }
    }
    ends
}

/// Visits a node and its descendants depth-first, and lists them as items of one thread.
struct Walk<'a> {
    trace: &'a ExecutionTrace,
    tree: &'a NodeForest,
    backward: &'a BTreeMap<u64, u64>,
    thread: usize,
}

impl Walk<'_> {
    fn node(&self, at: u32, items: &mut Vec<Item>) {
        let mut open = vec![(at, ItemKind::Begin)];
        while let Some((at, what)) = open.pop() {
            let id = self.trace.nodes[at as usize].id;
            let item = |key, kind| Item { key, thread: self.thread, node: at, kind };
            if what == ItemKind::End {
                // A label around a backward pass ends after the last operator of that pass.
                let last = items.last().map_or(id, |last| last.key);
                let backward = self.backward.get(&id).copied().unwrap_or_default();
                items.push(item(last.max(backward), ItemKind::End));
            } else if is_label(self.trace, at) {
                items.push(item(id, ItemKind::Begin));
                open.push((at, ItemKind::End));
                let inside = self.tree.children(at).iter().rev();
                open.extend(inside.map(|child| (*child, ItemKind::Begin)));
            } else {
                items.push(item(id, ItemKind::Operator));
            }
        }
    }
}

/// Returns whether a node only labels the operators inside it.
pub fn is_label(trace: &ExecutionTrace, at: u32) -> bool {
    let node = &trace.nodes[at as usize];
    node.scope == RecordScope::User || is_label_name(trace.name(node))
}

/// Returns a node and its descendants in postorder. An operator launches its own work after its
/// nested operators have prepared its inputs.
pub fn inside_out(tree: &NodeForest, at: u32) -> Vec<u32> {
    let (mut open, mut found) = (vec![at], Vec::new());
    while let Some(at) = open.pop() {
        found.push(at);
        open.extend(tree.children(at));
    }
    found.reverse();
    found
}
