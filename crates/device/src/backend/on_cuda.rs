//! A GPU, or its emulation, as a [`Backend`]. Matrices are row-major in GPU memory, and kernels
//! run in a stream. Host memory appears only as an argument of an operation.
//!
//! After the first step, device memory is allocated only for a batch with more ids than any
//! earlier batch. The host waits only for messages to other ranks and in [`Backend::outcome`].

mod column;
mod exchange;
mod gradients;
mod handles;
mod ids;
mod kernels;
mod moments;
mod opened;
mod scalars;
mod staging;
mod tables;

use std::ops::Range;

use schema::{DataType, Granularity, JaggedTensor, Optimizer, Precision};

use super::{
    Assemble, Backend, BatchIds, ColumnBackwardInput, ColumnBackwardWeight, ColumnForward, Combine,
    CrossBackward, CrossForward, ExchangeLayout, Gather, GradientSum, InputGradient,
    InteractionBackward, InteractionForward, JoinShape, LinearBackwardInput, LinearBackwardWeight,
    LinearForward, LossArguments, Probabilities, RowValues, StepOutcome, StepScalars, TableValues,
    TileRoom, TileRows, VectorUpdate, WeightPart, WeightShape,
};
use crate::MatrixShape;
use crate::cpu::Pool;
use crate::error::Error;
use crate::ops::cross::cuda::{DeviceBackward, DeviceForward};
use crate::ops::dense_update::cuda::{DeviceParameter, scratch_bytes};
use crate::ops::embedding_backward::{RowSums, ScratchShape};
use crate::ops::gemm::cuda::{Epilogue, Join, LinearShape, Operand, ProductTarget};
use crate::ops::interaction::cuda::Interaction;
use crate::ops::jagged::IdLayout;
use crate::ops::jagged::cuda::{Regroup, RegroupMode};
use crate::ops::loss::cuda::LossBuffers;
use crate::ops::{extent, gemm, interaction};
use crate::weights::WeightsView;

pub use exchange::Exchange;
pub use handles::{Matrix, Queue, Vector, Weight};
use handles::{WeightBuffers, grown};
pub use ids::CudaIds;
pub use kernels::SOURCES;
pub use moments::QueueMoments;
pub use opened::Cuda;
pub use scalars::{Ended, Scalars};
pub use tables::Tables;

impl Backend for Cuda {
    type Queue = Queue;
    type Matrix = Matrix;
    type Vector = Vector;
    type Weight = Weight;
    type Tables = Tables;
    type Ids = CudaIds;
    type Exchange = Exchange;
    type Scalars = Scalars;
    type Event = Ended;

    const IS_ASYNC: bool = true;

    fn host(&self) -> &Pool {
        &self.host.pool
    }

    /// Returns `false`: the matrix products on a GPU do not update weights.
    fn fuses(_: Optimizer) -> bool {
        false
    }

    fn matrix_len(rows: usize, columns: usize) -> usize {
        rows * columns
    }

    fn matrix_bytes(precision: Precision, rows: usize, columns: usize) -> usize {
        match precision {
            Precision::F32 => Self::vector_bytes(rows * columns),
            Precision::Bf16 => (rows * columns).saturating_mul(handles::NARROW),
        }
    }

    fn vector_bytes(len: usize) -> usize {
        len.saturating_mul(size_of::<f32>())
    }

    fn weight_bytes(shape: WeightShape) -> usize {
        handles::weight_bytes(shape)
    }

    fn table_bytes(data_type: DataType, len: usize) -> usize {
        len.saturating_mul(data_type.bytes())
    }

    fn id_bytes(ids: usize, bags: usize, scales: usize) -> usize {
        ids::exchange_bytes(ids, bags, scales)
    }

    fn update_bytes(shape: ScratchShape) -> usize {
        tables::update_bytes(shape)
    }

