//! The arguments of a backend's operations, by name. Shapes count values; `B` is the number of
//! samples.

use schema::Loss;

use super::{Backend, InputGradient};
use crate::MatrixShape;
use crate::ops::exchange::{OwnedColumns, PooledColumns};
use crate::ops::gemm::Activation;
use crate::ops::interaction;

/// Arguments of [`Backend::linear_forward`], the product of a linear layer.
pub struct LinearForward<'a, B: Backend> {
    /// Input, `[B, K]`, in the weight's precision.
    pub x: &'a B::Matrix,
    /// Weight, `[N, K]`.
    pub weight: &'a B::Weight,
    /// Bias, `[N]`.
    pub bias: Option<&'a B::Vector>,
    /// Applied after the bias.
    pub activation: Activation,
    /// Output, `[B, N]`.
    pub y: &'a mut B::Matrix,
    pub samples: usize,
}

/// Arguments of [`Backend::linear_backward_input`], the gradient of a layer's input.
pub struct LinearBackwardInput<'a, B: Backend> {
    /// Gradient of the output, `[B, N]`, in the weight's precision.
    pub d_y: &'a B::Matrix,
    /// Weight, `[N, K]`.
    pub weight: &'a B::Weight,
    pub gradient: InputGradient<'a, B>,
    /// Gradient of the input, `[B, K]`.
    pub d_x: &'a mut B::Matrix,
    pub samples: usize,
}

/// Arguments of [`Backend::linear_backward_weight`], the gradients of weight and bias.
pub struct LinearBackwardWeight<'a, B: Backend> {
    /// Input of the forward product, `[B, K]`.
    pub x: &'a B::Matrix,
    /// Gradient of the output, `[B, N]`, in the input's precision.
    pub d_y: &'a B::Matrix,
    /// Weight whose gradient is overwritten.
    pub weight: &'a mut B::Weight,
    /// Gradient of the bias, `[N]`.
    pub d_bias: Option<&'a mut B::Vector>,
    pub samples: usize,
}

/// Arguments of [`Backend::column_forward`], a linear layer with one output.
pub struct ColumnForward<'a, B: Backend> {
    /// Input, f32 `[B, K]`.
    pub x: &'a B::Matrix,
    /// `[K]`.
    pub weight: &'a B::Vector,
    /// `[1]`.
    pub bias: &'a B::Vector,
    /// Output, `[B]`.
    pub y: &'a mut B::Vector,
    /// `[B, K]`.
    pub shape: MatrixShape,
}

/// Arguments of [`Backend::column_backward_weight`], the gradients of weight and bias.
pub struct ColumnBackwardWeight<'a, B: Backend> {
    /// Input, f32 `[B, K]`.
    pub x: &'a B::Matrix,
    /// Gradient of the output, `[B]`.
    pub d_y: &'a B::Vector,
    /// Gradient of the weight, `[K]`.
    pub d_weight: &'a mut B::Vector,
    /// Gradient of the bias, `[1]`.
    pub d_bias: &'a mut B::Vector,
    /// `[B, K]`.
    pub shape: MatrixShape,
}

/// Arguments of [`Backend::column_backward_input`], the gradient of the input.
pub struct ColumnBackwardInput<'a, B: Backend> {
    /// Gradient of the output, `[B]`.
    pub d_y: &'a B::Vector,
    /// `[K]`.
    pub weight: &'a B::Vector,
    /// The input, if it is the output of a ReLU. The gradient of that ReLU is then applied too.
    pub relu: Option<&'a B::Matrix>,
    /// Gradient of the input, f32 `[B, K]`.
    pub d_x: &'a mut B::Matrix,
    /// `[B, K]`.
    pub shape: MatrixShape,
}

/// Arguments of [`Backend::update_vector`], the update of a bias or other vector.
pub struct VectorUpdate<'a, B: Backend> {
    pub values: &'a mut B::Vector,
    /// Gradient, as long as the vector of values.
    pub gradient: &'a mut B::Vector,
    pub state: &'a mut B::Vector,
    /// Elements of a row; used only by row-wise Adagrad.
    pub dim: usize,
}

