//! The trainer's interface to a device: memory behind opaque handles, the operations of a step, and
//! one block of numbers per step.
//!
//! A handle hides its layout: how a matrix, a weight or a table is stored is up to the device.
//! Every operation is queued and may run later. The outcome of a step (loss, distinct rows) stays
//! on the device until [`Backend::outcome`] reads it. Independent of layers, ranks and files.

mod arguments;
mod on_cpu;
mod on_cuda;

pub use arguments::{
    Assemble, ColumnBackwardInput, ColumnBackwardWeight, ColumnForward, CrossBackward,
    CrossForward, ExchangeLayout, Gather, InteractionBackward, InteractionForward, JoinShape,
    LinearBackwardInput, LinearBackwardWeight, LinearForward, LossArguments, VectorUpdate,
};
pub use on_cuda::{Cuda, QueueMoments, SOURCES};
use schema::random::CounterRng;
use schema::{JaggedTensor, Optimizer, Precision};

use crate::MatrixShape;
use crate::cpu::Pool;
use crate::error::Error;
use crate::ops::embedding_backward::{TileOrigin, Updated};
use crate::ops::{Slot, interaction};
use crate::optimizer::UpdateRule;
use crate::weights::{Weights, WeightsView};

/// A device on which a model can be trained: the CPU, a GPU, or the emulator.
///
/// # Contract
/// - Handles are created before the first step. [`Backend::grow`] enlarges one only until the
///   largest batch has been seen.
/// - No operation of a step allocates device memory or waits for the device, except
///   [`Backend::lend`], [`Backend::lend_gradient`] and [`Backend::read`], which pass values to the
///   host.
/// - Operations of one queue take effect in the order in which they were called.
/// - Callers pass the sizes in use, such as `samples`. An operation fails before it writes anything
///   if they exceed a handle.
/// - Results have the same bytes for any number of threads and any division of the work.
/// - A non-finite loss stops all later updates, so no weight changes.
pub trait Backend: Sized + Send {
    /// An ordered queue of operations: a stream on a GPU, the calling thread on a CPU.
    type Queue: Send;
    /// A matrix of activations or of their gradients, in the layout that the device's matrix
    /// products use.
    type Matrix: Default + Send;
    /// A row of f32: biases and other vectors, row-major pooled vectors, one value per sample.
    type Vector: Default + Send;
    /// A weight `[N, K]` of a linear layer, in every form that its products read, with its gradient
    /// and its optimizer state.
    type Weight: Default + Send;
    /// All tiles of embedding tables on one rank, with their optimizer states, their slots and the
    /// sort buffers of an update. One lookup and one update serve all of them.
    type Tables: Default + Send;
    /// The device's copy of the ids of a batch, if it needs one.
    type Jagged: Default + Send;
    /// The layout and buffers of an exchange of pooled vectors with other ranks.
    type Exchange: Default + Send;
    /// The scalars of a step, written before it, and the results that the step produces.
    type Scalars: Default + Send;
    /// A point in a queue that the host can wait for.
    type Event: Send;

    /// Whether the device runs asynchronously. If so, the trainer reads the outcome of a step after
    /// it has queued the next one, and the device checks ids.
    const IS_ASYNC: bool;

    /// The host's thread pool. It computes initial values, checks values before a checkpoint, and
    /// copies values that are read back.
    fn host(&self) -> &Pool;

    /// Whether the update of `optimizer` is fused into the product that computes a weight's
    /// gradient.
    fn fuses(optimizer: Optimizer) -> bool;

    /// The number of values of an f32 matrix `[rows, columns]` in memory, padding included.
    fn matrix_len(rows: usize, columns: usize) -> usize;
    /// Bytes of a matrix `[rows, columns]`.
    fn matrix_bytes(precision: Precision, rows: usize, columns: usize) -> usize;
    /// Bytes of a vector of `len` values.
    fn vector_bytes(len: usize) -> usize;
    /// Bytes of a weight with gradient and state.
    fn weight_bytes(shape: WeightShape) -> usize;
    /// Bytes of `len` weights of a tile in a format.
    fn table_bytes(data_type: schema::DataType, len: usize) -> usize;
    /// Bytes on the device for the ids of a batch and for the sort of its update. The host's copy
    /// of the ids is not included.
    fn update_bytes(shape: crate::ops::embedding_backward::ScratchShape) -> usize;

