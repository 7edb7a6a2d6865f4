//! Tracks the last writer of each byte of memory. Data dependencies between operators follow from
//! these writers.

use std::collections::BTreeMap;

use trace::execution_trace::{ExecutionTrace, Node, NodeTensor, TraceValue};

/// Nodes whose name begins with one of these write to all of their tensor arguments.
pub const COLLECTIVES: [&str; 3] = ["c10d::", "nccl:", "record_param_comms"];

/// Position of an operator in the execution order of its rank.
pub type OpId = u32;

/// Tracks which operator last wrote each byte range of each storage.
#[derive(Debug, Default)]
pub struct Storages {
    /// Written ranges of each storage: begin, end and last writer. Ranges of one storage are
    /// disjoint.
    parts: BTreeMap<u64, BTreeMap<u64, (u64, OpId)>>,
}

impl Storages {
    /// Returns the operators that last wrote bytes of a tensor.
    pub fn writers(&self, tensor: &NodeTensor) -> Vec<OpId> {
        let Some(parts) = self.parts.get(&tensor.storage) else { return Vec::new() };
        let (from, to) = bytes(tensor);
        let inside = parts.range(..to).rev().take_while(|(_, (end, _))| *end > from);
        inside.map(|(_, (_, writer))| *writer).collect()
    }

    /// Records an operator as the last writer of a tensor's bytes.
    pub fn write(&mut self, tensor: &NodeTensor, writer: OpId) {
        let (from, to) = bytes(tensor);
        if tensor.storage == 0 || from >= to {
            return;
        }
        let parts = self.parts.entry(tensor.storage).or_default();
        let touched: Vec<u64> = parts
            .range(..to)
            .rev()
            .take_while(|(_, (end, _))| *end > from)
            .map(|(begin, _)| *begin)
            .collect();
        for begin in touched {
            let Some((end, other)) = parts.remove(&begin) else { continue };
            if begin < from {
                parts.insert(begin, (from, other));
            }
            if end > to {
                parts.insert(to, (end, other));
            }
        }
        parts.insert(from, (to, writer));
    }
}

/// Returns the range of bytes that a tensor covers in its storage.
fn bytes(tensor: &NodeTensor) -> (u64, u64) {
    let is_known = tensor.strides.len() == tensor.shape.len() && !tensor.shape.is_empty();
    let reach = |(size, stride): (&i64, &i64)| {
        let last = u64::try_from(size - 1).unwrap_or(0);
        last.saturating_mul(stride.unsigned_abs())
    };
    let elements = match (is_known, tensor.elements) {
        (_, 0) => 0,
        (true, _) => {
            let all = tensor.shape.iter().zip(&tensor.strides).map(reach);
            all.fold(1, u64::saturating_add)
        }
        (false, elements) => elements,
    };
    let from = tensor.offset.saturating_mul(tensor.element_bytes);
    (from, from.saturating_add(elements.saturating_mul(tensor.element_bytes)))
}

/// Returns the tensors that a node reads, which are all of its inputs.
pub fn read(node: &Node) -> Vec<&NodeTensor> {
    node.inputs.iter().flat_map(|input| input.value.tensors()).collect()
}

/// Returns the tensors that a node writes. The written tensors are inputs that the node's signature
/// marks as mutable, outputs that are not views of inputs, and all inputs of a collective.
pub fn written<'a>(trace: &ExecutionTrace, node: &'a Node) -> Vec<&'a NodeTensor> {
    let signature = trace.text(node.op_schema);
    let arguments = arguments(signature);
    let is_collective = COLLECTIVES.iter().any(|name| trace.name(node).starts_with(name));
    let is_changed = |at: usize| {
        is_collective || arguments.get(at).is_some_and(|argument| argument.contains('!'))
    };
    let changed = node.inputs.iter().enumerate().filter(|(at, _)| is_changed(*at));
    let mut written: Vec<&NodeTensor> =
        changed.flat_map(|(_, input)| input.value.tensors()).collect();
    let given: Vec<u64> = read(node).iter().map(|tensor| tensor.storage).collect();
    let results = node.outputs.iter().flat_map(|output| output.value.tensors());
    written.extend(results.filter(|result| !given.contains(&result.storage)));
    written.retain(|tensor| tensor.storage != 0);
    written
}

