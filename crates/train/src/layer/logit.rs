//! The last layer of the top MLP: one output per sample, no activation. In f32 whatever the
//! precision of the other products: memory bounds it.

use device::ops::gemm::column;
use schema::{GemmProduct, Op, Precision};

use super::ParameterList;
use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, Vector, VectorId};

/// `logit = x · w + b`.
#[derive(Clone, Copy, Debug)]
pub struct Logit {
    weight: VectorId,
    bias: VectorId,
    input: usize,
}

/// What a backward reads.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The layer's input, `[B, input]` in panels.
    pub x: &'a [f32],
    /// Gradient of the logits, `[B]`.
    pub d_y: &'a [f32],
    /// Whether the input is the output of a ReLU, whose gradient is then taken too.
    pub after_relu: bool,
}

impl Logit {
    /// The layer on `input` columns, named `name`.
    #[must_use]
    pub fn new(parameters: &mut ParameterList, name: &str, input: usize) -> Self {
        let (weight, bias) = parameters.add_logit(name, input);
        Self { weight, bias, input }
    }

    /// Writes `y [B]` from `x [B, input]`, in panels.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward(
        &self,
        context: &mut RankContext,
        dense: &Dense,
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), Error> {
        let RankContext { cpu, profiler, .. } = context;
        let op = op_of(GemmProduct::Forward, [y.len(), 1, self.input]);
        let [weight, bias] =
            [self.weight, self.bias].map(|id| &dense.vector(id).parameter.weight[..]);
        let weight = (weight, bias[0]);
        Ok(profiler.op(op, || column::forward(cpu, x, weight, y))?)
    }

    /// Writes the gradients of weight and bias, and that of the input to `d_x [B, input]`, in
    /// panels.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward(
        &self,
        context: &mut RankContext,
        dense: &mut Dense,
        Given { x, d_y, after_relu }: Given<'_>,
        d_x: &mut [f32],
    ) -> Result<(), Error> {
        let RankContext { cpu, profiler, .. } = context;
        let (b, k) = (d_y.len(), self.input);
        let op = op_of(GemmProduct::BackwardWeight, [1, k, b]);
        let Vector { parameter, gradient } = dense.vector_mut(self.weight);
        let d_bias = profiler.op(op, || column::backward_weight(cpu, (x, d_y), gradient))?;
        let op = op_of(GemmProduct::BackwardInput, [b, k, 1]);
        let outputs = after_relu.then_some(x);
        profiler.op(op, || column::backward_input(cpu, (d_y, &parameter.weight), outputs, d_x))?;
        dense.vector_mut(self.bias).gradient[0] = d_bias;
        Ok(())
    }
}

fn op_of(product: GemmProduct, [m, n, k]: [usize; 3]) -> Op {
    Op::Gemm { product, precision: Precision::F32, m, n, k }
}
