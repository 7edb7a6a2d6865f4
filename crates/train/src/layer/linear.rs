//! `y = f(x Wᵀ + b)` and its gradients, activations in panels or pairs. Owns the packed form of its
//! weight, which is made anew on the first forward after the weight has changed.

use device::ops::gemm::{self, Activation, InputGradient, Operand, OperandMut, PackedWeight};
use schema::{GemmProduct, Op, Precision};

use crate::Error;
use crate::context::RankContext;
use crate::parameter::DenseParameter;

/// A linear layer; `weight` and `bias` are positions in the list of parameters.
#[derive(Debug)]
pub struct Linear {
    weight: usize,
    bias: Option<usize>,
    input: usize,
    output: usize,
    activation: Activation,
    packed: PackedWeight,
    /// Whether `packed` holds the weight as it is now.
    fresh: bool,
}

impl Linear {
    /// A layer of `(output, input)` whose parameters are at `(weight, bias)`, with products in
    /// `precision`.
    #[must_use]
    pub fn new(
        (weight, bias): (usize, Option<usize>),
        (output, input): (usize, usize),
        activation: Activation,
        precision: Precision,
    ) -> Self {
        let packed = PackedWeight::new((output, input), precision);
        Self { weight, bias, input, output, activation, packed, fresh: false }
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

    /// To be called when the parameters have changed.
    pub fn weight_changed(&mut self) {
        self.fresh = false;
    }

    /// Writes `y [B, output]` from `x [B, input]`, of `b` samples.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes or precisions do not fit.
    pub fn forward(
        &mut self,
        context: &mut RankContext,
        parameters: &[DenseParameter],
        (x, y): (Operand<'_>, OperandMut<'_>),
        b: usize,
    ) -> Result<(), Error> {
        let RankContext { cpu, profiler, .. } = context;
        let (k, n) = (self.input, self.output);
        let weight = &mut self.packed;
        if !self.fresh {
            let op = Op::Pack { elements: 2 * n * k };
            profiler.op(op, || weight.pack(cpu, &parameters[self.weight].weight))?;
            self.fresh = true;
        }
        let bias = self.bias.map(|bias| &parameters[bias].weight[..]);
        let op = self.op(GemmProduct::Forward, [b, n, k]);
        let (weight, activation) = (&self.packed, self.activation);
        let arguments = gemm::LinearForward { x, weight, bias, activation, y, b };
        Ok(profiler.op(op, || gemm::forward(cpu, arguments))?)
    }

    /// Writes the gradients of weight and bias from `x [B, input]` and `d_y [B, output]`, the
    /// gradient before the activation.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes or precisions do not fit.
    pub fn backward_weight(
        &self,
        context: &mut RankContext,
        parameters: &mut [DenseParameter],
        (x, d_y): (Operand<'_>, Operand<'_>),
        b: usize,
    ) -> Result<(), Error> {
        let RankContext { cpu, profiler, .. } = context;
        let (k, n) = (self.input, self.output);
        let op = self.op(GemmProduct::BackwardWeight, [n, k, b]);
        let mut d_weight = std::mem::take(&mut parameters[self.weight].gradient);
        let d_bias = self.bias.map(|bias| &mut parameters[bias].gradient[..]);
        let arguments =
            gemm::LinearBackwardWeight { x, d_y, d_weight: &mut d_weight, d_bias, b, k, n };
        let done = profiler.op(op, || gemm::backward_weight(cpu, arguments));
        parameters[self.weight].gradient = d_weight;
        Ok(done?)
    }

    /// Makes `d_x [B, input]` from `d_y [B, output]`, the gradient before the activation, with the
    /// weight of the last forward.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes or precisions do not fit.
    pub fn backward_input(
        &self,
        context: &mut RankContext,
        (d_y, d_x): (Operand<'_>, OperandMut<'_>),
        gradient: InputGradient<'_>,
        b: usize,
    ) -> Result<(), Error> {
        let RankContext { cpu, profiler, .. } = context;
        let op = self.op(GemmProduct::BackwardInput, [b, self.input, self.output]);
        let arguments = gemm::LinearBackwardInput { d_y, weight: &self.packed, gradient, d_x, b };
        Ok(profiler.op(op, || gemm::backward_input(cpu, arguments))?)
    }

    fn op(&self, product: GemmProduct, [m, n, k]: [usize; 3]) -> Op {
        Op::Gemm { product, precision: self.packed.precision(), m, n, k }
    }
}