    fn queue(&self) -> Result<Queue, Error> {
        let queue = Queue::new(&self.driver)?;
        self.kernels.gemm.prepare(&queue.stream)?;
        Ok(queue)
    }

    fn moments(&self, queue: &Queue) -> Result<Option<QueueMoments>, Error> {
        let moments = || QueueMoments::new(&self.driver, &queue.stream);
        Ok(if self.driver.is_emulated() { None } else { Some(moments()?) })
    }

    fn matrix(&self, precision: Precision, rows: usize, columns: usize) -> Result<Matrix, Error> {
        let buffer = Some(self.zeroed(Self::matrix_bytes(precision, rows, columns))?);
        let values = Vector { buffer, len: rows * columns, scratch: None };
        Ok(Matrix { values, precision, ..Matrix::default() })
    }

    fn vector(&self, len: usize) -> Result<Vector, Error> {
        let buffer = Some(self.zeroed(Self::vector_bytes(len))?);
        Ok(Vector { buffer, len, scratch: None })
    }

    fn weight(&self, shape: WeightShape) -> Result<Weight, Error> {
        let buffers = WeightBuffers::new(shape, |bytes| self.zeroed(bytes))?;
        Ok(Weight { shape, buffers: Some(buffers) })
    }

    fn tables(&self, values: TableValues) -> Result<Tables, Error> {
        Ok(Tables::new(&self.setup, values)?)
    }

    fn ids(&self, layout: IdLayout) -> Result<CudaIds, Error> {
        Ok(CudaIds::new(&self.driver, &self.kernels.bags, layout)?)
    }

    fn exchange(&self, layout: ExchangeLayout) -> Result<Exchange, Error> {
        Ok(Exchange::new(&self.setup, layout)?)
    }

    fn scalars(&self) -> Result<Scalars, Error> {
        Ok(Scalars::new(&self.driver, &self.zeroed(Scalars::BYTES)?)?)
    }

    fn grow(&self, vector: &mut Vector, len: usize) -> Result<(), Error> {
        if vector.buffer.is_none() || vector.len < len {
            *vector = self.vector(len)?;
        }
        Ok(())
    }

    fn pack(
        &self,
        queue: &Queue,
        rows: &[f32],
        shape: MatrixShape,
        to: &mut Matrix,
    ) -> Result<(), Error> {
        const OP: &str = "pack";
        extent::check(OP, "rows [rows, columns]", shape.elements(), rows.len())?;
        let on_device = to.f32(OP, shape)?.clone();
        let (bytes, most) = (size_of_val(rows), Self::vector_bytes(to.values.len));
        let (mut pinned, done) = to.staging.take(&self.driver, most)?;
        self.host.pool.copy(bytemuck::cast_slice(rows), &mut pinned.bytes_mut()[..bytes]);
        let flight = queue.stream.upload_pinned(pinned, done, &[(0..bytes, &on_device)])?;
        to.staging.put(flight);
        Ok(())
    }

    fn write(
        &self,
        queue: &Queue,
        values: &[f32],
        to: &mut Vector,
        at: usize,
    ) -> Result<(), Error> {
        let buffer = to.get("write", "end of the values", at + values.len())?;
        let start = Self::vector_bytes(at);
        Ok(queue.stream.upload(buffer, start, bytemuck::cast_slice(values))?)
    }

    fn send_ids(
        &self,
        queue: &Queue,
        jagged: &JaggedTensor,
        to: &mut CudaIds,
    ) -> Result<(), Error> {
        jagged.check().map_err(|cause| Error::Jagged { op: "send ids", cause })?;
        Ok(to.send(&queue.stream, jagged, |from, to| self.host.pool.copy(from, to))?)
    }

    fn acquire_ids(&self, queue: &Queue, ids: &CudaIds) -> Result<(), Error> {
        Ok(ids.acquire(&queue.stream)?)
    }

    fn release_ids(&self, queue: &Queue, ids: &CudaIds) -> Result<(), Error> {
        Ok(ids.release(&queue.stream)?)
    }

