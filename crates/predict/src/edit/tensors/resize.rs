//! Changes the batch size of an execution trace. The new size spreads from the tensors of the batch
//! to all that is computed from them.

use std::collections::BTreeSet;

use trace::execution_trace::{ExecutionTrace, Node, NodeTensor};

use super::nodes::each_tensor;
use crate::Error;
use crate::edit::position::EditPosition;
use crate::program::from_execution_trace::storage;

/// Changes the batch size of all tensors that depend on the batch.
///
/// The batch enters by tensors that are read before they are written, are not parameters, and have
/// a dimension of `from`. Of whole numbers, such as ids, a multiple is enough. Of a tensor that
/// depends on the batch, one dimension changes: the first one of `from`, or else the multiple of it
/// that is outermost in memory. Tensors with the sizes of a parameter, such as gradients, stay.
///
/// # Errors
/// [`Error::Edit`] for a size of 0, if a parameter has a dimension of `from`, because the sizes of
/// its gradient would not differ from those of a batch, and if no tensor has such a dimension.
pub(super) fn apply(
    trace: &mut ExecutionTrace,
    position: EditPosition,
    from: u32,
    to: u32,
) -> Result<(), Error> {
    if from == 0 || to == 0 {
        return Err(position.error("sizes from 1 on", 0));
    }
    let mut order: Vec<usize> = (0..trace.nodes.len()).collect();
    order.sort_by_key(|at| trace.nodes[*at].id);
    let parameters = parameter_sizes(trace, &order);
    let (from, to) = (i64::from(from), i64::from(to));
    if let Some(sizes) = parameters.iter().find(|sizes| sizes.contains(&from)) {
        let expected = "a batch size that no parameter has as a dimension";
        return Err(position.error(expected, format!("{from}, and a parameter of {sizes:?}")));
    }
    let resize = Resize { from, to, parameters };
    let (mut batch, mut written) = (BTreeSet::new(), BTreeSet::new());
    let mut count = 0;
    for at in order {
        let node = &trace.nodes[at];
        for tensor in storage::read(node) {
            let is_input = !written.contains(&tensor.storage);
            if is_input && resize.scaled(tensor, input_sizes(trace, tensor)).is_some() {
                batch.insert(tensor.storage);
            }
        }
        let depends = storage::read(node).iter().any(|tensor| batch.contains(&tensor.storage));
        let is_made = storage::read(node).is_empty();
        for tensor in storage::written(trace, node) {
            written.insert(tensor.storage);
            let is_batch =
                depends || (is_made && resize.scaled(tensor, BatchSizes::Exact).is_some());
            match is_batch {
                true => batch.insert(tensor.storage),
                false => batch.remove(&tensor.storage),
            };
        }
        count += resize.node(&mut trace.nodes[at], &batch);
    }
    match count {
        0 => Err(position.error("a tensor of the batch", format!("none of size {from}"))),
        _ => Ok(()),
    }
}

/// Returns the sizes of parameters and optimizer states: of storages that a step reads first and
/// changes in place later.
fn parameter_sizes(trace: &ExecutionTrace, order: &[usize]) -> BTreeSet<Vec<i64>> {
    let (mut written, mut given) = (BTreeSet::new(), BTreeSet::new());
    let mut sizes = BTreeSet::new();
    for at in order {
        let node = &trace.nodes[*at];
        let read = storage::read(node);
        given.extend(read.iter().map(|one| one.storage).filter(|one| !written.contains(one)));
        for tensor in storage::written(trace, node) {
            let is_changed = read.iter().any(|one| one.storage == tensor.storage);
            if is_changed && given.contains(&tensor.storage) && tensor.storage != 0 {
                sizes.insert(without_ones(tensor));
            }
            written.insert(tensor.storage);
        }
    }
    sizes.remove(&Vec::new());
    sizes
}

/// Returns the sizes of a tensor without dimensions of 1, in ascending order, so that views and
/// transposes of one tensor have the same sizes.
fn without_ones(tensor: &NodeTensor) -> Vec<i64> {
    let mut sizes: Vec<i64> = tensor.shape.iter().copied().filter(|size| *size != 1).collect();
    sizes.sort_unstable();
    sizes
}

/// Which dimensions of a tensor count as a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchSizes {
    Exact,
    Multiples,
}

/// Returns which dimensions show that an input belongs to the batch. Lists of ids are multiples of
/// the batch.
fn input_sizes(trace: &ExecutionTrace, tensor: &NodeTensor) -> BatchSizes {
    match trace.text(tensor.dtype) {
        "long int" | "long" | "int" | "int64" | "int32" => BatchSizes::Multiples,
        _ => BatchSizes::Exact,
    }
}

/// A change of the batch size.
struct Resize {
    from: i64,
    to: i64,
    parameters: BTreeSet<Vec<i64>>,
}

impl Resize {
    /// Returns the sizes of a tensor after the change, or `None` if they stay.
    fn scaled(&self, tensor: &NodeTensor, sizes: BatchSizes) -> Option<Vec<i64>> {
        if self.parameters.contains(&without_ones(tensor)) {
            return None;
        }
        let Self { from, to, .. } = *self;
        let mut shape = tensor.shape.to_vec();
        let is_multiple =
            |size: &i64| sizes == BatchSizes::Multiples && *size > 0 && size % from == 0;
        // The batch is the outermost dimension in memory, also of a transposed tensor.
        let order = |at: &usize| (tensor.strides.get(*at), shape[*at]);
        let multiples = (0..shape.len()).filter(|at| is_multiple(&shape[*at]));
        let exact = shape.iter().position(|size| *size == from);
        if let Some(at) = exact.or_else(|| multiples.max_by_key(order)) {
            shape[at] = shape[at] / from * to;
            return Some(shape);
        }
        // Offsets of bags have one more element than there are bags.
        match shape[..] {
            [size] if size > 1 && is_multiple(&(size - 1)) => {
                Some(vec![(size - 1) / from * to + 1])
            }
            _ => None,
        }
    }

    /// Resizes the tensors of a node that depend on the batch, and returns their number.
    fn node(&self, node: &mut Node, batch: &BTreeSet<u64>) -> usize {
        let mut count = 0;
        each_tensor(node, &mut |tensor| {
            // Flat values that are no whole numbers may be gradients of many parameters.
            let is_flat = tensor.shape.len() < 2 && tensor.element_bytes != 8;
            let sizes = if is_flat { BatchSizes::Exact } else { BatchSizes::Multiples };
            if !batch.contains(&tensor.storage) {
                return;
            }
            let Some(shape) = self.scaled(tensor, sizes) else { return };
            let product = |shape: &[i64]| shape.iter().product::<i64>().unsigned_abs().max(1);
            let (old, new) = (product(&tensor.shape), product(&shape));
            let scaled = |value: u64| {
                let value = u128::from(value) * u128::from(new) / u128::from(old);
                u64::try_from(value).unwrap_or(u64::MAX)
            };
            (tensor.elements, tensor.offset) = (scaled(tensor.elements), scaled(tensor.offset));
            (tensor.shape, tensor.strides) = (shape.into(), [].into());
            count += 1;
        });
        count
    }
}
