//! The trainer's interface to a device: memory behind opaque handles, the operations of a step, and
//! one block of numbers per step.
//!
//! A handle hides its layout: how a matrix, a weight or a table is stored is up to the device.
//! Every operation is queued and may run later. The outcome of a step (loss, distinct rows) stays
//! on the device until [`Backend::outcome`] reads it. Knows neither layers nor ranks nor files.

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

/// A device, and how one trains on it.
///
/// # Contract
/// - Handles are made before the first step, and [`Backend::grow`] makes one longer only until the
///   largest batch was seen. No operation of a step allocates device memory or waits for the
///   device, but [`Backend::lend`], [`Backend::lend_gradient`] and [`Backend::read`], which hand
///   values to the host.
/// - Operations of one queue take effect in the order in which they were called.
/// - Extents are the caller's: `samples` of a batch, columns as the handle was made with. An
///   operation refuses what does not fit before it writes anything.
/// - The same bytes for any number of threads, and for any division of the work.
/// - A loss that is no finite number stops the updates that come after it: no weight changes.
pub trait Backend: Sized + Send {
    /// An order of operations: a stream of a GPU; the calling thread of a CPU.
    type Queue: Send;
    /// A matrix of activations or of their gradients, made for a number of rows and columns, as the
    /// device's products read and write it.
    type Matrix: Default + Send;
    /// A row of f32: biases and other vectors, row-major pooled vectors, one value per sample.
    type Vector: Default + Send;
    /// A weight `[N, K]` of a linear layer, in every form that its products read, with its gradient
    /// and its optimizer state.
    type Weight: Default + Send;
    /// All tiles of embedding tables that one rank holds, with their optimizer states, their slots
    /// and what the sort of an update works in: one lookup and one update serve all of them.
    type Tables: Default + Send;
    /// The ids of a batch where the device has a copy of its own.
    type Jagged: Default + Send;
    /// What an exchange of pooled vectors with other ranks reads and works in.
    type Exchange: Default + Send;
    /// The numbers of a step, written before it, and what the step finds out.
    type Scalars: Default + Send;
    /// A point in a queue, to be waited for.
    type Event: Send;

    /// Whether the device runs asynchronously: the outcome of a step is then read once the next one
    /// is queued, and the device checks ids.
    const IS_ASYNC: bool;

    /// Threads for what stays with the host: initial values, checks before a checkpoint, reading.
    fn host(&self) -> &Pool;

    /// Whether a step of `optimizer` is taken within the product that makes a weight's gradient.
    fn fuses(optimizer: Optimizer) -> bool;

    /// Values of an f32 matrix `[rows, columns]` as it lies in memory, padding included.
    fn matrix_len(rows: usize, columns: usize) -> usize;
    /// Bytes of a matrix `[rows, columns]`.
    fn matrix_bytes(precision: Precision, rows: usize, columns: usize) -> usize;
    /// Bytes of a vector of `len` values.
    fn vector_bytes(len: usize) -> usize;
    /// Bytes of a weight with gradient and state.
    fn weight_bytes(shape: WeightShape) -> usize;
    /// Bytes of `len` weights of a tile in a format.
    fn table_bytes(data_type: schema::DataType, len: usize) -> usize;
    /// Bytes that the ids of a batch and the sort of its update take, beside the host's copy.
    fn update_bytes(shape: crate::ops::embedding_backward::ScratchShape) -> usize;

    /// A new queue.
    ///
    /// # Errors
    /// If the device refuses.
    fn queue(&self) -> Result<Self::Queue, Error>;
    /// Reports when a queue is done; `None` if it is done when a call returns.
    ///
    /// # Errors
    /// If the device refuses.
    fn moments(&self, _queue: &Self::Queue) -> Result<Option<QueueMoments>, Error> {
        Ok(None)
    }
    /// A matrix of zeros, room for `[rows, columns]`.
    ///
    /// # Errors
    /// If memory runs out.
    fn matrix(
        &self,
        precision: Precision,
        rows: usize,
        columns: usize,
    ) -> Result<Self::Matrix, Error>;
    /// A vector of `len` zeros.
    ///
    /// # Errors
    /// If memory runs out.
    fn vector(&self, len: usize) -> Result<Self::Vector, Error>;
    /// A weight of zeros.
    ///
    /// # Errors
    /// If memory runs out.
    fn weight(&self, shape: WeightShape) -> Result<Self::Weight, Error>;
    /// Takes over `tiles`; key `k` of every batch is looked up in slot `k`.
    ///
    /// # Errors
    /// If memory runs out.
    fn tables(&self, tiles: Vec<TileValues>, slots: Vec<Slot>) -> Result<Self::Tables, Error>;
    /// The exchange of pooled vectors of this layout.
    ///
    /// # Errors
    /// If memory runs out.
    fn exchange(&self, layout: ExchangeLayout) -> Result<Self::Exchange, Error>;
    /// A block for the numbers of a step.
    ///
    /// # Errors
    /// If memory runs out.
    fn scalars(&self) -> Result<Self::Scalars, Error>;
    /// Makes room for `len` values, which are then unspecified where there was less.
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
    /// Brings the ids of a batch to the device, if it does not read the host's.
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
    /// The first `len` values, where they lie if the host can read them, else copied to `room`.
    /// Waits for the queue.
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
    /// Hands elements `first..first + len` to `take`, for a message to another rank. Waits for the
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

