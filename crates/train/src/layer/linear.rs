//! `y = f(x Wᵀ + b)` and its gradients, activations in panels or pairs.

use device::ops::gemm::{self, Activation, InputGradient, Operand, OperandMut};
use schema::{GemmProduct, Op, Precision};

use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, DenseStep, VectorId, WeightId};

/// A linear layer.
#[derive(Debug)]
pub struct Linear {
    weight: WeightId,
    bias: Option<VectorId>,
    input: usize,
    output: usize,
    activation: Activation,
    precision: Precision,
}

impl Linear {
    /// A layer of `(output, input)` with these parameters and products in `precision`.
    #[must_use]
    pub fn new(
        (weight, bias): (WeightId, Option<VectorId>),
        (output, input): (usize, usize),
        activation: Activation,
        precision: Precision,
    ) -> Self {
        Self { weight, bias, input, output, activation, precision }
    }

    /// Inputs.
    #[must_use]
    pub fn input(&self) -> usize {
        self.input
    }

    /// Outputs.
    #[must_use]
    pub fn output(&self) -> usize {
        self.output
    }

    /// Writes `y [B, output]` from `x [B, input]`, of `b` samples.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes or precisions do not fit.
    pub fn forward(
        &self,
        context: &mut RankContext,
        dense: &Dense,
        (x, y): (Operand<'_>, OperandMut<'_>),
        b: usize,
    ) -> Result<(), Error> {
        let RankContext { cpu, profiler, .. } = context;
        let bias = self.bias.map(|bias| &dense.vector(bias).parameter.weight[..]);
        let op = self.op(GemmProduct::Forward, [b, self.output, self.input]);
        let (weight, activation) = (&dense.weight(self.weight).values, self.activation);
        let arguments = gemm::LinearForward { x, weight, bias, activation, y, b };
        Ok(profiler.op(op, || gemm::forward(cpu, arguments))?)
    }

    /// From `x [B, input]` and `d_y [B, output]`, the gradient before the activation: makes
    /// `d_x [B, input]` where it is wanted, writes the gradients of weight and bias, and updates
    /// both.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes or precisions do not fit; [`Error::Communication`].
    pub fn backward(
        &self,
        context: &mut RankContext,
        step: &mut DenseStep<'_>,
        (x, d_y, b): (Operand<'_>, Operand<'_>, usize),
        d_x: Option<(OperandMut<'_>, InputGradient<'_>)>,
    ) -> Result<(), Error> {
        let RankContext { cpu, profiler, .. } = &mut *context;
        let (k, n) = (self.input, self.output);
        if let Some((d_x, gradient)) = d_x {
            let op = self.op(GemmProduct::BackwardInput, [b, k, n]);
            let weight = &step.dense.weight(self.weight).values;
            let arguments = gemm::LinearBackwardInput { d_y, weight, gradient, d_x, b };
            profiler.op(op, || gemm::backward_input(cpu, arguments))?;
        }
        let op = self.op(GemmProduct::BackwardWeight, [n, k, b]);
        step.backward_weight(context, op, (self.weight, self.bias), (x, d_y, b))
    }

    fn op(&self, product: GemmProduct, [m, n, k]: [usize; 3]) -> Op {
        Op::Gemm { product, precision: self.precision, m, n, k }
    }
}
