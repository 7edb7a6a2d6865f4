//! The trainer's interface to a device: memory behind opaque handles, the operations of a
//! training step, and one block of scalars per step.
//!
//! A handle hides its layout, so each device decides how it stores a matrix, a weight or a table.
//! Every operation is queued and may run later. The outcome of a step (its loss and the number of
//! distinct rows) stays on the device until [`Backend::outcome`] reads it. This module does not
//! depend on layers, ranks or files.

mod arguments;
mod ids;
mod on_cpu;
mod on_cuda;

pub use arguments::{
    Assemble, ColumnBackwardInput, ColumnBackwardWeight, ColumnForward, ColumnStart, CrossBackward,
    CrossForward, ExchangeLayout, Gather, InteractionBackward, InteractionForward, JoinShape,
    LinearBackwardInput, LinearBackwardWeight, LinearForward, LossArguments, RowValues,
    VectorUpdate,
};
pub use ids::{BatchIds, DistributedIds};
pub use on_cuda::{Cuda, QueueMoments, SOURCES};
use schema::random::CounterRng;
use schema::{JaggedTensor, Optimizer, Precision};

use crate::MatrixShape;
use crate::cpu::Pool;
use crate::error::Error;
use crate::ops::embedding_backward::{RowSums, TileOrigin, Updated};
use crate::ops::jagged::IdLayout;
use crate::ops::{Slot, SlotOutput, interaction};
use crate::optimizer::UpdateRule;
use crate::weights::{Weights, WeightsView};

