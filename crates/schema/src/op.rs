//! The operations of the trainer with their shapes, FLOPs and bytes.
//!
//! [`Op`] covers only what the trainer executes, not the operators of PyTorch. Benchmarks, traces
//! and predictions all use [`Op::work`], so the formulas exist only here.

use crate::optimizer::Optimizer;
use crate::training::Precision;

/// One of the three matrix products of a linear layer. The sizes `m`, `n` and `k` in [`Op::Gemm`]
/// are those of this product, not of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmProduct {
    /// Output of the layer: `Y[B, out] = X[B, in] Wᵀ`.
    Forward,
    /// Gradient of the layer's input: `dX[B, in] = dY[B, out] W`.
    BackwardInput,
    /// Gradient of the layer's weight: `dW[out, in] = dYᵀ X`.
    BackwardWeight,
}

/// An operation of the trainer, with the shape that determines its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Waits for the loader's next batch.
    InputWait { batch_size: usize },
    /// Sends ids to the ranks that own them.
    InputDist {
        /// Number of ids that this rank sends.
        ids: usize,
    },
    /// Looks up and pools all local tiles.
    EmbeddingForward {
        bags: usize,
        ids: usize,
        /// Sum of the dimension D over all ids.
        elements: usize,
        /// Sum of the dimension D over all bags.
        pooled_elements: usize,
        /// Sum of the row size in bytes over all ids.
        row_bytes: usize,
    },
    /// Sends pooled vectors to the ranks of their samples.
    OutputDist {
        /// Number of f32 values that this rank sends.
        elements: usize,
    },
    /// Sends gradients of pooled vectors to the owners of the rows.
    GradientDist {
        /// Number of f32 values that this rank sends.
        elements: usize,
    },
    /// Sorts and sums the gradients by row, and updates the rows of all local tiles in the same
    /// operation.
    EmbeddingBackward {
        ids: usize,
        /// Number of distinct rows that are updated, over all tiles.
        unique_rows: usize,
        /// Sum of the dimension D over all ids.
        elements: usize,
        /// Sum of the dimension D over the distinct rows.
        unique_elements: usize,
        /// Sum of the row size in bytes over the distinct rows.
        unique_row_bytes: usize,
        /// Sum of the dimension D over all bags.
        pooled_elements: usize,
        optimizer: Optimizer,
    },
    /// A matrix product of a linear layer, including fused operations on its result: bias and ReLU
    /// in the forward, the gradient of the previous ReLU in [`GemmProduct::BackwardInput`], and the
    /// gradient of the bias in [`GemmProduct::BackwardWeight`].
    Gemm {
        product: GemmProduct,
        /// Precision of the two factors; the sums are always f32.
        precision: Precision,
        m: usize,
        n: usize,
        k: usize,
    },
    /// Copies values to the layout of the matrix products: the dense features of a batch, or values
    /// rounded for products of a lower precision.
    Pack { elements: usize },
    /// Computes the gradient of a ReLU that is not fused into a matrix product of the backward.
    ReluBackward { elements: usize },
    /// Computes the pairwise dot products of the interaction, or their gradient.
    Interaction { batch_size: usize, vectors: usize, dim: usize, pass: Pass },
    /// Concatenates dense and pooled vectors, or splits their gradients.
    Concat {
        /// Number of values, which is B times the width.
        elements: usize,
        pass: Pass,
    },
    /// Computes the element-wise part of a cross layer, or its gradient.
    Cross {
        /// Number of values, which is B times the width.
        elements: usize,
        pass: Pass,
    },
    /// Computes the loss and its gradient.
    Loss { batch_size: usize },
    /// Sums dense gradients over ranks.
    AllReduce { elements: usize },
    /// Optimizer step of the dense parameters. On one rank, the SGD, Adagrad and Adam updates of a
    /// weight are fused into the product that computes its gradient, so they do not appear here.
    DenseUpdate {
        elements: usize,
        /// Number of values that are also written in the layout of the matrix products.
        packed: usize,
        optimizer: Optimizer,
    },
}

/// Whether an operation belongs to the forward or the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Forward,
    Backward,
}

