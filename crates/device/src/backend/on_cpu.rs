//! The CPU as a [`Backend`]: runs the operations of [`crate::ops`] immediately on the calling
//! thread and its pool. Queues are empty, and ids are read in place.

mod ids;
mod tables;

use std::ops::Range;

use schema::{DataType, Granularity, JaggedTensor, Optimizer, Precision};

use super::{
    Assemble, Backend, BatchIds, ColumnBackwardInput, ColumnBackwardWeight, ColumnForward,
    ColumnStart, Combine, CrossBackward, CrossForward, ExchangeLayout, Gather, GradientSum,
    InputGradient, InteractionBackward, InteractionForward, JoinShape, LinearBackwardInput,
    LinearBackwardWeight, LinearForward, LossArguments, Probabilities, RowValues, StepOutcome,
    StepScalars, TableValues, TileRoom, TileRows, VectorUpdate, WeightPart, WeightShape,
};
use crate::MatrixShape;
use crate::buffer::Array;
use crate::cpu::{Cpu, Pool};
use crate::error::Error;
use crate::ops::embedding_backward::{RowSums, Scratch, ScratchShape};
use crate::ops::gemm::{self, LinearWeight, Matrix, OperandMut, column, pairs, panels};
use crate::ops::jagged::{IdLayout, LocalIds};
use crate::ops::{activation, cross, dense_update, exchange, extent, interaction, loss};
use crate::weights::{Weights, WeightsView};

pub use ids::CpuIds;
pub use tables::CpuTables;

/// A weight with its gradient and its optimizer state, which all use the same panel layout.
#[derive(Debug)]
pub struct CpuWeight {
    values: LinearWeight,
    gradient: Array<f32>,
    state: Vec<f32>,
    optimizer: Optimizer,
}

impl Default for CpuWeight {
    fn default() -> Self {
        let values = LinearWeight::new(MatrixShape::new(0, 0), Precision::F32);
        let (gradient, state) = (Array::default(), Vec::new());
        Self { values, gradient, state, optimizer: Optimizer::Sgd }
    }
}

/// The scalars of a step, and the results that the step has produced so far.
#[derive(Debug, Default)]
pub struct Scalars {
    step: Option<StepScalars>,
    outcome: StepOutcome,
    is_stopped: bool,
}

impl Scalars {
    fn step(&self) -> &StepScalars {
        let Some(step) = &self.step else {
            unreachable!("`begin` writes the scalars before any other operation of a step")
        };
        step
    }
}

/// Borrows the f32 panels of a matrix that must have this shape.
fn values<'a>(
    op: &'static str,
    matrix: &'a Matrix,
    MatrixShape { rows, columns }: MatrixShape,
) -> Result<&'a [f32], Error> {
    matrix.panels(op, rows, columns)
}

/// Mutably borrows the f32 panels of a matrix that must have this shape.
fn values_mut<'a>(
    op: &'static str,
    matrix: &'a mut Matrix,
    MatrixShape { rows, columns }: MatrixShape,
) -> Result<&'a mut [f32], Error> {
    matrix.panels_mut(op, rows, columns)
}

/// Returns the gradient that the update uses: the sum over all ranks if there is one, otherwise
/// this rank's own gradient.
fn summed<'a>(gradient: &'a mut [f32], sum: Option<GradientSum<'a>>) -> &'a [f32] {
    match sum {
        None => gradient,
        Some(GradientSum::Whole(sum)) => sum,
        Some(GradientSum::Pieces(copy)) => {
            copy(gradient);
            gradient
        }
    }
}

impl Cpu {
    /// Creates the device like [`Cpu::new`]. The signature is that of a device whose opening can
    /// fail.
    ///
    /// # Errors
    /// Opening a CPU never fails.
    pub fn open(threads: usize) -> Result<Self, Error> {
        Ok(Self::new(threads))
    }
}

