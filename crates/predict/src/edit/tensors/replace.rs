//! Replaces operators of an execution trace by copies of another one, which work on the tensors of
//! the operators that they replace.

use std::collections::{BTreeMap, BTreeSet};

use trace::execution_trace::{ExecutionTrace, Node, NodeForest, NodeTensor};

use super::nodes::{data_node, each_tensor, nodes_inside, subtree};
use crate::program::from_execution_trace::storage;

/// How tensors of the copied operator become those of a replaced one.
#[derive(Default)]
struct TensorMap {
    /// Storages of the copied operator, and the tensors that take their place.
    tensors: BTreeMap<u64, NodeTensor>,
    /// Dimensions of the tensors of the copied operator, and those that take their place.
    sizes: BTreeMap<i64, i64>,
}

/// Replaces operators by copies of the operator `source`. Each copy reads and writes the tensors of
/// the operator that it replaces, in the order of their arguments, and has their sizes.
///
/// # Errors
/// The expected and the found tensors, if those of a replaced operator do not map onto those of the
/// copied one.
pub(super) fn apply(
    trace: &mut ExecutionTrace,
    operators: &[u32],
    source: u32,
) -> Result<(), [String; 2]> {
    let tree = NodeForest::build(&trace.nodes);
    let copied = subtree(trace, &tree, source);
    let mut new = Vec::new();
    for at in operators {
        let old = &trace.nodes[*at as usize];
        let map = TensorMap::build(trace, source, *at)?;
        let ids: BTreeMap<u64, u64> =
            (0..).zip(&copied).map(|(place, at)| (trace.nodes[*at as usize].id, place)).collect();
        let (id, parent) = (spread(old.id, &copied), spread(old.parent, &copied));
        for (place, inner) in (0..).zip(&copied) {
            let node = trace.nodes[*inner as usize].clone();
            let mut node = Node {
                id: id + place,
                parent: ids.get(&node.parent).map_or(parent, |place| id + place),
                sequence: if place == 0 { old.sequence } else { -1 },
                thread: old.thread,
                forward_thread: old.forward_thread,
                forward_parent: spread(old.forward_parent, &copied),
                ..node
            };
            each_tensor(&mut node, &mut |tensor| map.replace(tensor));
            new.push(node);
        }
        let all = subtree(trace, &tree, *at);
        let data = data_node(trace, *at, &all);
        new.push(Node { parent: id, id: spread(data.id, &copied) + *at as u64, ..data });
    }
    let gone: BTreeSet<u64> = nodes_inside(trace, &tree, operators).collect();
    trace.nodes.retain(|node| !gone.contains(&node.id));
    for node in &mut trace.nodes {
        let ids = [&mut node.id, &mut node.parent, &mut node.forward_parent];
        ids.into_iter().for_each(|id| *id = spread(*id, &copied));
    }
    trace.nodes.extend(new);
    number_anew(&mut trace.nodes);
    Ok(())
}

/// Multiplies an id of a node by the number of copied nodes. Ids keep their order, and all ids of
/// a copy fit between that of the replaced operator and the next one.
fn spread(id: u64, copied: &[u32]) -> u64 {
    id.saturating_mul(copied.len() as u64)
}

/// Numbers all nodes from 1 in the order of their ids, so that the ids stay small.
fn number_anew(nodes: &mut [Node]) {
    let ids: BTreeSet<u64> = nodes.iter().map(|node| node.id).collect();
    let numbers: BTreeMap<u64, u64> = ids.into_iter().zip(1..).collect();
    for node in nodes {
        for id in [&mut node.id, &mut node.parent, &mut node.forward_parent] {
            *id = numbers.get(id).copied().unwrap_or_default();
        }
    }
}

impl TensorMap {
    fn build(trace: &ExecutionTrace, source: u32, replaced: u32) -> Result<Self, [String; 2]> {
        let [from, to] = [source, replaced].map(|at| {
            let node = &trace.nodes[at as usize];
            [storage::read(node), storage::written(trace, node)]
        });
        let counts = |all: &[Vec<&NodeTensor>; 2]| {
            format!("an operator that reads {} tensors and writes {}", all[0].len(), all[1].len())
        };
        let [expected, got] = [counts(&from), counts(&to)];
        if expected != got {
            return Err([expected, got]);
        }
        let mut map = Self::default();
        for (from, to) in from.iter().flatten().zip(to.iter().flatten()) {
            let shapes = || {
                let shape = |tensor: &NodeTensor| format!("a tensor of {:?}", tensor.shape);
                [format!("{} with sizes that map onto each other", shape(from)), shape(to)]
            };
            if from.shape.len() != to.shape.len() {
                return Err(shapes());
            }
            for (from, to) in from.shape.iter().zip(&to.shape) {
                if *map.sizes.entry(*from).or_insert(*to) != *to {
                    return Err(shapes());
                }
            }
            map.tensors.insert(from.storage, (*to).clone());
        }
        Ok(map)
    }

    fn replace(&self, tensor: &mut NodeTensor) {
        for size in &mut tensor.shape {
            *size = *self.sizes.get(size).unwrap_or(size);
        }
        let elements = tensor.shape.iter().product::<i64>().unsigned_abs();
        let place = self.tensors.get(&tensor.storage).unwrap_or(tensor);
        let (storage, dtype, element_bytes) = (place.storage, place.dtype, place.element_bytes);
        let (offset, strides) = match place.shape == tensor.shape {
            true => (place.offset, place.strides.clone()),
            false => (0, [].into()),
        };
        (tensor.storage, tensor.offset, tensor.strides) = (storage, offset, strides);
        (tensor.dtype, tensor.element_bytes, tensor.elements) = (dtype, element_bytes, elements);
    }
}
