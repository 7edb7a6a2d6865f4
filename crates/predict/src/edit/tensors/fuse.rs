//! Fuses operators of an execution trace whose data does not depend on each other. The fused
//! operator has the joined tensors of its parts, from which a kernel model prices it.

use std::collections::BTreeSet;

use trace::execution_trace::{Argument, ExecutionTrace, Node, NodeForest, NodeTensor, TraceValue};

use super::nodes::{data_node, nodes_inside, subtree};
use crate::program::from_execution_trace::operator_table::OperatorTable;
use crate::program::from_execution_trace::storage;

/// Where a fused operator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FusedPlace {
    First,
    Last,
}

/// How the tensors of several operators become those of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TensorJoin {
    /// One after the other along the first dimension.
    Rows,
    /// As a batch of matrices, for products of equal sizes.
    Batch,
}

/// Operators that become one. The place is `None` while the group has one operator.
struct FusedGroup {
    operators: Vec<u32>,
    place: Option<FusedPlace>,
}

/// Fuses groups of operators with the same nested operators, and returns the number of groups. A
/// group runs with its last operator if nothing needs its results before, or else with its first
/// one if all its inputs exist by then.
///
/// # Source
/// arXiv:2201.07821, Figure 11: the lookups of many tables become one batched lookup.
pub(super) fn apply(trace: &mut ExecutionTrace, operators: &[u32]) -> usize {
    let tree = NodeForest::build(&trace.nodes);
    let mut groups: Vec<FusedGroup> = Vec::new();
    for at in operators {
        let extended = groups.last_mut().and_then(|group| {
            let places = [FusedPlace::Last, FusedPlace::First].into_iter();
            let mut places = places.filter(|place| group.place.is_none_or(|own| own == *place));
            let place =
                places.find(|place| can_join(trace, &tree, &group.operators, *at, *place))?;
            Some((group, place))
        });
        match extended {
            Some((group, place)) => {
                group.operators.push(*at);
                group.place = Some(place);
            }
            None => groups.push(FusedGroup { operators: vec![*at], place: None }),
        }
    }
    groups.retain(|group| group.operators.len() > 1);
    let mut gone = BTreeSet::new();
    for FusedGroup { operators, place } in &groups {
        let kept = if *place == Some(FusedPlace::First) { 0 } else { operators.len() - 1 };
        join(trace, &tree, operators, kept);
        let others = [&operators[..kept], &operators[kept + 1..]].concat();
        gone.extend(nodes_inside(trace, &tree, &others));
    }
    trace.nodes.retain(|node| !gone.contains(&node.id));
    groups.len()
}

/// Returns whether an operator can run together with a group of earlier ones, where the first or
/// the last of them ran.
fn can_join(
    trace: &ExecutionTrace,
    tree: &NodeForest,
    group: &[u32],
    at: u32,
    place: FusedPlace,
) -> bool {
    let name = |at: &u32| trace.nodes[*at as usize].name;
    let names = |at: u32| subtree(trace, tree, at).iter().map(name).collect::<Vec<_>>();
    let node = |at: u32| &trace.nodes[at as usize];
    let first = node(group[0]);
    if names(group[0]) != names(at) || first.thread != node(at).thread {
        return false;
    }
    let members: BTreeSet<u64> = nodes_inside(trace, tree, group).collect();
    let mut order: Vec<&Node> = trace.nodes.iter().collect();
    order.retain(|node| (first.id..=node_id(trace, at)).contains(&node.id));
    order.sort_by_key(|node| node.id);
    // What the group wrote that still lies in its memory, what it read, and what others wrote.
    let (mut results, mut inputs, mut others) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for node in order {
        let (read, written) =
            (storages(storage::read(node)), storages(storage::written(trace, node)));
        if members.contains(&node.id) {
            inputs.extend(&read - &results);
            results.extend(written);
            continue;
        }
        // A view touches no memory, so it need not wait for what it shows.
        let mut shown = node.outputs.iter().flat_map(|output| output.value.tensors()).peekable();
        let is_view = shown.peek().is_some() && shown.all(|tensor| read.contains(&tensor.storage));
        let is_last = node.id == node_id(trace, at);
        let needs_results = !(is_view || read.is_disjoint(&results));
        let is_ready = match place {
            FusedPlace::First if is_last => read.is_disjoint(&others) && !needs_results,
            FusedPlace::First => true,
            FusedPlace::Last => {
                !needs_results && read.intersection(&written).all(|one| !inputs.contains(one))
            }
        };
        if !is_ready {
            return false;
        }
        results = &results - &written;
        others.extend(written);
    }
    true
}