impl Backend for Cpu {
    type Queue = ();
    type Matrix = Matrix;
    type Vector = Array<f32>;
    type Weight = CpuWeight;
    type Tables = CpuTables;
    type Ids = CpuIds;
    type Exchange = ExchangeLayout;
    type Scalars = Scalars;
    type Event = StepOutcome;

    const IS_ASYNC: bool = false;

    fn host(&self) -> &Pool {
        &self.pool
    }

    fn fuses(optimizer: Optimizer) -> bool {
        dense_update::is_fused(optimizer)
    }

    fn matrix_len(rows: usize, columns: usize) -> usize {
        panels::len(rows, columns)
    }

    fn matrix_bytes(precision: Precision, rows: usize, columns: usize) -> usize {
        Matrix::bytes(precision, rows, columns)
    }

    fn vector_bytes(len: usize) -> usize {
        Array::<f32>::bytes(len)
    }

    fn weight_bytes(WeightShape { n, k, precision, optimizer }: WeightShape) -> usize {
        LinearWeight::bytes(MatrixShape::new(n, k), precision)
            + Array::<f32>::bytes(panels::len(n, k))
            + dense_update::state_len(optimizer, MatrixShape::new(n, k)) * size_of::<f32>()
    }

    fn table_bytes(data_type: DataType, len: usize) -> usize {
        Weights::bytes(data_type, len)
    }

    fn id_bytes(ids: usize, bags: usize, scales: usize) -> usize {
        LocalIds::bytes(ids, bags, scales)
    }

    fn update_bytes(shape: ScratchShape) -> usize {
        Scratch::bytes(shape)
    }

    fn queue(&self) -> Result<(), Error> {
        Ok(())
    }

    fn matrix(&self, precision: Precision, rows: usize, columns: usize) -> Result<Matrix, Error> {
        Ok(Matrix::new(precision, rows, columns))
    }

    fn vector(&self, len: usize) -> Result<Array<f32>, Error> {
        Ok(Array::zeroed(len))
    }

    fn weight(
        &self,
        WeightShape { n, k, precision, optimizer }: WeightShape,
    ) -> Result<CpuWeight, Error> {
        Ok(CpuWeight {
            values: LinearWeight::new(MatrixShape::new(n, k), precision),
            gradient: Array::zeroed(panels::len(n, k)),
            state: vec![0.0; dense_update::state_len(optimizer, MatrixShape::new(n, k))],
            optimizer,
        })
    }

    fn tables(&self, values: TableValues) -> Result<CpuTables, Error> {
        Ok(CpuTables::new(values))
    }

    fn ids(&self, layout: IdLayout) -> Result<CpuIds, Error> {
        Ok(CpuIds::new(layout))
    }

    fn exchange(&self, layout: ExchangeLayout) -> Result<ExchangeLayout, Error> {
        Ok(layout)
    }

    fn scalars(&self) -> Result<Scalars, Error> {
        Ok(Scalars::default())
    }

    fn grow(&self, vector: &mut Array<f32>, len: usize) -> Result<(), Error> {
        if vector.len() < len {
            *vector = Array::zeroed(len);
        }
        Ok(())
    }

    fn pack(
        &self,
        (): &(),
        rows: &[f32],
        shape: MatrixShape,
        to: &mut Matrix,
    ) -> Result<(), Error> {
        panels::pack(self, rows, shape, values_mut("pack", to, shape)?)
    }

    fn write(&self, (): &(), values: &[f32], to: &mut Array<f32>, at: usize) -> Result<(), Error> {
        extent::within("write", "end of the values", to.len(), at + values.len())?;
        to[at..at + values.len()].copy_from_slice(values);
        Ok(())
    }

    fn send_ids(&self, (): &(), _: &JaggedTensor, _: &mut CpuIds) -> Result<(), Error> {
        Ok(())
    }

