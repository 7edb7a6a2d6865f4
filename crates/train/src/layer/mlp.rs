//! Linear layers, each followed by ReLU: the bottom MLP, and the top one up to its logit.

use device::ops::activation;
use device::ops::gemm::{Activation, InputGradient, panels};
use schema::Op;

use super::ParameterList;
use super::linear::Linear;
use crate::Error;
use crate::context::RankContext;
use crate::parameter::DenseParameter;

/// A stack of linear layers with ReLU after each. With no layers it is the identity. All matrices
/// are in panels.
pub struct Mlp {
    layers: Vec<Linear>,
    /// Output of each layer after its ReLU, `[B_max, output]`.
    outputs: Vec<Vec<f32>>,
    /// Gradients of the outputs of all layers but the last, two in turn, `[B_max, widest]`.
    gradients: [Vec<f32>; 2],
}

impl Mlp {
    /// Layers of `widths` on an input of `input` columns, named `{name}.{i}`.
    #[must_use]
    pub fn new(
        parameters: &mut ParameterList<'_>,
        name: &str,
        (input, widths): (usize, &[usize]),
        batch_max: usize,
    ) -> Self {
        let mut layers = Vec::new();
        let mut from = input;
        for (i, &output) in widths.iter().enumerate() {
            let (weight, bias) = parameters.add_linear(&format!("{name}.{i}"), (output, from));
            layers.push(Linear::new((weight, Some(bias)), (output, from), Activation::Relu));
            from = output;
        }
        let outputs = widths.iter().map(|&width| vec![0.0; panels::len(batch_max, width)]);
        let widest = widths.iter().rev().skip(1).copied().max().unwrap_or(0);
        let gradient = || vec![0.0; panels::len(batch_max, widest)];
        Self { outputs: outputs.collect(), gradients: [gradient(), gradient()], layers }
    }

    /// The output of the last forward, `[B, output]`; `x` where there are no layers.
    #[must_use]
    pub fn output<'a>(&'a self, x: &'a [f32], samples: usize) -> &'a [f32] {
        match (self.layers.last(), self.outputs.last()) {
            (Some(layer), Some(output)) => &output[..panels::len(samples, layer.output())],
            _ => x,
        }
    }

    /// To be called when the parameters have changed.
    pub fn weights_changed(&mut self) {
        self.layers.iter_mut().for_each(Linear::weight_changed);
    }

    /// Runs all layers on `x [B, input]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward(
        &mut self,
        context: &mut RankContext,
        parameters: &[DenseParameter],
        x: &[f32],
        samples: usize,
    ) -> Result<(), Error> {
        for (i, linear) in self.layers.iter_mut().enumerate() {
            let (before, rest) = self.outputs.split_at_mut(i);
            let x =
                before.last().map_or(x, |output| &output[..panels::len(samples, linear.input())]);
            let y = &mut rest[0][..panels::len(samples, linear.output())];
            linear.forward(context, parameters, x, y)?;
        }
        Ok(())
    }

    /// The gradient before the last ReLU from the one after it, in place, `[B, output]`. Where the
    /// output feeds one linear layer, that layer's product has done so already.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn last_relu_backward(
        &self,
        context: &mut RankContext,
        d_y: &mut [f32],
    ) -> Result<(), Error> {
        let Some(output) = self.outputs.last() else { return Ok(()) };
        let y = &output[..d_y.len()];
        let RankContext { cpu, profiler, .. } = context;
        let op = Op::ReluBackward { elements: y.len() };
        Ok(profiler.op(op, || activation::relu_backward(cpu, y, d_y))?)
    }

    /// Runs all layers backward from `d_y [B, output]`, the gradient before the last ReLU, writing
    /// the parameters' gradients; writes the input's gradient to `d_x [B, input]` where it is
    /// wanted.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward(
        &mut self,
        context: &mut RankContext,
        parameters: &mut [DenseParameter],
        (x, d_y): (&[f32], &[f32]),
        d_x: Option<&mut [f32]>,
    ) -> Result<(), Error> {
        let Some(last) = self.layers.last() else {
            if let Some(d_x) = d_x {
                d_x.copy_from_slice(d_y);
            }
            return Ok(());
        };
        let samples = d_y.len() / panels::len(1, last.output());
        let [mut current, mut next] = self.gradients.each_mut();
        let mut d_y = d_y;
        for (i, linear) in self.layers.iter().enumerate().skip(1).rev() {
            let input = &self.outputs[i - 1][..panels::len(samples, linear.input())];
            linear.backward_weight(context, parameters, input, d_y)?;
            let d_input = &mut next[..input.len()];
            linear.backward_input(context, (d_y, d_input), InputGradient::BeforeRelu(input))?;
            std::mem::swap(&mut current, &mut next);
            d_y = &current[..input.len()];
        }
        let Some(first) = self.layers.first() else { return Ok(()) };
        first.backward_weight(context, parameters, x, d_y)?;
        match d_x {
            Some(d_x) => first.backward_input(context, (d_y, d_x), InputGradient::Write),
            None => Ok(()),
        }
    }
}