    /// Takes over row-major `values` `[N, K]`, or a state as it is saved.
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
    /// Writes the row-major values, or the state as it is saved, to `to`. Waits for the queue.
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
    /// Whether all values and the whole state are finite numbers. Waits for the queue.
    ///
    /// # Errors
    /// If the device failed.
    fn is_finite(&self, queue: &Self::Queue, weight: &Self::Weight) -> Result<bool, Error>;
    /// Elements of a weight's gradient, in the form in which ranks add it up.
    fn gradient_len(&self, weight: &Self::Weight) -> usize;
    /// Hands a weight's gradient to `take`, as [`Backend::lend`].
    ///
    /// # Errors
    /// If the device failed.
    fn lend_gradient(
        &self,
        queue: &Self::Queue,
        weight: &Self::Weight,
        take: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error>;
    /// Makes a weight's gradient 0.
    ///
    /// # Errors
    /// If the device failed.
    fn clear_gradient(&self, queue: &Self::Queue, weight: &mut Self::Weight) -> Result<(), Error>;
    /// Makes the first `len` values 0.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn clear(
        &self,
        queue: &Self::Queue,
        vector: &mut Self::Vector,
        len: usize,
    ) -> Result<(), Error>;
    /// Some rows of a tile and their state, where they lie if the host can read them, else copied
    /// to `room`. Waits for the queue.
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
    /// `dW = d_yᵀ x` and the bias's gradient: [`crate::ops::gemm::backward_weight`]; with `update`
    /// the weight takes its step too ([`Backend::fuses`]).
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
    /// Takes the step of a weight that no product takes: from its gradient, or from the sum of all
    /// ranks'.
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
    /// The same of a vector.
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
    /// [`crate::ops::cross::forward`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn cross_forward(
        &self,
        queue: &Self::Queue,
        arguments: CrossForward<'_, Self>,
    ) -> Result<(), Error>;
    /// [`crate::ops::cross::backward`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn cross_backward(
        &self,
        queue: &Self::Queue,
        arguments: CrossBackward<'_, Self>,
    ) -> Result<(), Error>;
    /// Refuses an interaction that the device cannot run. A model asks before its first step.
    ///
    /// # Errors
    /// If a sample's vectors do not fit the device.
    fn check_interaction(&self, _shape: &interaction::Shape) -> Result<(), Error> {
        Ok(())
    }
    /// [`crate::ops::interaction::forward`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn interaction_forward(
        &self,
        queue: &Self::Queue,
        arguments: InteractionForward<'_, Self>,
    ) -> Result<(), Error>;
    /// [`crate::ops::interaction::backward`].
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Precision`].
    fn interaction_backward(
        &self,
        queue: &Self::Queue,
        arguments: InteractionBackward<'_, Self>,
    ) -> Result<(), Error>;
    /// Puts a matrix and row-major vectors side by side.
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
    /// Splits what [`Backend::join`] concatenated.
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

    /// Writes the block before a step; what the step before found out is forgotten, but what
    /// stopped its updates stops those of this one.
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
    /// of the losses goes to the block.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn loss(
        &self,
        queue: &Self::Queue,
        arguments: LossArguments<'_, Self>,
        scalars: &mut Self::Scalars,
    ) -> Result<(), Error>;
    /// Sigmoids of the logits, or of [`Probabilities::Computed`] what they are; NaN where a logit
    /// is no finite number.
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
    /// Pools the rows of a batch: [`crate::ops::embedding_forward::run`]. An id that is no row is
    /// an error at once, or goes to the block and is known at the end of the step.
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
    /// Updates the rows of the last lookup: [`crate::ops::embedding_backward::run`]. The distinct
    /// rows go to the block.
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
    /// Puts the parts of pooled vectors that all ranks looked up together:
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
    /// Gathers what goes to one rank of a gradient, for a message:
    /// [`crate::ops::exchange::gather`]. Waits for the queue.
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

    /// Whether updates are stopped: by the loss of the step that was begun, by an id that is no
    /// row, or by a step before it. Waits for the queue.
    ///
    /// # Errors
    /// If the device failed.
    fn is_stopped(&self, queue: &Self::Queue, scalars: &Self::Scalars) -> Result<bool, Error>;
    /// Stops the updates of the step that was begun and of all that follow, as another rank's loss
    /// does.
    ///
    /// # Errors
    /// If the device refuses.
    fn stop(&self, queue: &Self::Queue, scalars: &mut Self::Scalars) -> Result<(), Error>;
    /// The end of a step: its outcome is on its way.
    ///
    /// # Errors
    /// If the device refuses.
    fn end(&self, queue: &Self::Queue, scalars: &mut Self::Scalars) -> Result<Self::Event, Error>;
    /// Waits for the end of a step and gives what it found out.
    ///
    /// # Errors
    /// If the device failed.
    fn outcome(&self, scalars: &mut Self::Scalars, end: Self::Event) -> Result<StepOutcome, Error>;
}

/// Extents of a weight, and how it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightShape {
    pub n: usize,
    pub k: usize,
    pub precision: Precision,
    pub optimizer: Optimizer,
}

/// What of a weight is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightPart {
    /// The values, `[N, K]`.
    Values,
    /// The state: nothing for SGD, `[N, K]` for Adagrad, `[N]` for row-wise Adagrad, `[2, N, K]`
    /// (means, then mean squares) for Adam, SparseAdam and LAMB.
    State,
}

/// One tile of a table with its state, in the host's memory.
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
    /// Where the tile lies in its table.
    pub origin: TileOrigin,
}

/// Some rows of a tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileRows {
    /// Number of the tile.
    pub tile: usize,
    /// The rows, counted from the tile's first.
    pub rows: std::ops::Range<usize>,
}

/// Host memory for a tile that is read from a device.
#[derive(Debug, Default)]
pub struct TileRoom {
    pub weights: Option<Weights>,
    pub state: Vec<f32>,
}

/// The numbers of a step that are known before it.
#[derive(Clone, Copy, Debug)]
pub struct StepScalars {
    /// The rule of dense parameters.
    pub dense: UpdateRule,
    /// The rule of rows.
    pub sparse: UpdateRule,
    /// What the loss is divided by: the samples of all ranks.
    pub normaliser: f64,
    /// Random bits for writing to 16-bit tables.
    pub rounding: CounterRng,
}

/// What a step found out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Σ of the losses of this rank's samples.
    pub loss: f64,
    /// Rows that were updated.
    pub updated: Updated,
    /// The first position in `values` whose id is no row, where that was not an error at once.
    pub bad_id: Option<usize>,
}

/// The ids of a batch, or of what all ranks look up here.
pub struct BatchIds<'a, B: Backend> {
    pub jagged: &'a JaggedTensor,
    /// A factor per bag, `[F·B]`, feature-major.
    pub bag_scales: Option<&'a [f32]>,
    /// The device's copy, as [`Backend::send_ids`] made it.
    pub on_device: &'a B::Jagged,
}

/// A gradient summed over all ranks.
#[derive(Clone, Copy)]
pub enum GradientSum<'a> {
    Whole(&'a [f32]),
    /// In several: this copies it.
    Pieces(&'a dyn Fn(&mut [f32])),
}

/// What [`Backend::combine`] does.
pub enum Combine<'a, B: Backend> {
    Clear,
    Copy(&'a B::Matrix),
    Add(&'a B::Matrix),
}

/// What [`Backend::probabilities`] finds in its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probabilities {
    Missing,
    /// What [`Backend::loss`] wrote.
    Computed,
}

/// Use of the gradient of a product's input.
pub enum InputGradient<'a, B: Backend> {
    Write,
    /// It is added to what is there.
    Accumulate,
    /// It is written as 0 where this input, the output of a ReLU, is not above 0.
    BeforeRelu(&'a B::Matrix),
}