    fn read<'a>(
        &self,
        (): &(),
        from: &'a Array<f32>,
        len: usize,
        _: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], Error> {
        extent::within("read", "values", from.len(), len)?;
        Ok(&from[..len])
    }

    fn lend(
        &self,
        (): &(),
        from: &Array<f32>,
        range: Range<usize>,
        take: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error> {
        extent::within("lend", "values", from.len(), range.end)?;
        take(&from[range]);
        Ok(())
    }

    fn set_weight(
        &self,
        (): &(),
        part: WeightPart,
        values: &[f32],
        to: &mut CpuWeight,
    ) -> Result<(), Error> {
        match part {
            WeightPart::Values => to.values.set(self, values),
            WeightPart::State => to.set_state(self, values),
        }
    }

    fn get_weight(
        &self,
        (): &(),
        part: WeightPart,
        from: &CpuWeight,
        to: &mut [f32],
    ) -> Result<(), Error> {
        match part {
            WeightPart::Values => {
                panels::unpack(self, from.values.values(), from.values.shape(), to)
            }
            WeightPart::State => from.state(self, to),
        }
    }

    fn is_finite(&self, (): &(), weight: &CpuWeight) -> Result<bool, Error> {
        let good = |values: &[f32]| WeightsView::F32(values).are_finite(0..values.len());
        Ok(good(weight.values.values()) && good(&weight.state))
    }

    fn gradient_len(&self, weight: &CpuWeight) -> usize {
        weight.gradient.len()
    }

    fn lend_gradient(
        &self,
        (): &(),
        weight: &CpuWeight,
        take: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error> {
        take(&weight.gradient);
        Ok(())
    }

    fn clear_gradient(&self, (): &(), weight: &mut CpuWeight) -> Result<(), Error> {
        weight.gradient.fill(0.0);
        Ok(())
    }

    fn clear(&self, (): &(), vector: &mut Array<f32>, len: usize) -> Result<(), Error> {
        extent::within("clear", "values", vector.len(), len)?;
        vector[..len].fill(0.0);
        Ok(())
    }

    fn tile<'a>(
        &self,
        (): &(),
        tables: &'a CpuTables,
        rows: TileRows,
        _: &'a mut TileRoom,
    ) -> Result<(WeightsView<'a>, &'a [f32]), Error> {
        Ok(tables.tile(&rows))
    }

    fn set_rows(
        &self,
        (): &(),
        tables: &mut CpuTables,
        values: RowValues<'_>,
    ) -> Result<(), Error> {
        tables.set_rows(&values)
    }

    fn linear_forward(&self, (): &(), arguments: LinearForward<'_, Self>) -> Result<(), Error> {
        let LinearForward { x, weight, bias, activation, y, samples: b } = arguments;
        let MatrixShape { rows: n, columns: k } = weight.values.shape();
        let (x, y, bias) = (x.get(b, k), y.get_mut(b, n), bias.map(|bias| &bias[..]));
        let weight = &weight.values;
        gemm::forward(self, gemm::LinearForward { x, weight, bias, activation, y, b })
    }

    fn linear_backward_input(
        &self,
        (): &(),
        arguments: LinearBackwardInput<'_, Self>,
    ) -> Result<(), Error> {
        let LinearBackwardInput { d_y, weight, gradient, d_x, samples: b } = arguments;
        let MatrixShape { rows: n, columns: k } = weight.values.shape();
        let gradient = match gradient {
            InputGradient::Write => gemm::InputGradient::Write,
            InputGradient::Accumulate => gemm::InputGradient::Accumulate,
            InputGradient::BeforeRelu(x) => gemm::InputGradient::BeforeRelu(x.get(b, k)),
        };
        let (d_y, d_x, weight) = (d_y.get(b, n), d_x.get_mut(b, k), &weight.values);
        gemm::backward_input(self, gemm::LinearBackwardInput { d_y, weight, gradient, d_x, b })
    }

    fn linear_backward_weight(
        &self,
        (): &(),
        arguments: LinearBackwardWeight<'_, Self>,
        update: Option<&Scalars>,
    ) -> Result<(), Error> {
        let LinearBackwardWeight { x, d_y, weight, d_bias, samples: b } = arguments;
        let CpuWeight { values, gradient, state, .. } = weight;
        let MatrixShape { rows: n, columns: k } = values.shape();
        let product = gemm::LinearBackwardWeight {
            x: x.get(b, k),
            d_y: d_y.get(b, n),
            d_weight: gradient,
            d_bias: d_bias.map(|bias| &mut bias[..]),
            b,
            k,
            n,
        };
        let Some(scalars) = update.filter(|scalars| !scalars.is_stopped) else {
            return gemm::backward_weight(self, product);
        };
        let rule = scalars.step().dense;
        let arguments = dense_update::FusedArguments { rule, weight: values, state, product };
        dense_update::run_with_gradient(self, arguments)
    }

    fn column_forward(&self, (): &(), arguments: ColumnForward<'_, Self>) -> Result<(), Error> {
        let ColumnForward { x, weight, start, y, shape } = arguments;
        extent::within("column forward", "y [B]", y.len(), shape.rows)?;
        let x = values("column forward", x, shape)?;
        let bias = match start {
            ColumnStart::Bias(bias) => Some(bias[0]),
            ColumnStart::Output => None,
        };
        column::forward(self, x, weight, bias, &mut y[..shape.rows])
    }

    fn column_backward_weight(
        &self,
        (): &(),
        arguments: ColumnBackwardWeight<'_, Self>,
    ) -> Result<(), Error> {
        let ColumnBackwardWeight { x, d_y, d_weight, d_bias, shape } = arguments;
        extent::within("column backward_weight", "d_y [B]", d_y.len(), shape.rows)?;
        let x = values("column backward_weight", x, shape)?;
        let sum = column::backward_weight(self, x, &d_y[..shape.rows], d_weight)?;
        if let Some(d_bias) = d_bias {
            d_bias[0] = sum;
        }
        Ok(())
    }

    fn column_backward_input(
        &self,
        (): &(),
        arguments: ColumnBackwardInput<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "column backward_input";
        let ColumnBackwardInput { d_y, weight, relu, d_x, shape } = arguments;
        extent::within(OP, "d_y [B]", d_y.len(), shape.rows)?;
        let relu = relu.map(|x| values(OP, x, shape)).transpose()?;
        let d_x = values_mut(OP, d_x, shape)?;
        column::backward_input(self, &d_y[..shape.rows], weight, relu, d_x)
    }

    fn update_weight(
        &self,
        (): &(),
        weight: &mut CpuWeight,
        sum: Option<GradientSum<'_>>,
        scalars: &Scalars,
    ) -> Result<(), Error> {
        if scalars.is_stopped {
            return Ok(());
        }
        let CpuWeight { values, gradient, state, .. } = weight;
        let (rule, gradient) = (scalars.step().dense, summed(gradient, sum));
        let arguments = dense_update::WeightArguments { rule, weight: values, gradient, state };
        dense_update::run_weight(self, arguments)
    }

    fn update_vector(
        &self,
        (): &(),
        arguments: VectorUpdate<'_, Self>,
        sum: Option<GradientSum<'_>>,
        scalars: &Scalars,
    ) -> Result<(), Error> {
        if scalars.is_stopped {
            return Ok(());
        }
        let VectorUpdate { values: weights, gradient, state, dim } = arguments;
        let (rule, gradient) = (scalars.step().dense, summed(gradient, sum));
        let arguments = dense_update::DenseUpdate { rule, weights, gradient, state, dim };
        dense_update::run(self, arguments)
    }

    fn round(
        &self,
        (): &(),
        from: &Matrix,
        shape: MatrixShape,
        to: &mut Matrix,
    ) -> Result<(), Error> {
        let from = values("round", from, shape)?;
        match to.get_mut(shape.rows, shape.columns) {
            OperandMut::Bf16(to) => pairs::round(self, from, shape, to),
            OperandMut::F32(to) => {
                to.copy_from_slice(from);
                Ok(())
            }
        }
    }

    fn relu_backward(
        &self,
        (): &(),
        y: &Matrix,
        shape: MatrixShape,
        d_y: &mut Matrix,
    ) -> Result<(), Error> {
        const OP: &str = "relu backward";
        activation::relu_backward(self, values(OP, y, shape)?, values_mut(OP, d_y, shape)?)
    }

    fn combine(
        &self,
        (): &(),
        from: Combine<'_, Self>,
        shape: MatrixShape,
        to: &mut Matrix,
    ) -> Result<(), Error> {
        const OP: &str = "combine";
        let to = values_mut(OP, to, shape)?;
        match from {
            Combine::Clear => to.fill(0.0),
            Combine::Copy(from) => to.copy_from_slice(values(OP, from, shape)?),
            Combine::Add(from) => {
                let from = values(OP, from, shape)?;
                to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            }
        }
        Ok(())
    }

    fn cross_forward(&self, (): &(), arguments: CrossForward<'_, Self>) -> Result<(), Error> {
        const OP: &str = "cross forward";
        let CrossForward { x0, u, bias, x, out, shape } = arguments;
        let arguments = cross::Forward {
            x0: values(OP, x0, shape)?,
            u: values(OP, u, shape)?,
            bias,
            x: values(OP, x, shape)?,
            out: values_mut(OP, out, shape)?,
        };
        cross::forward(self, arguments)
    }

    fn cross_backward(&self, (): &(), arguments: CrossBackward<'_, Self>) -> Result<(), Error> {
        const OP: &str = "cross backward";
        let CrossBackward { d_out, x0, u, bias, d_u, d_bias, d_x0, d_x, shape } = arguments;
        let arguments = cross::Backward {
            d_out: values(OP, d_out, shape)?,
            x0: values(OP, x0, shape)?,
            u: values(OP, u, shape)?,
            bias,
            d_u: values_mut(OP, d_u, shape)?,
            d_bias,
            d_x0: values_mut(OP, d_x0, shape)?,
            d_x: values_mut(OP, d_x, shape)?,
        };
        cross::backward(self, arguments)
    }

    fn interaction_forward(
        &self,
        (): &(),
        arguments: InteractionForward<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "interaction forward";
        let InteractionForward { shape, dense, pooled, out } = arguments;
        let pooled_len = shape.b * shape.pooled_width();
        extent::within(OP, "pooled [B, F·D]", pooled.len(), pooled_len)?;
        let arguments = interaction::Forward {
            shape,
            dense: values(OP, dense, MatrixShape::new(shape.b, shape.dense_width()))?,
            pooled: &pooled[..pooled_len],
            out: values_mut(OP, out, MatrixShape::new(shape.b, shape.width()))?,
        };
        interaction::forward(self, arguments)
    }

    fn interaction_backward(
        &self,
        (): &(),
        arguments: InteractionBackward<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "interaction backward";
        let InteractionBackward { shape, dense, pooled, d_out, d_dense, d_pooled } = arguments;
        let pooled_len = shape.b * shape.pooled_width();
        extent::within(OP, "pooled [B, F·D]", pooled.len().min(d_pooled.len()), pooled_len)?;
        let arguments = interaction::Backward {
            shape,
            dense: values(OP, dense, MatrixShape::new(shape.b, shape.dense_width()))?,
            pooled: &pooled[..pooled_len],
            d_out: values(OP, d_out, MatrixShape::new(shape.b, shape.width()))?,
            d_dense: values_mut(OP, d_dense, MatrixShape::new(shape.b, shape.dense_width()))?,
            d_pooled: &mut d_pooled[..pooled_len],
        };
        interaction::backward(self, arguments)
    }

    fn join(
        &self,
        (): &(),
        left: &Matrix,
        right: &Array<f32>,
        shape: JoinShape,
        to: &mut Matrix,
    ) -> Result<(), Error> {
        const OP: &str = "join";
        let JoinShape { rows, left: columns, right: width } = shape;
        extent::within(OP, "right [rows, columns]", right.len(), rows * width)?;
        let left = values(OP, left, MatrixShape::new(rows, columns))?;
        let to = values_mut(OP, to, MatrixShape::new(rows, columns + width))?;
        panels::join(self, left, &right[..rows * width], rows, columns, width, to)
    }

    fn split(
        &self,
        (): &(),
        from: &Matrix,
        shape: JoinShape,
        left: &mut Matrix,
        right: &mut Array<f32>,
    ) -> Result<(), Error> {
        const OP: &str = "split";
        let JoinShape { rows, left: columns, right: width } = shape;
        extent::within(OP, "right [rows, columns]", right.len(), rows * width)?;
        let from = values(OP, from, MatrixShape::new(rows, columns + width))?;
        let left = values_mut(OP, left, MatrixShape::new(rows, columns))?;
        panels::split(self, from, rows, columns, width, left, &mut right[..rows * width])
    }

    fn begin(&self, (): &(), step: &StepScalars, scalars: &mut Scalars) -> Result<(), Error> {
        (scalars.step, scalars.outcome) = (Some(*step), StepOutcome::default());
        Ok(())
    }

    fn loss(
        &self,
        (): &(),
        arguments: LossArguments<'_, Self>,
        scalars: &mut Scalars,
    ) -> Result<(), Error> {
        let LossArguments { kind, logits, labels, gradient, probabilities } = arguments;
        let samples = labels.len();
        let room = logits.len().min(gradient.len()).min(probabilities.len());
        extent::within("loss", "labels [B]", room, samples)?;
        let arguments = loss::LossArguments {
            kind,
            logits: &logits[..samples],
            labels,
            normaliser: scalars.step().normaliser,
            gradient: &mut gradient[..samples],
            probabilities: &mut probabilities[..samples],
        };
        let sum = loss::run(self, arguments)?;
        scalars.outcome.loss = sum;
        scalars.is_stopped |= !sum.is_finite();
        Ok(())
    }

    fn probabilities(
        &self,
        (): &(),
        logits: &Array<f32>,
        samples: usize,
        form: Probabilities,
        to: &mut Array<f32>,
    ) -> Result<(), Error> {
        extent::within("sigmoid", "logits [B]", logits.len().min(to.len()), samples)?;
        let (logits, to) = (&logits[..samples], &mut to[..samples]);
        if form == Probabilities::Missing {
            activation::sigmoid(self, logits, to)?;
        }
        // The sigmoid of an infinite logit is finite, so these probabilities are replaced here.
        for (probability, logit) in to.iter_mut().zip(logits) {
            if !logit.is_finite() {
                *probability = f32::NAN;
            }
        }
        Ok(())
    }

    fn lookup(
        &self,
        (): &(),
        tables: &mut CpuTables,
        ids: BatchIds<'_, Self>,
        out: &mut Array<f32>,
        _: &mut Scalars,
    ) -> Result<(), Error> {
        let (jagged, bag_scales) = ids.parts();
        tables.lookup(self, jagged, bag_scales, out)
    }

    fn update_rows(
        &self,
        (): &(),
        tables: &mut CpuTables,
        ids: BatchIds<'_, Self>,
        gradient: &Array<f32>,
        scalars: &mut Scalars,
    ) -> Result<(), Error> {
        if scalars.is_stopped {
            return Ok(());
        }
        let (jagged, bag_scales) = ids.parts();
        let updated = tables.update(self, jagged, bag_scales, gradient, scalars.step())?;
        scalars.outcome.updated += updated;
        Ok(())
    }

    fn sum_rows(
        &self,
        (): &(),
        tables: &mut CpuTables,
        ids: BatchIds<'_, Self>,
        gradient: &Array<f32>,
        scalars: &Scalars,
        to: &mut RowSums,
    ) -> Result<(), Error> {
        let (jagged, bag_scales) = ids.parts();
        tables.sum_rows(self, jagged, bag_scales, gradient, scalars.step(), to)
    }

    fn row_terms(
        &self,
        (): &(),
        tables: &mut CpuTables,
        sums: &RowSums,
        scalars: &Scalars,
        terms: &mut Vec<f32>,
    ) -> Result<(), Error> {
        if scalars.is_stopped {
            terms.clear();
            terms.resize(2 * sums.rows.len(), 0.0);
            return Ok(());
        }
        tables.row_terms(self, sums, scalars.step(), terms)
    }

    fn apply_rows(
        &self,
        (): &(),
        tables: &mut CpuTables,
        sums: &RowSums,
        terms: Option<&[f32]>,
        scalars: &mut Scalars,
    ) -> Result<(), Error> {
        if scalars.is_stopped {
            return Ok(());
        }
        let updated = tables.apply_rows(self, sums, terms, scalars.step())?;
        scalars.outcome.updated += updated;
        Ok(())
    }

    fn assemble(
        &self,
        (): &(),
        exchange: &mut ExchangeLayout,
        arguments: Assemble<'_, Self>,
        pooled: &mut Array<f32>,
    ) -> Result<(), Error> {
        let Assemble { own: (rank, first), local, parts, samples } = arguments;
        let ExchangeLayout { sources, widths, row, .. } = exchange;
        let len = samples * widths[rank];
        extent::within("assemble", "own rows", local.len(), first + len)?;
        extent::within("assemble", "pooled [B, ΣD]", pooled.len(), samples * *row)?;
        let own = (rank, &local[first..first + len]);
        let given = exchange::GivenMatrices { own, others: parts, widths };
        exchange::assemble(self, sources, given, *row, &mut pooled[..samples * *row])
    }

    fn gather(
        &self,
        (): &(),
        exchange: &mut ExchangeLayout,
        arguments: Gather<'_, Self>,
        to: &mut [f32],
    ) -> Result<(), Error> {
        let Gather { rank, from, samples } = arguments;
        let ExchangeLayout { columns, widths, row, .. } = exchange;
        let (columns, row, width) = (&columns[rank], *row, widths[rank]);
        extent::within("gather", "gradient [B, ΣD]", from.len(), samples * row)?;
        exchange::gather(self, columns, &from[..samples * row], row, to, width)
    }

    fn is_stopped(&self, (): &(), scalars: &Scalars) -> Result<bool, Error> {
        Ok(scalars.is_stopped)
    }

    fn stop(&self, (): &(), scalars: &mut Scalars) -> Result<(), Error> {
        scalars.is_stopped = true;
        Ok(())
    }

    fn end(&self, (): &(), scalars: &mut Scalars) -> Result<StepOutcome, Error> {
        Ok(scalars.outcome)
    }

    fn outcome(&self, _: &mut Scalars, end: StepOutcome) -> Result<StepOutcome, Error> {
        Ok(end)
    }
}

