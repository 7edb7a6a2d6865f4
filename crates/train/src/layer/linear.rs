//! Computes `y = f(x Wᵀ + b)` and its gradients, on activations in the products' precision.

use device::Backend;
use device::MatrixShape;
use device::backend::{InputGradient, LinearBackwardInput, LinearForward};
use device::ops::gemm::Activation;
use schema::{GemmProduct, Op, Precision};

use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, DenseStep, VectorId, WeightId};

/// A linear layer with an activation. The layer refers to its parameters by id and owns no buffers.
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
    /// Creates a layer of `(output, input)` with these parameters and products in `precision`.
    #[must_use]
    pub fn new(
        weight: WeightId,
        bias: Option<VectorId>,
        MatrixShape { rows: output, columns: input }: MatrixShape,
        activation: Activation,
        precision: Precision,
    ) -> Self {
        Self { weight, bias, input, output, activation, precision }
    }

    /// Returns the number of input columns.
    #[must_use]
    pub fn input(&self) -> usize {
        self.input
    }

    /// Returns the number of output columns.
    #[must_use]
    pub fn output(&self) -> usize {
        self.output
    }

    /// Writes `y [B, output]` from `x [B, input]`, where B is `samples`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes or precisions do not fit.
    pub fn forward<B: Backend>(
        &self,
        context: &mut RankContext<B>,
        dense: &Dense<B>,
        x: &B::Matrix,
        y: &mut B::Matrix,
        samples: usize,
    ) -> Result<(), Error> {
        let RankContext { device, queue, profiler, .. } = context;
        let bias = self.bias.map(|bias| &dense.vector(bias).values);
        let op = self.op(GemmProduct::Forward, [samples, self.output, self.input]);
        let (weight, activation) = (&dense.weight(self.weight).values, self.activation);
        let arguments = LinearForward { x, weight, bias, activation, y, samples };
        Ok(profiler.op(op, || device.linear_forward(queue, arguments))?)
    }

    /// Computes the gradients of weight and bias and updates both. The arguments are `x [B, input]`
    /// and `d_y [B, output]`, the gradient before the activation. Also writes `d_x [B, input]` if
    /// it is requested.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes or precisions do not fit, or [`Error::Communication`].
    pub fn backward<B: Backend>(
        &self,
        context: &mut RankContext<B>,
        step: &mut DenseStep<'_, B>,
        x: &B::Matrix,
        d_y: &B::Matrix,
        samples: usize,
        d_x: Option<(&mut B::Matrix, InputGradient<'_, B>)>,
    ) -> Result<(), Error> {
        let RankContext { device, queue, profiler, .. } = &mut *context;
        let (k, n) = (self.input, self.output);
        if let Some((d_x, gradient)) = d_x {
            let op = self.op(GemmProduct::BackwardInput, [samples, k, n]);
            let weight = &step.dense.weight(self.weight).values;
            let arguments = LinearBackwardInput { d_y, weight, gradient, d_x, samples };
            profiler.op(op, || device.linear_backward_input(queue, arguments))?;
        }
        let op = self.op(GemmProduct::BackwardWeight, [n, k, samples]);
        step.backward_weight(context, op, self.weight, self.bias, x, d_y, samples)
    }

    fn op(&self, product: GemmProduct, [m, n, k]: [usize; 3]) -> Op {
        Op::Gemm { product, precision: self.precision, m, n, k }
    }
}
