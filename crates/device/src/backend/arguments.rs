//! Named arguments of a backend's operations. Shapes count values, and `B` is the number of
//! samples.

use schema::Loss;
use schema::random::CounterRng;

use super::{Backend, InputGradient, TileRows};
use crate::MatrixShape;
use crate::ops::exchange::{OwnedColumns, PooledColumns};
use crate::ops::gemm::Activation;
use crate::ops::interaction;

/// New values of some rows of a tile, for [`Backend::set_rows`].
#[derive(Clone, Debug)]
pub struct RowValues<'a> {
    pub rows: TileRows,
    /// `[rows, dim]`
    pub weights: &'a [f32],
    /// `[rows, Optimizer::state_per_row(dim)]`
    pub state: &'a [f32],
    /// Random bits with which the weights of 16-bit tables are rounded.
    pub rounding: CounterRng,
}

/// Arguments of [`Backend::linear_forward`], the product of a linear layer.
pub struct LinearForward<'a, B: Backend> {
    /// Input of the layer, `[B, K]`, in the weight's precision.
    pub x: &'a B::Matrix,
    /// Weight of the layer, `[N, K]`.
    pub weight: &'a B::Weight,
    /// Optional bias of the layer, `[N]`.
    pub bias: Option<&'a B::Vector>,
    /// Activation function that is applied after the bias.
    pub activation: Activation,
    /// Output of the layer, `[B, N]`.
    pub y: &'a mut B::Matrix,
    pub samples: usize,
}

/// Arguments of [`Backend::linear_backward_input`], the gradient of a layer's input.
pub struct LinearBackwardInput<'a, B: Backend> {
    /// Gradient of the layer's output, `[B, N]`, in the weight's precision.
    pub d_y: &'a B::Matrix,
    /// Weight of the layer, `[N, K]`.
    pub weight: &'a B::Weight,
    pub gradient: InputGradient<'a, B>,
    /// Gradient of the layer's input, `[B, K]`.
    pub d_x: &'a mut B::Matrix,
    pub samples: usize,
}

/// Arguments of [`Backend::linear_backward_weight`], the gradients of weight and bias.
pub struct LinearBackwardWeight<'a, B: Backend> {
    /// Input of the forward product, `[B, K]`.
    pub x: &'a B::Matrix,
    /// Gradient of the layer's output, `[B, N]`, in the input's precision.
    pub d_y: &'a B::Matrix,
    /// Weight of the layer, whose gradient is overwritten.
    pub weight: &'a mut B::Weight,
    /// Gradient of the bias, `[N]`.
    pub d_bias: Option<&'a mut B::Vector>,
    pub samples: usize,
}

/// The values to which [`Backend::column_forward`] adds the product.
pub enum ColumnStart<'a, B: Backend> {
    /// The bias of the single output, `[1]`.
    Bias(&'a B::Vector),
    /// The values that the output already has.
    Output,
}

/// Arguments of [`Backend::column_forward`], a linear layer with one output.
pub struct ColumnForward<'a, B: Backend> {
    /// Input of the layer, f32 `[B, K]`.
    pub x: &'a B::Matrix,
    /// Weight of the single output, `[K]`.
    pub weight: &'a B::Vector,
    pub start: ColumnStart<'a, B>,
    /// Output of the layer, one value per sample, `[B]`.
    pub y: &'a mut B::Vector,
    /// Shape of the input, `[B, K]`.
    pub shape: MatrixShape,
}

/// Arguments of [`Backend::column_backward_weight`], the gradients of weight and bias.
pub struct ColumnBackwardWeight<'a, B: Backend> {
    /// Input of the layer, f32 `[B, K]`.
    pub x: &'a B::Matrix,
    /// Gradient of the layer's output, `[B]`.
    pub d_y: &'a B::Vector,
    /// Gradient of the weight, `[K]`.
    pub d_weight: &'a mut B::Vector,
    /// Gradient of the bias, `[1]`, if the layer has one.
    pub d_bias: Option<&'a mut B::Vector>,
    /// Shape of the input, `[B, K]`.
    pub shape: MatrixShape,
}

/// Arguments of [`Backend::column_backward_input`], the gradient of the input.
pub struct ColumnBackwardInput<'a, B: Backend> {
    /// Gradient of the layer's output, `[B]`.
    pub d_y: &'a B::Vector,
    /// Weight of the single output, `[K]`.
    pub weight: &'a B::Vector,
    /// The layer's input, if it is the output of a ReLU. The gradient of that ReLU is then
    /// applied too.
    pub relu: Option<&'a B::Matrix>,
    /// Gradient of the layer's input, f32 `[B, K]`.
    pub d_x: &'a mut B::Matrix,
    /// Shape of the input, `[B, K]`.
    pub shape: MatrixShape,
}

/// Arguments of [`Backend::update_vector`], the update of a bias or other vector.
pub struct VectorUpdate<'a, B: Backend> {
    pub values: &'a mut B::Vector,
    /// Gradient of the vector, with the same length as the values.
    pub gradient: &'a mut B::Vector,
    pub state: &'a mut B::Vector,
    /// Number of elements per row; only row-wise Adagrad uses it.
    pub dim: usize,
}