    /// Creates a new queue of operations.
    ///
    /// # Errors
    /// If the device refuses.
    fn queue(&self) -> Result<Self::Queue, Error>;
    /// Returns the completion times of a queue, or `None` for devices whose calls return only after
    /// the work is done.
    ///
    /// # Errors
    /// If the device refuses.
    fn moments(&self, _queue: &Self::Queue) -> Result<Option<QueueMoments>, Error> {
        Ok(None)
    }
    /// Allocates a matrix of zeros of the given size.
    ///
    /// # Errors
    /// If memory runs out.
    fn matrix(
        &self,
        precision: Precision,
        rows: usize,
        columns: usize,
    ) -> Result<Self::Matrix, Error>;
    /// Allocates a vector of `len` zeros.
    ///
    /// # Errors
    /// If memory runs out.
    fn vector(&self, len: usize) -> Result<Self::Vector, Error>;
    /// Allocates a weight of zeros with its gradient and state.
    ///
    /// # Errors
    /// If memory runs out.
    fn weight(&self, shape: WeightShape) -> Result<Self::Weight, Error>;
    /// Moves `tiles` to the device. Key `k` of every batch is looked up in slot `k`.
    ///
    /// # Errors
    /// If memory runs out.
    fn tables(&self, tiles: Vec<TileValues>, slots: Vec<Slot>) -> Result<Self::Tables, Error>;
    /// Creates the exchange of pooled vectors for this layout.
    ///
    /// # Errors
    /// If memory runs out.
    fn exchange(&self, layout: ExchangeLayout) -> Result<Self::Exchange, Error>;
    /// Allocates the scalars of a step.
    ///
    /// # Errors
    /// If memory runs out.
    fn scalars(&self) -> Result<Self::Scalars, Error>;
    /// Grows a vector to at least `len` values. If it is enlarged, its values are unspecified.
    ///
    /// # Errors
    /// If memory runs out.
    fn grow(&self, vector: &mut Self::Vector, len: usize) -> Result<(), Error>;

