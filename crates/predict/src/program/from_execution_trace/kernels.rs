//! Lists the kernels that an execution trace implies. The operation of each kernel follows from the
//! names of operators and their tensors alone, without a calibration or a device.

use std::collections::BTreeSet;

use trace::execution_trace::{ExecutionTrace, Node, NodeForest, NodeTensor};

use super::operator::is_on_accelerator;
use super::order::{self, ItemKind};
use super::storage;
use crate::Error;

/// Operation of a kernel, derived from the name and the tensors of its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// A batch of matrix products, each of an `m × k` and a `k × n` matrix.
    Product {
        batch: u64,
        m: u64,
        n: u64,
        k: u64,
    },
    /// One operation that is applied to every element of a tensor.
    Element,
    /// A copy or a memory set.
    Move,
    /// A reduction over dimensions, such as a sum.
    Reduce,
    /// A concatenation of tensors.
    Concat,
    /// A gather or scatter by index.
    Index,
    /// A pooled lookup of embedding rows.
    Lookup {
        ids: u64,
        bags: u64,
    },
    /// The update of the rows that a lookup read.
    Update,
    /// A prefix sum, which takes several kernels.
    Scan,
    Other,
}

/// A kernel that an operator launches, with the number of bytes it reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchedKernel {
    pub kernel: Kernel,
    pub bytes: u64,
}

/// Lists the kernels of a step except collectives, in the order in which their operators end.
///
/// An operator launches a kernel if it writes device memory that no nested operator wrote, unless
/// it only allocates that memory.
///
/// # Errors
/// [`Error::Execution`] for the traces that
/// [`Program::from_execution`](crate::program::Program::from_execution) rejects.
pub fn list_kernels(trace: &ExecutionTrace, step: usize) -> Result<Vec<LaunchedKernel>, Error> {
    super::check(trace)?;
    let tree = NodeForest::build(&trace.nodes);
    let wanted = super::step(trace, step)?;
    let (_, items) = order::order_items(trace, &tree, wanted);
    let mut found = Vec::new();
    for item in items.iter().filter(|item| item.kind == ItemKind::Operator) {
        // Storages that nested operators wrote, for each node whose parent is not visited yet.
        let mut written: Vec<(u32, BTreeSet<u64>)> = Vec::new();
        for at in super::operator::inside_out(&tree, item.node) {
            let mut inside = BTreeSet::new();
            for child in tree.children(at) {
                if let Some(place) = written.iter().rposition(|(known, _)| known == child) {
                    inside.extend(written.swap_remove(place).1);
                }
            }
            let node = &trace.nodes[at as usize];
            found.extend(launched_kernel(trace, node, &mut inside));
            written.push((at, inside));
        }
    }
    Ok(found)
}

/// Operators that write nothing despite their signature, or that only allocate memory.
const NOTHING: [&str; 10] = [
    "aten::empty",
    "aten::new_empty",
    "aten::resize_",
    "aten::set_",
    "aten::record_stream",
    "aten::detach_",
    "detach_",
    "aten::lift_fresh",
    "aten::requires_grad_",
    "aten::retain_grad",
];

fn launched_kernel(
    trace: &ExecutionTrace,
    node: &Node,
    inside: &mut BTreeSet<u64>,
) -> Option<LaunchedKernel> {
    let name = trace.name(node);
    let is_none = NOTHING.iter().chain(&storage::COLLECTIVES).any(|none| name.starts_with(none));
    if is_none {
        return None;
    }
    let is_on = |tensor: &&NodeTensor| is_on_accelerator(trace, tensor) && tensor.elements > 0;
    let read = storage::read(node);
    let written = storage::written(trace, node);
    // Copies to the host write tensors that lie on no device. Row updates do not list the memory
    // that they write.
    let comes_back = matches!(name, "aten::copy_" | "aten::_local_scalar_dense");
    let is_update = name.starts_with("torch::autograd::CppNode<SplitLookup");
    let new: Vec<u64> = written
        .iter()
        .filter(|tensor| is_on(tensor) || (comes_back && read.iter().any(is_on)))
        .map(|tensor| tensor.storage)
        .filter(|storage| inside.insert(*storage))
        .collect();
    let is_read_back = name == "aten::_local_scalar_dense" && read.iter().any(is_on);
    if new.is_empty() && !is_update && !is_read_back {
        return None;
    }
    let mut all: Vec<&NodeTensor> = read;
    all.extend(node.outputs.iter().flat_map(|output| output.value.tensors()));
    all.retain(is_on);
    let bytes = |tensor: &&NodeTensor| tensor.elements.saturating_mul(tensor.element_bytes);
    let bytes = all.iter().map(bytes).fold(0, u64::saturating_add);
    Some(LaunchedKernel { kernel: kernel(name, node), bytes })
}