/// Lower bounds of an operation's cost: the arithmetic and the memory traffic that it cannot avoid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpWork {
    /// Number of floating-point operations; a multiply-add counts as two.
    pub flops: u64,
    /// Bytes read and written if each tensor is accessed only once.
    pub bytes: u64,
}

impl Op {
    /// Returns the name in traces, without the `rowmill::` prefix.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::InputWait { .. } => "input_wait",
            Self::InputDist { .. } => "input_dist",
            Self::EmbeddingForward { .. } => "embedding_forward",
            Self::OutputDist { .. } => "output_dist",
            Self::GradientDist { .. } => "gradient_dist",
            Self::EmbeddingBackward { .. } => "embedding_backward",
            Self::Gemm { product: GemmProduct::Forward, .. } => "gemm_forward",
            Self::Gemm { product: GemmProduct::BackwardInput, .. } => "gemm_backward_input",
            Self::Gemm { product: GemmProduct::BackwardWeight, .. } => "gemm_backward_weight",
            Self::Pack { .. } => "pack",
            Self::ReluBackward { .. } => "relu_backward",
            Self::Interaction { pass: Pass::Forward, .. } => "interaction_forward",
            Self::Interaction { pass: Pass::Backward, .. } => "interaction_backward",
            Self::Concat { pass: Pass::Forward, .. } => "concat_forward",
            Self::Concat { pass: Pass::Backward, .. } => "concat_backward",
            Self::Cross { pass: Pass::Forward, .. } => "cross_forward",
            Self::Cross { pass: Pass::Backward, .. } => "cross_backward",
            Self::Loss { .. } => "loss",
            Self::AllReduce { .. } => "all_reduce",
            Self::DenseUpdate { .. } => "dense_update",
        }
    }

    /// Returns the shapes of the main tensor arguments, for traces.
    #[must_use]
    pub fn shapes(&self) -> Vec<Vec<usize>> {
        match *self {
            Self::InputWait { batch_size } | Self::Loss { batch_size } => vec![vec![batch_size]],
            Self::InputDist { ids } => vec![vec![ids]],
            Self::EmbeddingForward { bags, ids, .. } => vec![vec![ids], vec![bags + 1]],
            Self::EmbeddingBackward { ids, pooled_elements, .. } => {
                vec![vec![ids], vec![pooled_elements]]
            }
            Self::Gemm { product, m, n, k, .. } => match product {
                GemmProduct::Forward => vec![vec![m, k], vec![n, k]],
                GemmProduct::BackwardInput => vec![vec![m, k], vec![k, n]],
                GemmProduct::BackwardWeight => vec![vec![k, m], vec![k, n]],
            },
            Self::Interaction { batch_size, vectors, dim, .. } => {
                vec![vec![batch_size, vectors, dim]]
            }
            Self::OutputDist { elements }
            | Self::GradientDist { elements }
            | Self::Pack { elements }
            | Self::ReluBackward { elements }
            | Self::Concat { elements, .. }
            | Self::Cross { elements, .. }
            | Self::AllReduce { elements }
            | Self::DenseUpdate { elements, .. } => vec![vec![elements]],
        }
    }

    /// Computes the FLOPs and the useful bytes of the operation from its shape.
    #[must_use]
    pub fn work(&self) -> OpWork {
        let (flops, bytes) = match *self {
            Self::InputWait { .. } => (0, 0),
            Self::InputDist { ids } => (0, 8 * ids),
            Self::OutputDist { elements } | Self::GradientDist { elements } => (0, 4 * elements),
            Self::AllReduce { elements } => (elements, 4 * elements),
            Self::EmbeddingForward { bags: _, ids, elements, pooled_elements, row_bytes } => {
                (elements, 8 * ids + row_bytes + 4 * pooled_elements)
            }
            Self::EmbeddingBackward {
                ids,
                unique_rows,
                elements,
                unique_elements,
                unique_row_bytes,
                pooled_elements,
                optimizer,
            } => {
                let (update, state) = row_update(optimizer, unique_rows, unique_elements);
                // Rows and their state are read and written.
                let rows = 2 * (unique_row_bytes + 4 * state);
                (elements + update, 8 * ids + 4 * pooled_elements + rows)
            }
            Self::Gemm { m, n, k, product, precision } => {
                let value = match precision {
                    Precision::F32 => 4,
                    Precision::Bf16 => 2,
                };
                // The gradient of a weight is f32 in every precision.
                let result = if product == GemmProduct::BackwardWeight { 4 } else { value };
                (2 * m * n * k, value * (m * k + k * n) + result * m * n)
            }
            Self::Pack { elements } => (0, 8 * elements),
            // Output and gradient are read, and the gradient of the input is written.
            Self::ReluBackward { elements } => (elements, 12 * elements),
            Self::Interaction { batch_size, vectors, dim, pass } => {
                let inputs = batch_size * vectors * dim;
                // Products of a vector with itself are not counted.
                let pairs = batch_size * vectors * (vectors - 1) / 2;
                match pass {
                    Pass::Forward => (2 * pairs * dim, 4 * (inputs + pairs)),
                    Pass::Backward => (4 * pairs * dim, 4 * (2 * inputs + pairs)),
                }
            }
            Self::Concat { elements, .. } => (0, 8 * elements),
            Self::Cross { elements, pass } => match pass {
                Pass::Forward => (3 * elements, 16 * elements),
                Pass::Backward => (5 * elements, 24 * elements),
            },
            Self::Loss { batch_size } => (8 * batch_size, 16 * batch_size),
            Self::DenseUpdate { elements, packed, optimizer } => {
                // The state of row-wise Adagrad has one value per row, which is negligible here.
                let (flops, state) = row_update(optimizer, 0, elements);
                // Weights and state are read and written, and gradients are only read.
                (flops, 12 * elements + 4 * packed + 8 * state)
            }
        };
        OpWork { flops: flops as u64, bytes: bytes as u64 }
    }
}

