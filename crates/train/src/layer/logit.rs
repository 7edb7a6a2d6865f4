//! The last layer of the top MLP, with one output per sample and without activation.
//!
//! The logit is computed in f32 whatever the precision of the other products, because memory
//! bandwidth limits it, not arithmetic.

use device::Backend;
use device::MatrixShape;
use device::backend::{ColumnBackwardInput, ColumnBackwardWeight, ColumnForward, ColumnStart};
use schema::{GemmProduct, Op, Precision};

use super::ParameterList;
use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, VectorId};

/// The layer that computes `logit = x · w + b`.
#[derive(Clone, Copy, Debug)]
pub struct Logit {
    weight: VectorId,
    bias: VectorId,
    input: usize,
}

/// The inputs of [`Logit::backward`].
pub struct LogitGiven<'a, B: Backend> {
    /// The layer's input, `[B, input]`.
    pub x: &'a B::Matrix,
    /// Gradient of the logits, `[B]`.
    pub d_y: &'a B::Vector,
    /// Whether the input is the output of a ReLU, whose gradient is then applied too.
    pub after_relu: bool,
    pub samples: usize,
}

impl Logit {
    /// Creates the layer on `input` columns, with parameters named after `name`.
    #[must_use]
    pub fn new<B: Backend>(
        parameters: &mut ParameterList<'_, B>,
        name: &str,
        input: usize,
    ) -> Self {
        let (weight, bias) = parameters.add_logit(name, input);
        Self { weight, bias, input }
    }

    /// Writes `y [B]` from `x [B, input]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward<B: Backend>(
        &self,
        context: &mut RankContext<B>,
        dense: &Dense<B>,
        x: &B::Matrix,
        y: &mut B::Vector,
        samples: usize,
    ) -> Result<(), Error> {
        let RankContext { device, queue, profiler, .. } = context;
        let op = op_of(GemmProduct::Forward, [samples, 1, self.input]);
        let [weight, bias] = [self.weight, self.bias].map(|id| &dense.vector(id).values);
        let start = ColumnStart::Bias(bias);
        let arguments =
            ColumnForward { x, weight, start, y, shape: MatrixShape::new(samples, self.input) };
        Ok(profiler.op(op, || device.column_forward(queue, arguments))?)
    }

    /// Writes the gradients of weight and bias, and writes the gradient of the input to `d_x [B,
    /// input]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward<B: Backend>(
        &self,
        context: &mut RankContext<B>,
        dense: &mut Dense<B>,
        given: LogitGiven<'_, B>,
        d_x: &mut B::Matrix,
    ) -> Result<(), Error> {
        let LogitGiven { x, d_y, after_relu, samples } = given;
        let RankContext { device, queue, profiler, .. } = context;
        let (b, k) = (samples, self.input);
        let shape = MatrixShape::new(b, k);
        let op = op_of(GemmProduct::BackwardWeight, [1, k, b]);
        // The bias is the vector after its weight, so one call borrows both.
        let [weight, bias] = dense.two_vectors_mut(self.weight);
        let (d_weight, d_bias) = (&mut weight.gradient, Some(&mut bias.gradient));
        let arguments = ColumnBackwardWeight { x, d_y, d_weight, d_bias, shape };
        profiler.op(op, || device.column_backward_weight(queue, arguments))?;
        let op = op_of(GemmProduct::BackwardInput, [b, k, 1]);
        let (weight, relu) = (&weight.values, after_relu.then_some(x));
        let arguments = ColumnBackwardInput { d_y, weight, relu, d_x, shape };
        Ok(profiler.op(op, || device.column_backward_input(queue, arguments))?)
    }
}

fn op_of(product: GemmProduct, [m, n, k]: [usize; 3]) -> Op {
    Op::Gemm { product, precision: Precision::F32, m, n, k }
}