fn kernel(name: &str, node: &Node) -> Kernel {
    let short = name.strip_prefix("aten::").unwrap_or(name).trim_matches('_');
    match short {
        "mm" | "addmm" | "bmm" | "baddbmm" | "mv" | "addmv" | "linear" | "matmul" => {
            product(node).unwrap_or(Kernel::Other)
        }
        "copy" | "fill" | "zero" | "clone" | "to_copy" | "local_scalar_dense" => Kernel::Move,
        "sum" | "mean" | "max" | "min" | "amax" | "amin" | "norm" | "prod" | "argmax" | "any"
        | "all" | "var" | "std" => Kernel::Reduce,
        "cat" | "stack" => Kernel::Concat,
        "cumsum" => Kernel::Scan,
        _ if short.starts_with("index") || short.starts_with("scatter") => Kernel::Index,
        "gather" | "embedding" | "take" => Kernel::Index,
        _ if short.contains("cumsum") || short.contains("permute_") => Kernel::Scan,
        _ if short.contains("embedding_codegen_lookup") => lookup(node),
        _ if short.starts_with("torch::autograd::CppNode<SplitLookup") => Kernel::Update,
        _ if name.starts_with("aten::") => Kernel::Element,
        _ => Kernel::Other,
    }
}

/// Reads the sizes of a matrix product from its last two matrix inputs.
fn product(node: &Node) -> Option<Kernel> {
    let inputs = node.inputs.iter().filter_map(|input| input.value.tensor());
    let shapes: Vec<Vec<u64>> = inputs
        .filter(|tensor| tensor.shape.len() >= 2)
        .map(|tensor| tensor.shape.iter().map(|size| u64::try_from(*size).unwrap_or(0)).collect())
        .collect();
    let [.., a, b] = &shapes[..] else { return None };
    let (k, m) = (*a.last()?, a[a.len() - 2]);
    let [.., first, second] = b[..] else { return None };
    // The weights of a linear layer may be stored transposed, so the dimension equal to `k` is
    // skipped.
    let n = if first == k { second } else { first };
    let batch = a[..a.len() - 2].iter().copied().fold(1, u64::saturating_mul);
    Some(Kernel::Product { batch, m, n, k })
}

/// Reads the numbers of ids and bags of a lookup from its inputs. The offsets follow the ids and
/// have one entry more than there are bags.
fn lookup(node: &Node) -> Kernel {
    let bags = node.outputs.iter().filter_map(|output| output.value.tensor());
    let samples = bags.filter_map(|tensor| tensor.shape.first()).copied().max();
    let samples = samples.and_then(|samples| u64::try_from(samples).ok()).unwrap_or(1).max(1);
    let lists = node.inputs.iter().filter_map(|input| input.value.tensor());
    let lists: Vec<u64> = lists
        .filter(|tensor| tensor.element_bytes == 8 && tensor.shape.len() == 1)
        .map(|tensor| tensor.elements)
        .collect();
    let pair = lists.windows(2).find(|pair| pair[1] > 1 && (pair[1] - 1) % samples == 0);
    match pair {
        Some([ids, offsets]) => Kernel::Lookup { ids: *ids, bags: offsets - 1 },
        _ => Kernel::Lookup { ids: 0, bags: samples },
    }
}