fn node_id(trace: &ExecutionTrace, at: u32) -> u64 {
    trace.nodes[at as usize].id
}

fn storages(tensors: Vec<&NodeTensor>) -> BTreeSet<u64> {
    tensors.iter().map(|tensor| tensor.storage).filter(|storage| *storage != 0).collect()
}

/// Gives the operator at a place of a group the joined tensors of all, and adds a node for the data
/// that it depends on.
fn join(trace: &mut ExecutionTrace, tree: &NodeForest, group: &[u32], kept_at: usize) {
    let nodes: Vec<Vec<u32>> = group.iter().map(|at| subtree(trace, tree, *at)).collect();
    let all: Vec<u32> = nodes.iter().flatten().copied().collect();
    let data = data_node(trace, group[kept_at], &all);
    let table = OperatorTable::shipped();
    let last = &nodes[kept_at];
    for (place, kept) in last.iter().enumerate() {
        let parts: Vec<&Node> =
            nodes.iter().map(|nodes| &trace.nodes[nodes[place] as usize]).collect();
        let row = table.find(trace.name(parts[0]));
        let is_product =
            row.is_some_and(|row| row.kernels().iter().any(|token| token.kernel == "product"));
        let how = if is_product { TensorJoin::Batch } else { TensorJoin::Rows };
        let joined = |arguments: fn(&Node) -> &[Argument]| -> Vec<Argument> {
            let joined = |(at, own): (usize, &Argument)| {
                let all = parts.iter().filter_map(|part| Some(&arguments(part).get(at)?.value));
                let value = join_values(&all.collect::<Vec<_>>(), &own.value, how);
                Argument { kind: own.kind, value }
            };
            arguments(parts[kept_at]).iter().enumerate().map(joined).collect()
        };
        let (inputs, outputs) = (joined(|node| &node.inputs), joined(|node| &node.outputs));
        let node = &mut trace.nodes[*kept as usize];
        (node.inputs, node.outputs) = (inputs, outputs);
    }
    trace.nodes.push(data);
}

/// Joins an argument of several operators. What is not a tensor stays that of the last one.
fn join_values(all: &[&TraceValue], own: &TraceValue, how: TensorJoin) -> TraceValue {
    match own {
        TraceValue::Tensor(_) => {
            let tensors: Vec<&NodeTensor> = all.iter().filter_map(|value| value.tensor()).collect();
            TraceValue::Tensor(Box::new(join_tensors(&tensors, how)))
        }
        TraceValue::List(values) => {
            let joined = |(at, own)| {
                let nth = all.iter().filter_map(|value| value.list().get(at));
                join_values(&nth.collect::<Vec<_>>(), own, how)
            };
            TraceValue::List(values.iter().enumerate().map(joined).collect())
        }
        other => other.clone(),
    }
}

/// Joins tensors along their first dimension, and those of equal products as a batch of matrices. A
/// tensor that all parts share stays as it is.
fn join_tensors(tensors: &[&NodeTensor], how: TensorJoin) -> NodeTensor {
    let Some((last, others)) = tensors.split_last() else { return NodeTensor::default() };
    if others.iter().all(|other| (other.storage, other.offset) == (last.storage, last.offset)) {
        return (*last).clone();
    }
    let elements = tensors.iter().map(|tensor| tensor.elements).fold(0, u64::saturating_add);
    let flat = i64::try_from(elements).unwrap_or(i64::MAX);
    let shape = if how == TensorJoin::Batch && others.iter().all(|other| other.shape == last.shape)
    {
        [&[tensors.len() as i64][..], &last.shape].concat()
    } else if others.iter().all(|other| other.shape.get(1..) == last.shape.get(1..)) {
        let mut shape = last.shape.to_vec();
        let rows = tensors.iter().filter_map(|tensor| tensor.shape.first()).sum();
        shape.iter_mut().take(1).for_each(|size| *size = rows);
        shape
    } else {
        vec![flat]
    };
    NodeTensor { elements, shape: shape.into(), strides: [].into(), ..(*last).clone() }
}