/// A device on which a model can be trained: the CPU, a GPU, or the emulator.
///
/// # Contract
/// - The trainer creates all handles before the first step. [`Backend::grow`] enlarges a handle
///   only until the largest batch has been seen.
/// - No operation of a step allocates device memory or waits for the device, except
///   [`Backend::lend`], [`Backend::lend_gradient`] and [`Backend::read`], which pass values to
///   the host.
/// - Operations of one queue take effect in the order in which they were called. The exchange of
///   ids has a queue of its own ([`DistributedIds`]), so another thread can run it meanwhile.
/// - Callers pass the sizes in use, such as `samples`. An operation fails before it writes
///   anything if they exceed a handle.
/// - Results have the same bytes for any number of threads and any division of the work.
/// - A non-finite loss stops all later updates, so it never changes a weight.
pub trait Backend: Sized + Send + 'static {
    /// An ordered queue of operations: a stream on a GPU, the calling thread on a CPU.
    type Queue: Send;
    /// A matrix of activations or of their gradients, in the layout that the device's matrix
    /// products use.
    type Matrix: Default + Send;
    /// A row of f32 values: a bias or other parameter vector, row-major pooled vectors, or one
    /// value per sample.
    type Vector: Default + Send;
    /// A weight `[N, K]` of a linear layer in every format that its matrix products read,
    /// together with its gradient and its optimizer state.
    type Weight: Default + Send;
    /// All tiles of embedding tables on one rank, with their optimizer states, their slots and
    /// the sort buffers of an update. A lookup or an update processes all tiles of the rank in
    /// one call.
    type Tables: Default + Send;
    /// The ids of a batch that are looked up, with the buffers of their exchange between ranks.
    type Ids: DistributedIds;
    /// The layout and buffers of an exchange of pooled vectors with other ranks.
    type Exchange: Default + Send;
    /// The scalars of a step, which the host writes before it, and the results that the step
    /// produces.
    type Scalars: Default + Send;
    /// A point in a queue that the host can wait for.
    type Event: Send;

    /// Whether the device runs asynchronously. On an asynchronous device, the trainer reads the
    /// outcome of a step after it has queued the next step, and the device checks the ids of the
    /// batch.
    const IS_ASYNC: bool;

    /// Returns the host's thread pool. The pool computes initial values, checks values before a
    /// checkpoint, and copies values that are read back.
    fn host(&self) -> &Pool;

    /// Returns whether the update rule of `optimizer` is fused into the product that computes the
    /// gradient of a weight.
    fn fuses(optimizer: Optimizer) -> bool;

    /// Returns how many values an f32 matrix `[rows, columns]` occupies in memory, padding
    /// included.
    fn matrix_len(rows: usize, columns: usize) -> usize;
    /// Returns the memory size in bytes of a matrix `[rows, columns]` in this precision.
    fn matrix_bytes(precision: Precision, rows: usize, columns: usize) -> usize;
    /// Returns the memory size in bytes of a vector of `len` values.
    fn vector_bytes(len: usize) -> usize;
    /// Returns the memory size in bytes of a weight with its gradient and its optimizer state.
    fn weight_bytes(shape: WeightShape) -> usize;
    /// Returns the memory size in bytes of `len` tile weights in this number format.
    fn table_bytes(data_type: schema::DataType, len: usize) -> usize;
    /// Returns the memory size in bytes of the exchange of `ids` ids in `bags` bags, of which
    /// `scales` have a factor. Messages to other ranks are not included.
    fn id_bytes(ids: usize, bags: usize, scales: usize) -> usize;
    /// Returns the device memory in bytes for the ids of a batch and for the sort of its update.
    /// The host's copy of the ids is not included.
    fn update_bytes(shape: crate::ops::embedding_backward::ScratchShape) -> usize;

    /// Creates a new queue of operations.
    ///
    /// # Errors
    /// Fails if the device rejects the call.
    fn queue(&self) -> Result<Self::Queue, Error>;
    /// Returns the completion times of a queue, or `None` for devices whose calls return only after
    /// the work is done.
    ///
    /// # Errors
    /// Fails if the device rejects the call.
    fn moments(&self, _queue: &Self::Queue) -> Result<Option<QueueMoments>, Error> {
        Ok(None)
    }
    /// Allocates a matrix of zeros of the given size.
    ///
    /// # Errors
    /// Fails if the device cannot allocate the memory.
    fn matrix(
        &self,
        precision: Precision,
        rows: usize,
        columns: usize,
    ) -> Result<Self::Matrix, Error>;
    /// Allocates a vector of `len` zeros.
    ///
    /// # Errors
    /// Fails if the device cannot allocate the memory.
    fn vector(&self, len: usize) -> Result<Self::Vector, Error>;
    /// Allocates a weight of zeros with its gradient and its optimizer state.
    ///
    /// # Errors
    /// Fails if the device cannot allocate the memory.
    fn weight(&self, shape: WeightShape) -> Result<Self::Weight, Error>;
    /// Moves tiles to the device. Key `k` of every batch is looked up in slot `k`.
    ///
    /// # Errors
    /// Fails if the device cannot allocate the memory.
    fn tables(&self, values: TableValues) -> Result<Self::Tables, Error>;
    /// Creates the buffers of an exchange of ids.
    ///
    /// # Errors
    /// Fails if the device cannot allocate the memory.
    fn ids(&self, layout: IdLayout) -> Result<Self::Ids, Error>;
    /// Creates the exchange of pooled vectors for this layout.
    ///
    /// # Errors
    /// Fails if the device cannot allocate the memory.
    fn exchange(&self, layout: ExchangeLayout) -> Result<Self::Exchange, Error>;
    /// Allocates the scalars of a step.
    ///
    /// # Errors
    /// Fails if the device cannot allocate the memory.
    fn scalars(&self) -> Result<Self::Scalars, Error>;
    /// Grows a vector to at least `len` values. The values are unspecified if the vector is
    /// enlarged.
    ///
    /// # Errors
    /// Fails if the device cannot allocate the memory.
    fn grow(&self, vector: &mut Self::Vector, len: usize) -> Result<(), Error>;

    /// Writes the host's row-major `rows` to the matrix `to` `[rows, columns]`.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
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
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn write(
        &self,
        queue: &Self::Queue,
        values: &[f32],
        to: &mut Self::Vector,
        at: usize,
    ) -> Result<(), Error>;
    /// Copies the ids of a batch to the device, unless the device reads them from host memory.
    ///
    /// # Errors
    /// Fails with [`Error::Jagged`] if the layout of the ids is invalid.
    fn send_ids(
        &self,
        queue: &Self::Queue,
        jagged: &JaggedTensor,
        to: &mut Self::Ids,
    ) -> Result<(), Error>;
    /// Makes later operations of the queue wait for the exchange of these ids.
    ///
    /// # Errors
    /// Fails if the device rejects the call.
    fn acquire_ids(&self, _queue: &Self::Queue, _ids: &Self::Ids) -> Result<(), Error> {
        Ok(())
    }
    /// Makes the next exchange of these ids wait for the operations that were queued so far, before
    /// it overwrites the ids.
    ///
    /// # Errors
    /// Fails if the device rejects the call.
    fn release_ids(&self, _queue: &Self::Queue, _ids: &Self::Ids) -> Result<(), Error> {
        Ok(())
    }
    /// Returns the first `len` values of a vector. The values are borrowed in place if the host
    /// can read them, and copied to `room` otherwise. Waits for the queue.
    ///
    /// # Errors
    /// Fails if the device reports an earlier failure.
    fn read<'a>(
        &self,
        queue: &Self::Queue,
        from: &'a Self::Vector,
        len: usize,
        room: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], Error>;
    /// Passes the elements of `range` to `take`, which sends them to another rank. Waits for the
    /// queue.
    ///
    /// # Errors
    /// Fails if the device reports an earlier failure.
    fn lend(
        &self,
        queue: &Self::Queue,
        from: &Self::Vector,
        range: std::ops::Range<usize>,
        take: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error>;

    /// Copies row-major values `[N, K]`, or an optimizer state in the layout of checkpoints, to a
    /// weight.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn set_weight(
        &self,
        queue: &Self::Queue,
        part: WeightPart,
        values: &[f32],
        to: &mut Self::Weight,
    ) -> Result<(), Error>;
    /// Copies a weight's row-major values, or its optimizer state in the layout of checkpoints,
    /// to `to`. Waits for the queue.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn get_weight(
        &self,
        queue: &Self::Queue,
        part: WeightPart,
        from: &Self::Weight,
        to: &mut [f32],
    ) -> Result<(), Error>;
    /// Returns whether all values and all optimizer state of a weight are finite. Waits for the
    /// queue.
    ///
    /// # Errors
    /// Fails if the device reports an earlier failure.
    fn is_finite(&self, queue: &Self::Queue, weight: &Self::Weight) -> Result<bool, Error>;
    /// Returns the number of elements of a weight's gradient in the layout in which ranks sum it.
    fn gradient_len(&self, weight: &Self::Weight) -> usize;
    /// Passes a weight's gradient to `take`, like [`Backend::lend`].
    ///
    /// # Errors
    /// Fails if the device reports an earlier failure.
    fn lend_gradient(
        &self,
        queue: &Self::Queue,
        weight: &Self::Weight,
        take: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error>;
    /// Sets a weight's gradient to zero.
    ///
    /// # Errors
    /// Fails if the device reports an earlier failure.
    fn clear_gradient(&self, queue: &Self::Queue, weight: &mut Self::Weight) -> Result<(), Error>;
    /// Sets the first `len` values of a vector to zero.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn clear(
        &self,
        queue: &Self::Queue,
        vector: &mut Self::Vector,
        len: usize,
    ) -> Result<(), Error>;
    /// Returns some rows of a tile and their optimizer state. The values are borrowed in place if
    /// the host can read them, and copied to `room` otherwise. Waits for the queue.
    ///
    /// # Errors
    /// Fails if the device reports an earlier failure.
    fn tile<'a>(
        &self,
        queue: &Self::Queue,
        tables: &'a Self::Tables,
        rows: TileRows,
        room: &'a mut TileRoom,
    ) -> Result<(WeightsView<'a>, &'a [f32]), Error>;

    /// Overwrites some rows of a tile and their optimizer state.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn set_rows(
        &self,
        queue: &Self::Queue,
        tables: &mut Self::Tables,
        values: RowValues<'_>,
    ) -> Result<(), Error>;

    /// Computes the output of a linear layer, `y = f(x Wᵀ + bias)`:
    /// [`crate::ops::gemm::forward`].
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] or [`Error::Precision`] if an argument does not match.
    fn linear_forward(
        &self,
        queue: &Self::Queue,
        arguments: LinearForward<'_, Self>,
    ) -> Result<(), Error>;
    /// Computes the gradient of a layer's input, `d_x = d_y W`:
    /// [`crate::ops::gemm::backward_input`].
    ///
    /// # Errors
    /// Fails in the same cases as [`Backend::linear_forward`].
    fn linear_backward_input(
        &self,
        queue: &Self::Queue,
        arguments: LinearBackwardInput<'_, Self>,
    ) -> Result<(), Error>;
    /// Computes the gradients of weight and bias, `dW = d_yᵀ x`:
    /// [`crate::ops::gemm::backward_weight`]. With `update`, it also updates the weight
    /// ([`Backend::fuses`]).
    ///
    /// # Errors
    /// Fails in the same cases as [`Backend::linear_forward`].
    fn linear_backward_weight(
        &self,
        queue: &Self::Queue,
        arguments: LinearBackwardWeight<'_, Self>,
        update: Option<&Self::Scalars>,
    ) -> Result<(), Error>;
    /// Computes `y = x · w + b` or `y += x · w`, one value per sample:
    /// [`crate::ops::gemm::column::forward`].
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn column_forward(
        &self,
        queue: &Self::Queue,
        arguments: ColumnForward<'_, Self>,
    ) -> Result<(), Error>;
    /// Computes the gradients of `w` and `b`: [`crate::ops::gemm::column::backward_weight`].
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn column_backward_weight(
        &self,
        queue: &Self::Queue,
        arguments: ColumnBackwardWeight<'_, Self>,
    ) -> Result<(), Error>;
    /// Computes the gradient of `x`: [`crate::ops::gemm::column::backward_input`].
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn column_backward_input(
        &self,
        queue: &Self::Queue,
        arguments: ColumnBackwardInput<'_, Self>,
    ) -> Result<(), Error>;
    /// Updates a weight from its own gradient or from the sum over all ranks. Used for weights
    /// whose update is not fused into a product.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn update_weight(
        &self,
        queue: &Self::Queue,
        weight: &mut Self::Weight,
        sum: Option<GradientSum<'_>>,
        scalars: &Self::Scalars,
    ) -> Result<(), Error>;
    /// Updates a vector from its own gradient or from its sum over all ranks.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
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
    /// Fails with [`Error::Shape`] or [`Error::Precision`] if an argument does not match.
    fn round(
        &self,
        queue: &Self::Queue,
        from: &Self::Matrix,
        shape: MatrixShape,
        to: &mut Self::Matrix,
    ) -> Result<(), Error>;
    /// Sets the gradient `d_y`, f32 `[rows, columns]`, to 0 where the ReLU's output `y` is not
    /// positive.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] or [`Error::Precision`] if an argument does not match.
    fn relu_backward(
        &self,
        queue: &Self::Queue,
        y: &Self::Matrix,
        shape: MatrixShape,
        d_y: &mut Self::Matrix,
    ) -> Result<(), Error>;
    /// Computes `to = from`, `to += from`, or `to = 0` without `from`, for f32 `[rows, columns]`.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] or [`Error::Precision`] if an argument does not match.
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
    /// Fails with [`Error::Shape`] or [`Error::Precision`] if an argument does not match.
    fn cross_forward(
        &self,
        queue: &Self::Queue,
        arguments: CrossForward<'_, Self>,
    ) -> Result<(), Error>;
    /// Computes the gradients of one cross layer: [`crate::ops::cross::backward`].
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] or [`Error::Precision`] if an argument does not match.
    fn cross_backward(
        &self,
        queue: &Self::Queue,
        arguments: CrossBackward<'_, Self>,
    ) -> Result<(), Error>;
    /// Checks that the device can run an interaction of this shape. Models call this function
    /// before the first step.
    ///
    /// # Errors
    /// Fails if the vectors of one sample exceed the device's shared memory.
    fn check_interaction(&self, _shape: &interaction::Shape) -> Result<(), Error> {
        Ok(())
    }
    /// Computes the dot interaction: [`crate::ops::interaction::forward`].
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] or [`Error::Precision`] if an argument does not match.
    fn interaction_forward(
        &self,
        queue: &Self::Queue,
        arguments: InteractionForward<'_, Self>,
    ) -> Result<(), Error>;
    /// Computes the gradients of the dot interaction: [`crate::ops::interaction::backward`].
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] or [`Error::Precision`] if an argument does not match.
    fn interaction_backward(
        &self,
        queue: &Self::Queue,
        arguments: InteractionBackward<'_, Self>,
    ) -> Result<(), Error>;
    /// Concatenates the rows of a matrix and the rows of row-major vectors.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] or [`Error::Precision`] if an argument does not match.
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
    /// Fails with [`Error::Shape`] or [`Error::Precision`] if an argument does not match.
    fn split(
        &self,
        queue: &Self::Queue,
        from: &Self::Matrix,
        shape: JoinShape,
        left: &mut Self::Matrix,
        right: &mut Self::Vector,
    ) -> Result<(), Error>;

    /// Writes the scalars before a step and clears the results of the previous one. If the
    /// updates of the previous step were stopped, the updates of this step are stopped too.
    ///
    /// # Errors
    /// Fails if the device rejects the call.
    fn begin(
        &self,
        queue: &Self::Queue,
        step: &StepScalars,
        scalars: &mut Self::Scalars,
    ) -> Result<(), Error>;
    /// Computes the losses of the samples, their gradients and probabilities:
    /// [`crate::ops::loss::run`]. The sum of the losses is added to `scalars`.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn loss(
        &self,
        queue: &Self::Queue,
        arguments: LossArguments<'_, Self>,
        scalars: &mut Self::Scalars,
    ) -> Result<(), Error>;
    /// Computes the probabilities of the logits, or uses those that [`Backend::loss`] has already
    /// computed. A non-finite logit gives NaN.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn probabilities(
        &self,
        queue: &Self::Queue,
        logits: &Self::Vector,
        samples: usize,
        form: Probabilities,
        to: &mut Self::Vector,
    ) -> Result<(), Error>;
    /// Pools the rows of a batch: [`crate::ops::embedding_forward::run`]. An out-of-range id is
    /// an error at once, or is recorded in `scalars` and reported at the end of the step.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`], [`Error::Jagged`] or [`Error::RowOutOfRange`].
    fn lookup(
        &self,
        queue: &Self::Queue,
        tables: &mut Self::Tables,
        ids: BatchIds<'_, Self>,
        out: &mut Self::Vector,
        scalars: &mut Self::Scalars,
    ) -> Result<(), Error>;
    /// Updates the table rows of the last lookup: [`crate::ops::embedding_backward::run`]. The
    /// number of distinct rows is recorded in `scalars`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Backend::lookup`], before any weight changes.
    fn update_rows(
        &self,
        queue: &Self::Queue,
        tables: &mut Self::Tables,
        ids: BatchIds<'_, Self>,
        gradient: &Self::Vector,
        scalars: &mut Self::Scalars,
    ) -> Result<(), Error>;
    /// Sums the gradients of the rows of the last lookup, and passes them to the host:
    /// [`crate::ops::embedding_backward::sum_rows`]. Waits for the queue.
    ///
    /// # Errors
    /// Fails in the same cases as [`Backend::lookup`].
    fn sum_rows(
        &self,
        queue: &Self::Queue,
        tables: &mut Self::Tables,
        ids: BatchIds<'_, Self>,
        gradient: &Self::Vector,
        scalars: &Self::Scalars,
        to: &mut RowSums,
    ) -> Result<(), Error>;
    /// Computes what the update rule needs of whole rows, `[rows, 2]`:
    /// [`crate::ops::embedding_backward::row_terms`]. Zeros if updates are stopped.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn row_terms(
        &self,
        queue: &Self::Queue,
        tables: &mut Self::Tables,
        sums: &RowSums,
        scalars: &Self::Scalars,
        terms: &mut Vec<f32>,
    ) -> Result<(), Error>;
    /// Updates rows with their summed gradients, and with the terms of whole rows where the rule
    /// needs them: [`crate::ops::embedding_backward::apply_rows`]. The number of rows is added to
    /// `scalars`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Backend::row_terms`].
    fn apply_rows(
        &self,
        queue: &Self::Queue,
        tables: &mut Self::Tables,
        sums: &RowSums,
        terms: Option<&[f32]>,
        scalars: &mut Self::Scalars,
    ) -> Result<(), Error>;
    /// Assembles pooled vectors from the parts that all ranks looked up:
    /// [`crate::ops::exchange::assemble`].
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
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
    /// Fails with [`Error::Shape`] if an argument has the wrong size.
    fn gather(
        &self,
        queue: &Self::Queue,
        exchange: &mut Self::Exchange,
        arguments: Gather<'_, Self>,
        to: &mut [f32],
    ) -> Result<(), Error>;

    /// Returns whether updates are stopped because of a non-finite loss or an out-of-range id in
    /// this step or an earlier one. Waits for the queue.
    ///
    /// # Errors
    /// Fails if the device reports an earlier failure.
    fn is_stopped(&self, queue: &Self::Queue, scalars: &Self::Scalars) -> Result<bool, Error>;
    /// Stops the updates of the current step and of all later ones, because another rank has
    /// stopped its updates.
    ///
    /// # Errors
    /// Fails if the device rejects the call.
    fn stop(&self, queue: &Self::Queue, scalars: &mut Self::Scalars) -> Result<(), Error>;
    /// Ends a step and starts the transfer of its results to the host.
    ///
    /// # Errors
    /// Fails if the device rejects the call.
    fn end(&self, queue: &Self::Queue, scalars: &mut Self::Scalars) -> Result<Self::Event, Error>;
    /// Waits for the end of a step and returns its results.
    ///
    /// # Errors
    /// Fails if the device reports an earlier failure.
    fn outcome(&self, scalars: &mut Self::Scalars, end: Self::Event) -> Result<StepOutcome, Error>;
}

