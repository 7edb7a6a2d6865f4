//! Walks over the nodes and tensors of an execution trace that is being edited.

use trace::execution_trace::{ExecutionTrace, Node, NodeForest, NodeTensor, TraceValue};

use crate::program::from_execution_trace::order;

/// Returns the ids of operators and of all nodes nested in them.
pub(super) fn nodes_inside(
    trace: &ExecutionTrace,
    tree: &NodeForest,
    operators: &[u32],
) -> impl Iterator<Item = u64> {
    let inside = operators.iter().flat_map(|at| order::inside_out(tree, *at));
    inside.map(|at| trace.nodes[at as usize].id)
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