/// Arguments of [`Backend::cross_forward`]. All matrices are f32 `[B, N]`.
pub struct CrossForward<'a, B: Backend> {
    /// Input of the first cross layer.
    pub x0: &'a B::Matrix,
    pub u: &'a B::Matrix,
    /// Bias of the layer, `[N]`.
    pub bias: &'a B::Vector,
    /// Input of this cross layer.
    pub x: &'a B::Matrix,
    pub out: &'a mut B::Matrix,
    /// Shape of the matrices, `[B, N]`.
    pub shape: MatrixShape,
}

/// Arguments of [`Backend::cross_backward`]. All matrices are f32 `[B, N]`.
pub struct CrossBackward<'a, B: Backend> {
    /// Gradient of the layer's output.
    pub d_out: &'a B::Matrix,
    /// Input of the first cross layer.
    pub x0: &'a B::Matrix,
    pub u: &'a B::Matrix,
    /// Bias of the layer, `[N]`.
    pub bias: &'a B::Vector,
    pub d_u: &'a mut B::Matrix,
    /// Gradient of the bias, `[N]`.
    pub d_bias: &'a mut B::Vector,
    /// Gradient of `x0`, to which the layer's part is added.
    pub d_x0: &'a mut B::Matrix,
    /// Gradient of `x` along the residual path, without the part through `u`.
    pub d_x: &'a mut B::Matrix,
    /// Shape of the matrices, `[B, N]`.
    pub shape: MatrixShape,
}

/// Arguments of [`Backend::interaction_forward`], the dot interaction of a batch.
pub struct InteractionForward<'a, B: Backend> {
    pub shape: interaction::Shape,
    /// Dense vector of each sample, which is its vector 0, f32 `[B, D]`.
    pub dense: &'a B::Matrix,
    /// Pooled vectors of each sample, which are its other vectors, `[B, F·D]`.
    pub pooled: &'a B::Vector,
    /// Output of the interaction, f32 `[B, width]`.
    pub out: &'a mut B::Matrix,
}

/// Arguments of [`Backend::interaction_backward`], the gradients of the dot interaction.
pub struct InteractionBackward<'a, B: Backend> {
    pub shape: interaction::Shape,
    /// Dense vector of each sample, which is its vector 0, f32 `[B, D]`.
    pub dense: &'a B::Matrix,
    /// Pooled vectors of each sample, which are its other vectors, `[B, F·D]`.
    pub pooled: &'a B::Vector,
    /// Gradient of the interaction's output, f32 `[B, width]`.
    pub d_out: &'a B::Matrix,
    pub d_dense: &'a mut B::Matrix,
    pub d_pooled: &'a mut B::Vector,
}

/// Shape of a [`Backend::join`], which concatenates a matrix and row-major vectors row by row:
/// their common number of rows, and the number of columns of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinShape {
    pub rows: usize,
    /// Columns of the matrix, which is the left part.
    pub left: usize,
    /// Columns of the row-major vectors, which are the right part.
    pub right: usize,
}

/// Arguments of [`Backend::loss`], the loss of a batch and its gradient.
pub struct LossArguments<'a, B: Backend> {
    pub kind: Loss,
    /// Logits of the samples, `[B]`.
    pub logits: &'a B::Vector,
    /// Labels in `0..=1`, `[B]`, in host memory.
    pub labels: &'a [f32],
    /// Gradient of the loss with respect to the logits, `[B]`.
    pub gradient: &'a mut B::Vector,
    /// Probabilities of the samples, `[B]`.
    pub probabilities: &'a mut B::Vector,
}

/// The layout of an exchange of pooled vectors: which columns are sent to each rank and which are
/// received from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeLayout {
    /// The parts of a pooled row, in the order in which they are added up.
    pub sources: Vec<PooledColumns>,
    /// Gradient columns that each rank receives; `columns[r]` lists those of rank `r`.
    pub columns: Vec<Vec<OwnedColumns>>,
    /// Number of elements per row that are exchanged with each rank, in either direction.
    pub widths: Vec<usize>,
    /// Number of elements of a pooled row.
    pub row: usize,
}

/// Arguments of [`Backend::assemble`], which builds pooled vectors from the parts of all ranks.
pub struct Assemble<'a, B: Backend> {
    /// Index of this rank, and the first element within `local` of the part that it keeps for
    /// itself.
    pub own: (usize, usize),
    /// Vectors that this rank looked up for all ranks.
    pub local: &'a B::Vector,
    /// Vectors received from each rank. The entry of this rank itself is empty.
    pub parts: &'a [Vec<f32>],
    /// Number of samples of this rank.
    pub samples: usize,
}

/// Arguments of [`Backend::gather`], which selects the gradient columns of one rank.
pub struct Gather<'a, B: Backend> {
    /// Index of the rank that receives the columns.
    pub rank: usize,
    /// Gradient of the pooled vectors, `[B, ΣD]`.
    pub from: &'a B::Vector,
    /// Number of samples of this rank.
    pub samples: usize,
}