/// Returns the tensors of a node that have memory.
pub fn tensors(node: &Node) -> impl Iterator<Item = &NodeTensor> {
    let all = node.inputs.iter().chain(&node.outputs);
    all.flat_map(|argument| argument.value.tensors()).filter(|tensor| tensor.storage != 0)
}

/// Returns whether a tensor lies on an accelerator rather than in host memory.
pub fn is_on_accelerator(trace: &ExecutionTrace, tensor: &NodeTensor) -> bool {
    let device = trace.text(tensor.device);
    !device.is_empty() && !device.starts_with("cpu") && !device.starts_with("meta")
}

/// Returns the value of an argument by its name in the operator's signature.
pub fn argument<'a>(trace: &ExecutionTrace, node: &'a Node, name: &str) -> Option<&'a TraceValue> {
    let arguments = arguments(trace.text(node.op_schema));
    let named = |argument: &str| {
        let declared = argument.split('=').next().unwrap_or_default();
        declared.split_whitespace().last() == Some(name)
    };
    let at = arguments.iter().position(|argument| named(argument))?;
    node.inputs.get(at).map(|input| &input.value)
}

/// Splits a TorchScript signature into its arguments.
fn arguments(signature: &str) -> Vec<&str> {
    let Some((_, rest)) = signature.split_once('(') else { return Vec::new() };
    let (mut depth, mut begin, mut found) = (0usize, 0, Vec::new());
    for (at, letter) in rest.char_indices() {
        match letter {
            '(' | '[' => depth += 1,
            ')' if depth == 0 => {
                found.push(&rest[begin..at]);
                break;
            }
            ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.push(&rest[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    // A star in a signature is not an argument. The star marks that the arguments after it are
    // passed by name.
    found.retain(|argument| !matches!(argument.trim(), "" | "*"));
    found
}

#[cfg(test)]
mod tests {
    use trace::execution_trace::NodeTensor;

    use super::{Storages, arguments};

    fn tensor(storage: u64, offset: u64, elements: u64) -> NodeTensor {
        NodeTensor { storage, offset, elements, element_bytes: 4, ..NodeTensor::default() }
    }

    #[test]
    fn the_last_writer_of_each_byte_is_known() {
        let mut storages = Storages::default();
        storages.write(&tensor(1, 0, 10), 0);
        storages.write(&tensor(1, 4, 2), 1);
        storages.write(&tensor(2, 4, 2), 2);
        assert_eq!(storages.writers(&tensor(1, 0, 10)), [0, 1, 0]);
        assert_eq!(storages.writers(&tensor(1, 0, 4)), [0]);
        assert_eq!(storages.writers(&tensor(1, 5, 1)), [1]);
        assert_eq!(storages.writers(&tensor(1, 10, 5)), [] as [u32; 0]);
        storages.write(&tensor(1, 0, 20), 3);
        assert_eq!(storages.writers(&tensor(1, 5, 1)), [3]);
        assert_eq!(storages.writers(&tensor(2, 0, 9)), [2]);
    }

    #[test]
    fn overlap_goes_by_strides() {
        let mut storages = Storages::default();
        // The tensor is the first column of a 3x4 matrix, so its last element is at offset 8.
        let column = NodeTensor { shape: [3, 1].into(), strides: [4, 1].into(), ..tensor(1, 0, 3) };
        storages.write(&column, 0);
        assert_eq!(storages.writers(&tensor(1, 8, 1)), [0]);
        assert_eq!(storages.writers(&tensor(1, 9, 1)), [] as [u32; 0]);
    }

    #[test]
    fn arguments_are_those_of_the_signature() {
        let signature = "aten::add.out(Tensor self, int[2] of=[1, 1], *, Tensor(a!) out) -> (int)";
        assert_eq!(arguments(signature), ["Tensor self", " int[2] of=[1, 1]", " Tensor(a!) out"]);
        assert_eq!(arguments("aten::one() -> int"), [] as [&str; 0]);
    }
}