impl CpuWeight {
    /// Writes the optimizer state in the layout of checkpoints to `to`.
    fn state(&self, cpu: &Cpu, to: &mut [f32]) -> Result<(), Error> {
        let shape @ MatrixShape { rows: n, columns: k } = self.values.shape();
        let len = n * self.optimizer.state_per_row(k);
        extent::check("state of a weight", "values", len, to.len())?;
        if self.optimizer.granularity() == Granularity::Row {
            to.copy_from_slice(&self.state);
            return Ok(());
        }
        let parts = self.state.chunks(panels::len(n, k).max(1));
        for (from, to) in parts.zip(to.chunks_mut((n * k).max(1))) {
            panels::unpack(cpu, from, shape, to)?;
        }
        Ok(())
    }

    /// Reads the optimizer state from a slice in the layout of checkpoints.
    fn set_state(&mut self, cpu: &Cpu, state: &[f32]) -> Result<(), Error> {
        let shape @ MatrixShape { rows: n, columns: k } = self.values.shape();
        let len = n * self.optimizer.state_per_row(k);
        extent::check("state of a weight", "values", len, state.len())?;
        if self.optimizer.granularity() == Granularity::Row {
            self.state.copy_from_slice(state);
            return Ok(());
        }
        let parts = self.state.chunks_mut(panels::len(n, k).max(1));
        for (to, from) in parts.zip(state.chunks((n * k).max(1))) {
            panels::pack(cpu, from, shape, to)?;
        }
        Ok(())
    }
}