/// Arguments of [`Backend::cross_forward`]; all f32 `[B, N]` but the bias.
pub struct CrossForward<'a, B: Backend> {
    /// Input of the first cross layer.
    pub x0: &'a B::Matrix,
    pub u: &'a B::Matrix,
    /// `[N]`.
    pub bias: &'a B::Vector,
    /// Input of this layer.
    pub x: &'a B::Matrix,
    pub out: &'a mut B::Matrix,
    /// `[B, N]`.
    pub shape: MatrixShape,
}

/// Arguments of [`Backend::cross_backward`]; all f32 `[B, N]` but the bias and its gradient.
pub struct CrossBackward<'a, B: Backend> {
    /// Gradient of the output.
    pub d_out: &'a B::Matrix,
    /// Input of the first cross layer.
    pub x0: &'a B::Matrix,
    pub u: &'a B::Matrix,
    /// `[N]`.
    pub bias: &'a B::Vector,
    pub d_u: &'a mut B::Matrix,
    /// Gradient of the bias, `[N]`.
    pub d_bias: &'a mut B::Vector,
    /// Gradient of `x0`; the layer's part is added to it.
    pub d_x0: &'a mut B::Matrix,
    /// The direct part of the gradient of `x`.
    pub d_x: &'a mut B::Matrix,
    /// `[B, N]`.
    pub shape: MatrixShape,
}

/// Arguments of [`Backend::interaction_forward`], the dot interaction of a batch.
pub struct InteractionForward<'a, B: Backend> {
    pub shape: interaction::Shape,
    /// Vector 0 of each sample, f32 `[B, D]`.
    pub dense: &'a B::Matrix,
    /// The other vectors, `[B, F·D]`.
    pub pooled: &'a B::Vector,
    /// Output, f32 `[B, width]`.
    pub out: &'a mut B::Matrix,
}

/// Arguments of [`Backend::interaction_backward`], the gradients of the dot interaction.
pub struct InteractionBackward<'a, B: Backend> {
    pub shape: interaction::Shape,
    /// Vector 0 of each sample, f32 `[B, D]`.
    pub dense: &'a B::Matrix,
    /// The other vectors, `[B, F·D]`.
    pub pooled: &'a B::Vector,
    /// Gradient of the output, f32 `[B, width]`.
    pub d_out: &'a B::Matrix,
    pub d_dense: &'a mut B::Matrix,
    pub d_pooled: &'a mut B::Vector,
}

/// Shape of a [`Backend::join`], which concatenates two matrices row by row: their common number of
/// rows, and the columns of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinShape {
    pub rows: usize,
    /// Columns of the matrix.
    pub left: usize,
    /// Columns of the row-major vectors.
    pub right: usize,
}

/// Arguments of [`Backend::loss`], the loss of a batch and its gradient.
pub struct LossArguments<'a, B: Backend> {
    pub kind: Loss,
    /// `[B]`.
    pub logits: &'a B::Vector,
    /// Labels in `0..=1`, `[B]`, in the host's memory.
    pub labels: &'a [f32],
    /// Gradient of the logits, `[B]`.
    pub gradient: &'a mut B::Vector,
    /// `[B]`.
    pub probabilities: &'a mut B::Vector,
}

/// The layout of an exchange of pooled vectors: which columns come from and go to which rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeLayout {
    /// The parts of a pooled row, in the order in which they are added.
    pub sources: Vec<PooledColumns>,
    /// `columns[r]`: the gradient columns that rank `r` receives.
    pub columns: Vec<Vec<OwnedColumns>>,
    /// `widths[r]`: elements per row that are exchanged with rank `r`, in either direction.
    pub widths: Vec<usize>,
    /// Elements of a pooled row.
    pub row: usize,
}

/// Arguments of [`Backend::assemble`], which builds pooled vectors from the parts of all ranks.
pub struct Assemble<'a, B: Backend> {
    /// This rank, and the first element within `local` of the part that it keeps for itself.
    pub own: (usize, usize),
    /// The vectors that this rank looked up for all ranks.
    pub local: &'a B::Vector,
    /// The vectors received from each rank. The entry of this rank is empty.
    pub parts: &'a [Vec<f32>],
    /// Samples of this rank.
    pub samples: usize,
}

/// Arguments of [`Backend::gather`], which selects the gradient columns of one rank.
pub struct Gather<'a, B: Backend> {
    /// The rank that receives the columns.
    pub rank: usize,
    /// Gradient of pooled vectors, `[B, ΣD]`.
    pub from: &'a B::Vector,
    /// Samples of this rank.
    pub samples: usize,
}