/// Returns the FLOPs of a row update, and the number of state values it accesses.
fn row_update(optimizer: Optimizer, rows: usize, elements: usize) -> (usize, usize) {
    match optimizer {
        Optimizer::Sgd => (2 * elements, 0),
        Optimizer::Adagrad => (6 * elements, elements),
        Optimizer::RowwiseAdagrad => (4 * elements + 4 * rows, rows),
        Optimizer::Adam | Optimizer::SparseAdam => (14 * elements, 2 * elements),
        Optimizer::Lamb => (20 * elements + 4 * rows, 2 * elements),
    }
}

#[cfg(test)]
mod tests {
    use super::{GemmProduct, Op, OpWork};
    use crate::optimizer::Optimizer;
    use crate::training::Precision;

    #[test]
    fn useful_bytes_of_the_embedding_match_the_baselines() {
        // The shapes describe 8 tables with B = 2048, L = 32 and D = 64, and all rows are distinct.
        let (ids, bags) = (8 * 2048 * 32, 8 * 2048);
        let forward = Op::EmbeddingForward {
            bags,
            ids,
            elements: ids * 64,
            pooled_elements: bags * 64,
            row_bytes: ids * 64 * 4,
        };
        assert_eq!(forward.work().bytes as usize, 8 * ids + 4 * ids * 64 + 4 * bags * 64);
        let backward = Op::EmbeddingBackward {
            ids,
            unique_rows: ids,
            elements: ids * 64,
            unique_elements: ids * 64,
            unique_row_bytes: ids * 64 * 4,
            pooled_elements: bags * 64,
            optimizer: Optimizer::RowwiseAdagrad,
        };
        let expected = 8 * ids + 4 * bags * 64 + 2 * ids * 64 * 4 + 8 * ids;
        assert_eq!(backward.work().bytes as usize, expected);
    }

    #[test]
    fn multiply_add_counts_as_two_flops() {
        let check = |product, precision, bytes: u64| {
            let op = Op::Gemm { product, precision, m: 2, n: 3, k: 5 };
            assert_eq!(op.work(), OpWork { flops: 60, bytes });
            op
        };
        let op = check(GemmProduct::Forward, Precision::F32, 4 * (10 + 15 + 6));
        assert_eq!(op.shapes(), [[2, 5], [3, 5]]);
        check(GemmProduct::Forward, Precision::Bf16, 2 * (10 + 15 + 6));
        check(GemmProduct::BackwardWeight, Precision::Bf16, 2 * (10 + 15) + 4 * 6);
    }
}
