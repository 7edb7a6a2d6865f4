//! `y = x Wᵀ + b` and its three gradients. Knows nothing of activations.

use device::Cpu;
use device::ops::gemm;
use schema::{GemmProduct, Op};

use crate::Error;
use crate::context::RankContext;
use crate::parameter::DenseParameter;

/// A linear layer; `weight` and `bias` are positions in the list of parameters.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Position of `[output, input]`.
    pub weight: usize,
    /// Position of `[output]`.
    pub bias: Option<usize>,
    /// Inputs.
    pub input: usize,
    /// Outputs.
    pub output: usize,
}

impl Linear {
    /// Writes `y [B, output]` from `x [B, input]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward(
        &self,
        context: &mut RankContext,
        parameters: &[DenseParameter],
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), Error> {
        let RankContext { cpu, profiler, .. } = context;
        let (b, k, n) = (x.len() / self.input, self.input, self.output);
        let weight = &parameters[self.weight].weight;
        let bias = self.bias.map(|bias| &parameters[bias].weight[..]);
        let op = Op::Gemm { product: GemmProduct::Forward, m: b, n, k };
        let arguments = gemm::LinearForward { x, weight, bias, y, b, k, n };
        Ok(profiler.op(op, || gemm::forward(cpu, arguments))?)
    }

    /// Writes the gradients of weight and bias from `x [B, input]` and `d_y [B, output]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward_weight(
        &self,
        context: &mut RankContext,
        parameters: &mut [DenseParameter],
        x: &[f32],
        d_y: &[f32],
    ) -> Result<(), Error> {
        let RankContext { cpu, profiler, .. } = context;
        let (b, k, n) = (x.len() / self.input, self.input, self.output);
        let op = Op::Gemm { product: GemmProduct::BackwardWeight, m: n, n: k, k: b };
        let mut d_weight = std::mem::take(&mut parameters[self.weight].gradient);
        let d_bias = self.bias.map(|bias| &mut parameters[bias].gradient[..]);
        let arguments =
            gemm::LinearBackwardWeight { x, d_y, d_weight: &mut d_weight, d_bias, b, k, n };
        let done = profiler.op(op, || gemm::backward_weight(cpu, arguments));
        parameters[self.weight].gradient = d_weight;
        Ok(done?)
    }

    /// Writes `d_x [B, input]` from `d_y [B, output]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward_input(
        &self,
        context: &mut RankContext,
        parameters: &[DenseParameter],
        d_y: &[f32],
        d_x: &mut [f32],
    ) -> Result<(), Error> {
        self.input_gradient(context, parameters, (d_y, d_x), gemm::backward_input)
    }

    /// Adds `d_y W` to `d_x [B, input]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward_input_accumulate(
        &self,
        context: &mut RankContext,
        parameters: &[DenseParameter],
        d_y: &[f32],
        d_x: &mut [f32],
    ) -> Result<(), Error> {
        self.input_gradient(context, parameters, (d_y, d_x), gemm::backward_input_accumulate)
    }

    /// Runs `product`, one of the two that give the gradient of the input.
    fn input_gradient(
        &self,
        context: &mut RankContext,
        parameters: &[DenseParameter],
        (d_y, d_x): (&[f32], &mut [f32]),
        product: fn(&Cpu, gemm::LinearBackwardInput<'_>) -> Result<(), device::Error>,
    ) -> Result<(), Error> {
        let RankContext { cpu, profiler, .. } = context;
        let (b, k, n) = (d_y.len() / self.output, self.input, self.output);
        let op = Op::Gemm { product: GemmProduct::BackwardInput, m: b, n: k, k: n };
        let weight = &parameters[self.weight].weight;
        let arguments = gemm::LinearBackwardInput { d_y, weight, d_x, b, k, n };
        Ok(profiler.op(op, || product(cpu, arguments))?)
    }
}