/// The size of a weight, the precision of its products, and the optimizer that updates it.
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
    /// The values of the weight, `[N, K]`.
    Values,
    /// The optimizer state of the weight. SGD has no state; Adagrad has `[N, K]`, row-wise
    /// Adagrad `[N]`, and Adam, SparseAdam and LAMB have `[2, N, K]` (means, then mean squares).
    State,
}

/// The weights and state of one tile in host memory, which the device takes over.
#[derive(Debug)]
pub struct TileValues {
    /// Weights of the tile, `[rows, dim]`.
    pub weights: Weights,
    /// Optimizer state, `[rows, Optimizer::state_per_row(dim)]`.
    pub state: crate::buffer::Array<f32>,
    /// Number of rows of the tile.
    pub rows: usize,
    /// Number of columns of the tile, above 0.
    pub dim: usize,
    /// Name of the tile's table, for error messages.
    pub name: String,
    /// Position of the tile in its table.
    pub origin: TileOrigin,
}

/// Tiles that are looked up together, and the places of their vectors.
#[derive(Debug)]
pub struct TableValues {
    pub tiles: Vec<TileValues>,
    /// One slot per key of a batch.
    pub slots: Vec<Slot>,
    /// Form of the output, which is not a sequence.
    pub output: SlotOutput,
}