    /// Writes the host's row-major `rows` as `to` `[rows, columns]`.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn pack(
        &self,
        queue: &Self::Queue,
        rows: &[f32],
        shape: MatrixShape,
        to: &mut Self::Matrix,
    ) -> Result<(), Error>;
    /// Writes the host's `values` to `to` from element `at` on.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn write(
        &self,
        queue: &Self::Queue,
        values: &[f32],
        to: &mut Self::Vector,
        at: usize,
    ) -> Result<(), Error>;
    /// Copies the ids of a batch to the device, unless it reads them from host memory.
    ///
    /// # Errors
    /// [`Error::Jagged`].
    fn send_ids(
        &self,
        queue: &Self::Queue,
        jagged: &JaggedTensor,
        scales: Option<&[f32]>,
        to: &mut Self::Jagged,
    ) -> Result<(), Error>;
    /// Returns the first `len` values, borrowed in place if the host can read them, otherwise
    /// copied to `room`. Waits for the queue.
    ///
    /// # Errors
    /// If the device failed.
    fn read<'a>(
        &self,
        queue: &Self::Queue,
        from: &'a Self::Vector,
        len: usize,
        room: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], Error>;
    /// Passes the elements of `range` to `take`, for a message to another rank. Waits for the
    /// queue.
    ///
    /// # Errors
    /// If the device failed.
    fn lend(
        &self,
        queue: &Self::Queue,
        from: &Self::Vector,
        range: std::ops::Range<usize>,
        take: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error>;

    /// Copies row-major `values` `[N, K]`, or a state in the layout of checkpoints, to a weight.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn set_weight(
        &self,
        queue: &Self::Queue,
        part: WeightPart,
        values: &[f32],
        to: &mut Self::Weight,
    ) -> Result<(), Error>;
    /// Copies the row-major values, or the state in the layout of checkpoints, to `to`. Waits for
    /// the queue.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn get_weight(
        &self,
        queue: &Self::Queue,
        part: WeightPart,
        from: &Self::Weight,
        to: &mut [f32],
    ) -> Result<(), Error>;
    /// Whether all values and the whole state are finite. Waits for the queue.
    ///
    /// # Errors
    /// If the device failed.
    fn is_finite(&self, queue: &Self::Queue, weight: &Self::Weight) -> Result<bool, Error>;
    /// The number of elements of a weight's gradient in the layout in which ranks sum it.
    fn gradient_len(&self, weight: &Self::Weight) -> usize;
    /// Passes a weight's gradient to `take`, like [`Backend::lend`].
    ///
    /// # Errors
    /// If the device failed.
    fn lend_gradient(
        &self,
        queue: &Self::Queue,
        weight: &Self::Weight,
        take: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error>;
    /// Sets a weight's gradient to zero.
    ///
    /// # Errors
    /// If the device failed.
    fn clear_gradient(&self, queue: &Self::Queue, weight: &mut Self::Weight) -> Result<(), Error>;
    /// Sets the first `len` values to zero.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn clear(
        &self,
        queue: &Self::Queue,
        vector: &mut Self::Vector,
        len: usize,
    ) -> Result<(), Error>;
    /// Returns some rows of a tile and their state, borrowed in place if the host can read them,
    /// otherwise copied to `room`. Waits for the queue.
    ///
    /// # Errors
    /// If the device failed.
    fn tile<'a>(
        &self,
        queue: &Self::Queue,
        tables: &'a Self::Tables,
        rows: TileRows,
        room: &'a mut TileRoom,
    ) -> Result<(WeightsView<'a>, &'a [f32]), Error>;

    /// `y = f(x Wᵀ + bias)`: [`crate::ops::gemm::forward`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn linear_forward(
        &self,
        queue: &Self::Queue,
        arguments: LinearForward<'_, Self>,
    ) -> Result<(), Error>;
    /// `d_x = d_y W`: [`crate::ops::gemm::backward_input`].
    ///
    /// # Errors
    /// As [`Backend::linear_forward`].
    fn linear_backward_input(
        &self,
        queue: &Self::Queue,
        arguments: LinearBackwardInput<'_, Self>,
    ) -> Result<(), Error>;
    /// `dW = d_yᵀ x` and the bias's gradient: [`crate::ops::gemm::backward_weight`]; with `update`,
    /// also updates the weight ([`Backend::fuses`]).
    ///
    /// # Errors
    /// As [`Backend::linear_forward`].
    fn linear_backward_weight(
        &self,
        queue: &Self::Queue,
        arguments: LinearBackwardWeight<'_, Self>,
        update: Option<&Self::Scalars>,
    ) -> Result<(), Error>;
    /// `y = x · w + b`, one value per sample: [`crate::ops::gemm::column::forward`].
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn column_forward(
        &self,
        queue: &Self::Queue,
        arguments: ColumnForward<'_, Self>,
    ) -> Result<(), Error>;
    /// The gradients of `w` and `b`: [`crate::ops::gemm::column::backward_weight`].
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn column_backward_weight(
        &self,
        queue: &Self::Queue,
        arguments: ColumnBackwardWeight<'_, Self>,
    ) -> Result<(), Error>;
    /// The gradient of `x`: [`crate::ops::gemm::column::backward_input`].
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn column_backward_input(
        &self,
        queue: &Self::Queue,
        arguments: ColumnBackwardInput<'_, Self>,
    ) -> Result<(), Error>;
    /// Updates a weight from its own gradient or from the sum over all ranks. Serves weights whose
    /// update is not fused into a product.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn update_weight(
        &self,
        queue: &Self::Queue,
        weight: &mut Self::Weight,
        sum: Option<GradientSum<'_>>,
        scalars: &Self::Scalars,
    ) -> Result<(), Error>;
    /// Updates a vector from its own gradient or from the sum over all ranks.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn update_vector(
        &self,
        queue: &Self::Queue,
        arguments: VectorUpdate<'_, Self>,
        sum: Option<GradientSum<'_>>,
        scalars: &Self::Scalars,
    ) -> Result<(), Error>;

    /// Rounds an f32 matrix `[rows, columns]` to the precision of `to`.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn round(
        &self,
        queue: &Self::Queue,
        from: &Self::Matrix,
        shape: MatrixShape,
        to: &mut Self::Matrix,
    ) -> Result<(), Error>;
    /// `d_y = 0 where y ≤ 0`, f32 `[rows, columns]`.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn relu_backward(
        &self,
        queue: &Self::Queue,
        y: &Self::Matrix,
        shape: MatrixShape,
        d_y: &mut Self::Matrix,
    ) -> Result<(), Error>;
    /// `to = from`, or `to += from`, or `to = 0` without `from`; f32 `[rows, columns]`.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn combine(
        &self,
        queue: &Self::Queue,
        from: Combine<'_, Self>,
        shape: MatrixShape,
        to: &mut Self::Matrix,
    ) -> Result<(), Error>;
    /// Computes one cross layer: [`crate::ops::cross::forward`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn cross_forward(
        &self,
        queue: &Self::Queue,
        arguments: CrossForward<'_, Self>,
    ) -> Result<(), Error>;
    /// Computes the gradients of one cross layer: [`crate::ops::cross::backward`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn cross_backward(
        &self,
        queue: &Self::Queue,
        arguments: CrossBackward<'_, Self>,
    ) -> Result<(), Error>;
    /// Checks that the device can run an interaction of this shape. Models call it before the first
    /// step.
    ///
    /// # Errors
    /// If the vectors of one sample exceed the device's shared memory.
    fn check_interaction(&self, _shape: &interaction::Shape) -> Result<(), Error> {
        Ok(())
    }
    /// Computes the dot interaction: [`crate::ops::interaction::forward`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn interaction_forward(
        &self,
        queue: &Self::Queue,
        arguments: InteractionForward<'_, Self>,
    ) -> Result<(), Error>;
    /// Computes the gradients of the dot interaction: [`crate::ops::interaction::backward`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn interaction_backward(
        &self,
        queue: &Self::Queue,
        arguments: InteractionBackward<'_, Self>,
    ) -> Result<(), Error>;
    /// Concatenates a matrix and row-major vectors.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn join(
        &self,
        queue: &Self::Queue,
        left: &Self::Matrix,
        right: &Self::Vector,
        shape: JoinShape,
        to: &mut Self::Matrix,
    ) -> Result<(), Error>;
    /// Splits a matrix that [`Backend::join`] concatenated.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn split(
        &self,
        queue: &Self::Queue,
        from: &Self::Matrix,
        shape: JoinShape,
        left: &mut Self::Matrix,
        right: &mut Self::Vector,
    ) -> Result<(), Error>;

    /// Writes the scalars before a step and clears the results of the previous one. If its updates
    /// were stopped, those of this step are stopped too.
    ///
    /// # Errors
    /// If the device refuses.
    fn begin(
        &self,
        queue: &Self::Queue,
        step: &StepScalars,
        scalars: &mut Self::Scalars,
    ) -> Result<(), Error>;
    /// Losses of the samples, their gradients and probabilities: [`crate::ops::loss::run`]. The sum
    /// of the losses is added to `scalars`.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn loss(
        &self,
        queue: &Self::Queue,
        arguments: LossArguments<'_, Self>,
        scalars: &mut Self::Scalars,
    ) -> Result<(), Error>;
    /// Computes the probabilities of the logits, or uses those already computed by the loss. A
    /// non-finite logit gives NaN.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn probabilities(
        &self,
        queue: &Self::Queue,
        logits: &Self::Vector,
        samples: usize,
        form: Probabilities,
        to: &mut Self::Vector,
    ) -> Result<(), Error>;
    /// Pools the rows of a batch: [`crate::ops::embedding_forward::run`]. An out-of-range id is an
    /// error at once, or is recorded in `scalars` and reported at the end of the step.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Jagged`], [`Error::RowOutOfRange`].
    fn lookup(
        &self,
        queue: &Self::Queue,
        tables: &mut Self::Tables,
        ids: BatchIds<'_, Self>,
        out: &mut Self::Vector,
        scalars: &mut Self::Scalars,
    ) -> Result<(), Error>;
    /// Updates the rows of the last lookup: [`crate::ops::embedding_backward::run`]. The number of
    /// distinct rows is recorded in `scalars`.
    ///
    /// # Errors
    /// As [`Backend::lookup`], before any weight changes.
    fn update_rows(
        &self,
        queue: &Self::Queue,
        tables: &mut Self::Tables,
        ids: BatchIds<'_, Self>,
        gradient: &Self::Vector,
        scalars: &mut Self::Scalars,
    ) -> Result<(), Error>;
    /// Assembles pooled vectors from the parts that all ranks looked up:
    /// [`crate::ops::exchange::assemble`].
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn assemble(
        &self,
        queue: &Self::Queue,
        exchange: &mut Self::Exchange,
        arguments: Assemble<'_, Self>,
        pooled: &mut Self::Vector,
    ) -> Result<(), Error>;
    /// Gathers the part of a gradient that is sent to one rank: [`crate::ops::exchange::gather`].
    /// Waits for the queue.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn gather(
        &self,
        queue: &Self::Queue,
        exchange: &mut Self::Exchange,
        arguments: Gather<'_, Self>,
        to: &mut [f32],
    ) -> Result<(), Error>;

    /// Whether updates are stopped, by a non-finite loss or an out-of-range id in this step or an
    /// earlier one. Waits for the queue.
    ///
    /// # Errors
    /// If the device failed.
    fn is_stopped(&self, queue: &Self::Queue, scalars: &Self::Scalars) -> Result<bool, Error>;
    /// Stops the updates of the current step and of all later ones, because another rank has
    /// stopped its updates.
    ///
    /// # Errors
    /// If the device refuses.
    fn stop(&self, queue: &Self::Queue, scalars: &mut Self::Scalars) -> Result<(), Error>;
    /// Ends a step and starts the transfer of its results to the host.
    ///
    /// # Errors
    /// If the device refuses.
    fn end(&self, queue: &Self::Queue, scalars: &mut Self::Scalars) -> Result<Self::Event, Error>;
    /// Waits for the end of a step and returns its results.
    ///
    /// # Errors
    /// If the device failed.
    fn outcome(&self, scalars: &mut Self::Scalars, end: Self::Event) -> Result<StepOutcome, Error>;
}