    fn read<'a>(
        &self,
        queue: &Queue,
        from: &'a Vector,
        len: usize,
        room: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], Error> {
        let buffer = from.get("read", "values", len)?;
        room.resize(len, 0.0);
        queue.stream.download(buffer, 0, bytemuck::cast_slice_mut(room))?;
        Ok(room)
    }

    fn lend(
        &self,
        queue: &Queue,
        from: &Vector,
        range: Range<usize>,
        take: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error> {
        let buffer = from.get("lend", "values", range.end)?;
        let mut lent = queue.lent.borrow_mut();
        lent.resize(range.len(), 0.0);
        let start = Self::vector_bytes(range.start);
        queue.stream.download(buffer, start, bytemuck::cast_slice_mut(&mut lent))?;
        take(&lent);
        Ok(())
    }

    fn set_weight(
        &self,
        queue: &Queue,
        part: WeightPart,
        values: &[f32],
        to: &mut Weight,
    ) -> Result<(), Error> {
        let (buffer, len) = to.part(part);
        extent::check("part of a weight", "values", len, values.len())?;
        queue.stream.upload(buffer, 0, bytemuck::cast_slice(values))?;
        Ok(self.renew(queue, to)?)
    }

    fn get_weight(
        &self,
        queue: &Queue,
        part: WeightPart,
        from: &Weight,
        to: &mut [f32],
    ) -> Result<(), Error> {
        let (buffer, len) = from.part(part);
        extent::check("part of a weight", "values", len, to.len())?;
        Ok(queue.stream.download(buffer, 0, bytemuck::cast_slice_mut(to))?)
    }

    fn is_finite(&self, queue: &Queue, weight: &Weight) -> Result<bool, Error> {
        let mut lent = queue.lent.borrow_mut();
        for (buffer, len) in [WeightPart::Values, WeightPart::State].map(|part| weight.part(part)) {
            lent.resize(len, 0.0);
            queue.stream.download(buffer, 0, bytemuck::cast_slice_mut(&mut lent))?;
            if !WeightsView::F32(&lent).are_finite(0..len) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn gradient_len(&self, weight: &Weight) -> usize {
        weight.len()
    }

    fn lend_gradient(
        &self,
        queue: &Queue,
        weight: &Weight,
        take: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error> {
        let mut lent = queue.lent.borrow_mut();
        lent.resize(weight.len(), 0.0);
        let from = &weight.buffers().gradient;
        queue.stream.download(from, 0, bytemuck::cast_slice_mut(&mut lent))?;
        take(&lent);
        Ok(())
    }

    fn clear_gradient(&self, queue: &Queue, weight: &mut Weight) -> Result<(), Error> {
        Ok(queue.stream.fill(&weight.buffers().gradient, 0)?)
    }

    fn clear(&self, queue: &Queue, vector: &mut Vector, len: usize) -> Result<(), Error> {
        let buffer = vector.get("clear", "values", len)?;
        Ok(queue.stream.fill(&buffer.slice(0..Self::vector_bytes(len))?, 0)?)
    }

    fn tile<'a>(
        &self,
        queue: &Queue,
        tables: &'a Tables,
        rows: TileRows,
        room: &'a mut TileRoom,
    ) -> Result<(WeightsView<'a>, &'a [f32]), Error> {
        tables.tile(&queue.stream, &rows, room)
    }

    fn set_rows(&self, queue: &Queue, to: &mut Tables, values: RowValues<'_>) -> Result<(), Error> {
        to.set_rows(&queue.stream, &values)
    }

    fn linear_forward(
        &self,
        queue: &Queue,
        arguments: LinearForward<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "gemm forward";
        let LinearForward { x, weight, bias, activation, y, samples: b } = arguments;
        let WeightShape { n, k, precision, .. } = weight.shape;
        let x = x.in_precision(OP, "x", precision, MatrixShape::new(b, k))?;
        let bias = bias.map(|bias| bias.get(OP, "bias [N]", n)).transpose()?;
        let epilogue = match activation {
            gemm::Activation::None => Epilogue::Plain,
            gemm::Activation::Relu => Epilogue::Relu,
        };
        let target = ProductTarget { to: y.get(OP, MatrixShape::new(b, n))?, epilogue };
        let (factors, shape) = ([x, weight.buffers().factor()], LinearShape { b, n, k });
        Ok(self.kernels.gemm.forward(&queue.stream, shape, factors, bias, target)?)
    }

    fn linear_backward_input(
        &self,
        queue: &Queue,
        arguments: LinearBackwardInput<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "gemm backward_input";
        let LinearBackwardInput { d_y, weight, gradient, d_x, samples: b } = arguments;
        let WeightShape { n, k, precision, .. } = weight.shape;
        let d_y = d_y.in_precision(OP, "d_y", precision, MatrixShape::new(b, n))?;
        let (epilogue, join) = match gradient {
            InputGradient::Write => (Epilogue::Plain, Join::Write),
            InputGradient::Accumulate => (Epilogue::Plain, Join::Add),
            InputGradient::BeforeRelu(x) => {
                (Epilogue::BeforeRelu(x.get(OP, MatrixShape::new(b, k))?), Join::Write)
            }
        };
        let target = ProductTarget { to: d_x.get(OP, MatrixShape::new(b, k))?, epilogue };
        let (factors, shape) = ([d_y, weight.buffers().factor()], LinearShape { b, n, k });
        Ok(self.kernels.gemm.backward_input(&queue.stream, shape, factors, target, join)?)
    }

    fn linear_backward_weight(
        &self,
        queue: &Queue,
        arguments: LinearBackwardWeight<'_, Self>,
        update: Option<&Scalars>,
    ) -> Result<(), Error> {
        const OP: &str = "gemm backward_weight";
        let LinearBackwardWeight { x, d_y, weight, d_bias, samples: b } = arguments;
        let WeightShape { n, k, precision, .. } = weight.shape;
        let x = x.in_precision(OP, "x", precision, MatrixShape::new(b, k))?;
        let d_y = d_y.in_precision(OP, "d_y", precision, MatrixShape::new(b, n))?;
        let (shape, d_weight) = (LinearShape { b, n, k }, &weight.buffers().gradient);
        self.kernels.gemm.backward_weight(&queue.stream, shape, [d_y, x], d_weight)?;
        if let Some(d_bias) = d_bias {
            self.column_sums(queue, [b, n], d_y, d_bias.get(OP, "d_bias [N]", n)?)?;
        }
        match update {
            None => Ok(()),
            Some(scalars) => self.update_weight(queue, weight, None, scalars),
        }
    }

    fn column_forward(
        &self,
        queue: &Queue,
        arguments: ColumnForward<'_, Self>,
    ) -> Result<(), Error> {
        self.multiply_column(queue, arguments)
    }

    fn column_backward_weight(
        &self,
        queue: &Queue,
        arguments: ColumnBackwardWeight<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "column backward_weight";
        let ColumnBackwardWeight { x, d_y, d_weight, d_bias, shape } = arguments;
        let MatrixShape { rows: b, columns: k } = shape;
        let (x, d_y) = (x.f32(OP, shape)?, d_y.get(OP, "d_y [B]", b)?);
        let d_weight = d_weight.get(OP, "d_weight [K]", k)?;
        let (shape, [d_y, x]) = (LinearShape { b, n: 1, k }, [d_y, x].map(Operand::f32));
        self.kernels.gemm.backward_weight(&queue.stream, shape, [d_y, x], d_weight)?;
        if let Some(d_bias) = d_bias {
            self.column_sums(queue, [b, 1], d_y, d_bias.get(OP, "d_bias [1]", 1)?)?;
        }
        Ok(())
    }

    fn column_backward_input(
        &self,
        queue: &Queue,
        arguments: ColumnBackwardInput<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "column backward_input";
        let ColumnBackwardInput { d_y, weight, relu, d_x, shape } = arguments;
        let MatrixShape { rows: b, columns: k } = shape;
        let factors = [d_y.get(OP, "d_y [B]", b)?, weight.get(OP, "weight [K]", k)?];
        let factors = factors.map(Operand::f32);
        let relu = relu.map(|x| x.f32(OP, shape)).transpose()?;
        let epilogue = relu.map_or(Epilogue::Plain, |x| Epilogue::BeforeRelu(Operand::f32(x)));
        let target = ProductTarget { epilogue, ..ProductTarget::plain(d_x.f32(OP, shape)?) };
        let shape = LinearShape { b, n: 1, k };
        Ok(self.kernels.gemm.backward_input(&queue.stream, shape, factors, target, Join::Write)?)
    }

    fn update_weight(
        &self,
        queue: &Queue,
        weight: &mut Weight,
        sum: Option<GradientSum<'_>>,
        scalars: &Scalars,
    ) -> Result<(), Error> {
        let (buffers, elements) = (weight.buffers(), weight.len());
        self.take_sum(queue, &buffers.gradient, elements, sum)?;
        let parameter = DeviceParameter {
            kind: weight.shape.optimizer,
            rule: &scalars.block().dense,
            weights: &buffers.values,
            gradient: &buffers.gradient,
            state: Some(&buffers.state),
            stop: &scalars.block().stop,
            elements,
            dim: weight.shape.k,
            scratch: buffers.scratch.as_ref(),
        };
        self.kernels.update.launch(&queue.stream, &parameter)?;
        Ok(self.renew(queue, weight)?)
    }

    fn update_vector(
        &self,
        queue: &Queue,
        arguments: VectorUpdate<'_, Self>,
        sum: Option<GradientSum<'_>>,
        scalars: &Scalars,
    ) -> Result<(), Error> {
        const OP: &str = "dense_update";
        let VectorUpdate { values, gradient, state, dim } = arguments;
        let (elements, kind) = (values.len, scalars.block().step().dense.kind);
        let gradient = gradient.get(OP, "gradient [rows, dim]", elements)?;
        let rows = elements.checked_div(dim).unwrap_or(0);
        let state = state.get(OP, "state", rows * kind.state_per_row(dim))?;
        self.take_sum(queue, gradient, elements, sum)?;
        let scratch = if kind.granularity() == Granularity::Tensor {
            Some(grown(&self.driver, &mut values.scratch, scratch_bytes(elements))?)
        } else {
            None
        };
        let parameter = DeviceParameter {
            kind,
            rule: &scalars.block().dense,
            weights: values.get(OP, "weights [rows, dim]", elements)?,
            gradient,
            state: Some(state),
            stop: &scalars.block().stop,
            elements,
            dim,
            scratch: scratch.as_ref(),
        };
        Ok(self.kernels.update.launch(&queue.stream, &parameter)?)
    }

    fn round(
        &self,
        queue: &Queue,
        from: &Matrix,
        shape: MatrixShape,
        to: &mut Matrix,
    ) -> Result<(), Error> {
        const OP: &str = "round";
        let (from, on_device) = (from.f32(OP, shape)?, to.get(OP, shape)?);
        let elements = shape.elements();
        let rounded = match to.precision {
            Precision::F32 => {
                queue.stream.copy(from, on_device.matrix, Self::vector_bytes(elements))
            }
            Precision::Bf16 => {
                self.kernels.gemm.round(&queue.stream, [from, on_device.matrix], elements)
            }
        };
        Ok(rounded?)
    }

    fn relu_backward(
        &self,
        queue: &Queue,
        y: &Matrix,
        shape: MatrixShape,
        d_y: &mut Matrix,
    ) -> Result<(), Error> {
        const OP: &str = "relu backward";
        let matrices = [y.f32(OP, shape)?, d_y.f32(OP, shape)?];
        Ok(self.kernels.activation.relu_backward(&queue.stream, matrices, shape.elements())?)
    }

    fn combine(
        &self,
        queue: &Queue,
        from: Combine<'_, Self>,
        shape: MatrixShape,
        to: &mut Matrix,
    ) -> Result<(), Error> {
        const OP: &str = "combine";
        let (to, bytes) = (to.f32(OP, shape)?, Self::vector_bytes(shape.elements()));
        let combined = match from {
            Combine::Clear => queue.stream.fill(&to.slice(0..bytes)?, 0),
            Combine::Copy(from) => queue.stream.copy(from.f32(OP, shape)?, to, bytes),
            Combine::Add(from) => {
                let matrices = [from.f32(OP, shape)?, to];
                let (MatrixShape { rows, columns }, mode) = (shape, RegroupMode::Add);
                let (from, to) = ([columns, 0], [columns, 0]);
                let shape = Regroup { rows, columns, from, to, mode };
                self.kernels.bags.regroup(&queue.stream, shape, matrices)
            }
        };
        Ok(combined?)
    }

    fn cross_forward(&self, queue: &Queue, arguments: CrossForward<'_, Self>) -> Result<(), Error> {
        const OP: &str = "cross forward";
        let CrossForward { x0, u, bias, x, out, shape } = arguments;
        let arguments = DeviceForward {
            x0: x0.f32(OP, shape)?,
            u: u.f32(OP, shape)?,
            bias: bias.get(OP, "bias [N]", shape.columns)?,
            x: x.f32(OP, shape)?,
            out: out.f32(OP, shape)?,
        };
        Ok(self.kernels.cross.forward(&queue.stream, [shape.rows, shape.columns], arguments)?)
    }

    fn cross_backward(
        &self,
        queue: &Queue,
        arguments: CrossBackward<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "cross backward";
        let CrossBackward { d_out, x0, u, bias, d_u, d_bias, d_x0, d_x, shape } = arguments;
        let d_u = d_u.f32(OP, shape)?;
        let arguments = DeviceBackward {
            x0: x0.f32(OP, shape)?,
            u: u.f32(OP, shape)?,
            bias: bias.get(OP, "bias [N]", shape.columns)?,
            d_out: d_out.f32(OP, shape)?,
            d_u,
            d_x0: d_x0.f32(OP, shape)?,
            d_x: d_x.f32(OP, shape)?,
        };
        self.kernels.cross.backward(&queue.stream, [shape.rows, shape.columns], arguments)?;
        let d_bias = d_bias.get(OP, "d_bias [N]", shape.columns)?;
        Ok(self.column_sums(queue, [shape.rows, shape.columns], Operand::f32(d_u), d_bias)?)
    }

    fn check_interaction(&self, shape: &interaction::Shape) -> Result<(), Error> {
        Ok(Interaction::check(&self.driver, shape)?)
    }

    fn interaction_forward(
        &self,
        queue: &Queue,
        arguments: InteractionForward<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "interaction forward";
        let InteractionForward { shape, dense, pooled, out } = arguments;
        let pooled = pooled.get(OP, "pooled [B, F·D]", shape.b * shape.pooled_width())?;
        let dense =
            shape.dense.then_some(dense.f32(OP, MatrixShape::new(shape.b, shape.dense_width()))?);
        let out = out.f32(OP, MatrixShape::new(shape.b, shape.width()))?;
        Ok(self.kernels.interaction.forward(&queue.stream, &shape, dense, pooled, out)?)
    }

    fn interaction_backward(
        &self,
        queue: &Queue,
        arguments: InteractionBackward<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "interaction backward";
        let InteractionBackward { shape, dense, pooled, d_out, d_dense, d_pooled } = arguments;
        let dense_shape = MatrixShape::new(shape.b, shape.dense_width());
        let [dense, d_dense] = [dense.f32(OP, dense_shape)?, d_dense.f32(OP, dense_shape)?]
            .map(|matrix| shape.dense.then_some(matrix));
        let pooled_len = shape.b * shape.pooled_width();
        let pooled = pooled.get(OP, "pooled [B, F·D]", pooled_len)?;
        let d_pooled = d_pooled.get(OP, "pooled [B, F·D]", pooled_len)?;
        let d_out = d_out.f32(OP, MatrixShape::new(shape.b, shape.width()))?;
        let kernel = &self.kernels.interaction;
        Ok(kernel.backward(&queue.stream, &shape, dense, pooled, d_out, d_dense, d_pooled)?)
    }

    fn join(
        &self,
        queue: &Queue,
        left: &Matrix,
        right: &Vector,
        shape: JoinShape,
        to: &mut Matrix,
    ) -> Result<(), Error> {
        const OP: &str = "join";
        let JoinShape { rows, left: columns, right: width } = shape;
        let whole = to.f32(OP, MatrixShape::new(rows, columns + width))?;
        let right = right.get(OP, "right [rows, columns]", rows * width)?;
        let parts = [left.f32(OP, MatrixShape::new(rows, columns))?, right];
        for (part, [own, of_whole]) in parts.into_iter().zip(halves(shape)) {
            let shape =
                Regroup { rows, columns: own[0], from: own, to: of_whole, mode: RegroupMode::Copy };
            self.kernels.bags.regroup(&queue.stream, shape, [part, whole])?;
        }
        Ok(())
    }

    fn split(
        &self,
        queue: &Queue,
        from: &Matrix,
        shape: JoinShape,
        left: &mut Matrix,
        right: &mut Vector,
    ) -> Result<(), Error> {
        const OP: &str = "split";
        let JoinShape { rows, left: columns, right: width } = shape;
        let whole = from.f32(OP, MatrixShape::new(rows, columns + width))?;
        let right = right.get(OP, "right [rows, columns]", rows * width)?;
        let parts = [left.f32(OP, MatrixShape::new(rows, columns))?, right];
        for (part, [own, of_whole]) in parts.into_iter().zip(halves(shape)) {
            let shape =
                Regroup { rows, columns: own[0], from: of_whole, to: own, mode: RegroupMode::Copy };
            self.kernels.bags.regroup(&queue.stream, shape, [whole, part])?;
        }
        Ok(())
    }

    fn begin(&self, queue: &Queue, step: &StepScalars, scalars: &mut Scalars) -> Result<(), Error> {
        Ok(scalars.block_mut().begin(&queue.stream, step)?)
    }

    fn loss(
        &self,
        queue: &Queue,
        arguments: LossArguments<'_, Self>,
        scalars: &mut Scalars,
    ) -> Result<(), Error> {
        const OP: &str = "loss";
        let LossArguments { kind, logits, labels, gradient, probabilities } = arguments;
        let samples = labels.len();
        let [logits, gradient, probabilities] = [
            logits.get(OP, "labels [B]", samples)?,
            gradient.get(OP, "labels [B]", samples)?,
            probabilities.get(OP, "labels [B]", samples)?,
        ];
        let (labels, losses) = scalars.block_mut().labels(&queue.stream, labels)?;
        let block = scalars.block();
        let buffers = LossBuffers {
            logits,
            labels: &labels,
            gradient,
            probabilities,
            losses: &losses,
            sum: &block.loss,
            stop: &block.stop,
            normaliser: &block.normaliser,
            first_bad: &block.first_bad,
        };
        Ok(self.kernels.loss.launch(&queue.stream, kind, samples, &buffers)?)
    }

    fn probabilities(
        &self,
        queue: &Queue,
        logits: &Vector,
        samples: usize,
        form: Probabilities,
        to: &mut Vector,
    ) -> Result<(), Error> {
        const OP: &str = "sigmoid";
        let vectors = [logits.get(OP, "logits [B]", samples)?, to.get(OP, "logits [B]", samples)?];
        if form == Probabilities::Missing {
            self.kernels.activation.sigmoid(&queue.stream, vectors, samples)?;
        }
        Ok(self.kernels.activation.unbounded_has_none(&queue.stream, vectors, samples)?)
    }

    fn lookup(
        &self,
        queue: &Queue,
        tables: &mut Tables,
        ids: BatchIds<'_, Self>,
        out: &mut Vector,
        scalars: &mut Scalars,
    ) -> Result<(), Error> {
        let kernel = &self.kernels.embedding_forward;
        tables.lookup(kernel, &queue.stream, ids.ids, out, scalars.block())
    }

    fn update_rows(
        &self,
        queue: &Queue,
        tables: &mut Tables,
        ids: BatchIds<'_, Self>,
        gradient: &Vector,
        scalars: &mut Scalars,
    ) -> Result<(), Error> {
        let kernels = &self.kernels.embedding_backward;
        tables.update(&queue.stream, kernels, ids.ids, gradient, scalars.block())
    }

    fn sum_rows(
        &self,
        queue: &Queue,
        tables: &mut Tables,
        ids: BatchIds<'_, Self>,
        gradient: &Vector,
        scalars: &Scalars,
        to: &mut RowSums,
    ) -> Result<(), Error> {
        let kernels = &self.kernels.embedding_backward;
        tables.sum_rows(&queue.stream, kernels, ids.ids, gradient, scalars.block(), to)
    }

    fn row_terms(
        &self,
        queue: &Queue,
        tables: &mut Tables,
        sums: &RowSums,
        scalars: &Scalars,
        terms: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let kernels = &self.kernels.embedding_backward;
        tables.row_terms(&queue.stream, kernels, sums, scalars.block(), terms)
    }

    fn apply_rows(
        &self,
        queue: &Queue,
        tables: &mut Tables,
        sums: &RowSums,
        terms: Option<&[f32]>,
        scalars: &mut Scalars,
    ) -> Result<(), Error> {
        let kernels = &self.kernels.embedding_backward;
        tables.apply_rows(&queue.stream, kernels, sums, terms, scalars.block())
    }

    fn assemble(
        &self,
        queue: &Queue,
        exchange: &mut Exchange,
        arguments: Assemble<'_, Self>,
        pooled: &mut Vector,
    ) -> Result<(), Error> {
        exchange.assemble(&queue.stream, &self.kernels.exchange, &arguments, pooled)
    }

    fn gather(
        &self,
        queue: &Queue,
        exchange: &mut Exchange,
        arguments: Gather<'_, Self>,
        to: &mut [f32],
    ) -> Result<(), Error> {
        exchange.gather(&queue.stream, &self.kernels.exchange, &arguments, to)
    }

    fn is_stopped(&self, queue: &Queue, scalars: &Scalars) -> Result<bool, Error> {
        let mut word = [0; size_of::<u32>()];
        queue.stream.download(&scalars.block().stop, 0, &mut word)?;
        Ok(word != [0; size_of::<u32>()])
    }

    fn stop(&self, queue: &Queue, scalars: &mut Scalars) -> Result<(), Error> {
        Ok(queue.stream.fill(&scalars.block().stop, 1)?)
    }

    fn end(&self, queue: &Queue, scalars: &mut Scalars) -> Result<Ended, Error> {
        Ok(scalars.block_mut().end(&queue.stream)?)
    }

    fn outcome(&self, scalars: &mut Scalars, end: Ended) -> Result<StepOutcome, Error> {
        scalars.block_mut().outcome(end)
    }
}

/// Describes both parts of a join. Each entry is the width and first column of the part, followed
/// by the width of the joined matrix and the part's first column in it.
fn halves(JoinShape { left, right, .. }: JoinShape) -> [[[usize; 2]; 2]; 2] {
    [[[left, 0], [left + right, 0]], [[right, 0], [left + right, left]]]
}
