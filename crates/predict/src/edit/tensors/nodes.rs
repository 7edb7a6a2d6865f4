//! Walks over the nodes and tensors of an execution trace that is being edited.

use trace::execution_trace::{Argument, ExecutionTrace, Node, NodeForest, NodeTensor, TraceValue};

use crate::program::from_execution_trace::{order, storage};

/// Name and signature of the node that reads and writes what the operators before an edit did. The
/// table of operators says that it launches nothing.
const DATA: &str = "rowmill::data";
const SIGNATURE: &str = "rowmill::data(Tensor(a!)[] written, Tensor[] read) -> ()";

/// Returns the ids of operators and of all nodes nested in them.
pub(super) fn nodes_inside(
    trace: &ExecutionTrace,
    tree: &NodeForest,
    operators: &[u32],
) -> impl Iterator<Item = u64> {
    let inside = operators.iter().flat_map(|at| order::inside_out(tree, *at));
    inside.map(|at| trace.nodes[at as usize].id)
}

/// Returns the nodes of an operator in the order in which they started.
pub(super) fn subtree(trace: &ExecutionTrace, tree: &NodeForest, at: u32) -> Vec<u32> {
    let mut nodes = order::inside_out(tree, at);
    nodes.sort_by_key(|at| trace.nodes[*at as usize].id);
    nodes
}

/// Creates a node inside an operator that reads and writes what all of the given nodes do, so that
/// dependencies stay exact when an edit removes these nodes. Its id is above all others.
pub(super) fn data_node(trace: &mut ExecutionTrace, operator: u32, nodes: &[u32]) -> Node {
    let id = trace.nodes.iter().map(|node| node.id).max().unwrap_or_default() + 1;
    let kind = trace.strings.intern("GenericList[Tensor]");
    let (name, op_schema) = (trace.strings.intern(DATA), trace.strings.intern(SIGNATURE));
    let nodes: Vec<&Node> = nodes.iter().map(|at| &trace.nodes[*at as usize]).collect();
    let list = |tensors: Vec<&NodeTensor>| {
        let tensor = |tensor: &NodeTensor| TraceValue::Tensor(Box::new(tensor.clone()));
        Argument { kind, value: TraceValue::List(tensors.into_iter().map(tensor).collect()) }
    };
    let written = nodes.iter().flat_map(|node| storage::written(trace, node)).collect();
    let read = nodes.iter().flat_map(|node| storage::read(node)).collect();
    let operator = &trace.nodes[operator as usize];
    Node {
        id,
        parent: operator.id,
        name,
        op_schema,
        sequence: -1,
        inputs: vec![list(written), list(read)],
        outputs: Vec::new(),
        rest: Vec::new(),
        ..operator.clone()
    }
}

/// Calls a function for each tensor of a node's inputs and outputs.
pub(super) fn each_tensor(node: &mut Node, change: &mut impl FnMut(&mut NodeTensor)) {
    fn each(value: &mut TraceValue, change: &mut impl FnMut(&mut NodeTensor)) {
        match value {
            TraceValue::Tensor(tensor) => change(tensor),
            TraceValue::List(values) => values.iter_mut().for_each(|value| each(value, change)),
            _ => {}
        }
    }
    let all = node.inputs.iter_mut().chain(&mut node.outputs);
    all.for_each(|argument| each(&mut argument.value, change));
}