/// The size of a weight, with the precision of its products and the optimizer that updates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightShape {
    pub n: usize,
    pub k: usize,
    pub precision: Precision,
    pub optimizer: Optimizer,
}

/// The part of a weight that is copied from or to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightPart {
    /// The values, `[N, K]`.
    Values,
    /// The state: nothing for SGD, `[N, K]` for Adagrad, `[N]` for row-wise Adagrad, `[2, N, K]`
    /// (means, then mean squares) for Adam, SparseAdam and LAMB.
    State,
}

/// The weights and state of one tile in host memory, which the device takes over.
#[derive(Debug)]
pub struct TileValues {
    /// `[rows, dim]`.
    pub weights: Weights,
    /// `[rows, Optimizer::state_per_row(dim)]`.
    pub state: crate::buffer::Array<f32>,
    /// Rows of the tile.
    pub rows: usize,
    /// Columns of the tile, above 0.
    pub dim: usize,
    /// Name of the table, for messages.
    pub name: String,
    /// Position of the tile in its table.
    pub origin: TileOrigin,
}

/// A range of rows of one tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileRows {
    /// Index of the tile among those of the rank.
    pub tile: usize,
    /// The rows, counted from the tile's first.
    pub rows: std::ops::Range<usize>,
}

/// Reusable host memory for rows that are copied from a device.
#[derive(Debug, Default)]
pub struct TileRoom {
    pub weights: Option<Weights>,
    pub state: Vec<f32>,
}