/// A range of rows of one tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileRows {
    /// Index of the tile among the tiles of the rank.
    pub tile: usize,
    /// Range of rows, counted from the tile's first row.
    pub rows: std::ops::Range<usize>,
}

/// Reusable host memory for the rows of a tile that are copied from a device.
#[derive(Debug, Default)]
pub struct TileRoom {
    pub weights: Option<Weights>,
    pub state: Vec<f32>,
}

/// The scalars of a step that are known before it, such as learning rates.
#[derive(Clone, Copy, Debug)]
pub struct StepScalars {
    /// Update rule for the dense parameters.
    pub dense: UpdateRule,
    /// Update rule for the rows of embedding tables.
    pub sparse: UpdateRule,
    /// Divisor of the loss: the number of samples in the batch, summed over all ranks.
    pub normaliser: f64,
    /// Random bits for stochastic rounding when rows of 16-bit tables are written.
    pub rounding: CounterRng,
}

/// The results of a step that the device reports to the trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Sum of the losses of this rank's samples.
    pub loss: f64,
    /// Number of embedding rows that were updated.
    pub updated: Updated,
    /// First position in `values` of an out-of-range id, on devices that check ids asynchronously.
    pub bad_id: Option<usize>,
}

/// A gradient summed over all ranks.
#[derive(Clone, Copy)]
pub enum GradientSum<'a> {
    Whole(&'a [f32]),
    /// The sum is split over several buffers, and the function copies them into one.
    Pieces(&'a dyn Fn(&mut [f32])),
}

/// The operation that [`Backend::combine`] applies to the target matrix.
pub enum Combine<'a, B: Backend> {
    Clear,
    Copy(&'a B::Matrix),
    Add(&'a B::Matrix),
}

/// Whether the output of [`Backend::probabilities`] already holds the probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probabilities {
    Missing,
    /// [`Backend::loss`] has written the probabilities.
    Computed,
}

/// The way in which a product writes the gradient of its input.
pub enum InputGradient<'a, B: Backend> {
    Write,
    /// Add the gradient to the existing values.
    Accumulate,
    /// Write the gradient, with 0 where the given input, which is the output of a ReLU, is not
    /// positive.
    BeforeRelu(&'a B::Matrix),
}