/// The scalars of a step that are known before it, such as learning rates.
#[derive(Clone, Copy, Debug)]
pub struct StepScalars {
    /// Update rule of dense parameters.
    pub dense: UpdateRule,
    /// Update rule of table rows.
    pub sparse: UpdateRule,
    /// Divisor of the loss: the number of samples of all ranks.
    pub normaliser: f64,
    /// Random bits for writing to 16-bit tables.
    pub rounding: CounterRng,
}

/// The results of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Sum of the losses of this rank's samples.
    pub loss: f64,
    /// Rows that were updated.
    pub updated: Updated,
    /// First position in `values` of an out-of-range id, on devices that check ids asynchronously.
    pub bad_id: Option<usize>,
}

/// The ids to look up: the ids of this rank's batch, or the ids that all ranks sent to this one.
pub struct BatchIds<'a, B: Backend> {
    pub jagged: &'a JaggedTensor,
    /// A factor per bag, `[F·B]`, feature-major.
    pub bag_scales: Option<&'a [f32]>,
    /// The device's copy, made by [`Backend::send_ids`].
    pub on_device: &'a B::Jagged,
}

/// A gradient summed over all ranks.
#[derive(Clone, Copy)]
pub enum GradientSum<'a> {
    Whole(&'a [f32]),
    /// The sum in several buffers; the function copies them into one.
    Pieces(&'a dyn Fn(&mut [f32])),
}

/// The operation of [`Backend::combine`] on the target matrix.
pub enum Combine<'a, B: Backend> {
    Clear,
    Copy(&'a B::Matrix),
    Add(&'a B::Matrix),
}

/// Whether the output of [`Backend::probabilities`] already holds the probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probabilities {
    Missing,
    /// Written by [`Backend::loss`].
    Computed,
}

/// How the gradient of a product's input is written.
pub enum InputGradient<'a, B: Backend> {
    Write,
    /// Add it to the existing values.
    Accumulate,
    /// Write it, with 0 where this input, the output of a ReLU, is not positive.
    BeforeRelu(&'a B::Matrix),
}
