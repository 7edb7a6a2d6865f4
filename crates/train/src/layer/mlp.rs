//! Linear layers with ReLU between them: the bottom and the top MLP.

use device::ops::activation;
use schema::{Op, Pass};

use super::ParameterList;
use super::linear::Linear;
use crate::Error;
use crate::context::RankContext;
use crate::parameter::DenseParameter;

/// What follows the last layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastActivation {
    /// ReLU, as after every other layer: the bottom MLP.
    Relu,
    /// None: the top MLP ends in the logit.
    None,
}

struct Layer {
    linear: Linear,
    relu: bool,
}

/// A stack of linear layers. With no layers it is the identity.
pub struct Mlp {
    layers: Vec<Layer>,
    /// Output of each layer after its activation, `[B_max, output]`.
    outputs: Vec<Vec<f32>>,
    /// Gradients of the layer outputs, two in turn, `[B_max, widest]`.
    gradients: [Vec<f32>; 2],
}

impl Mlp {
    /// Layers of `widths` on an input of `input` columns, named `{name}.{i}`.
    #[must_use]
    pub fn new(
        parameters: &mut ParameterList<'_>,
        name: &str,
        (input, widths, last): (usize, &[usize], LastActivation),
        batch_max: usize,
    ) -> Self {
        let mut layers = Vec::new();
        let mut from = input;
        for (i, &output) in widths.iter().enumerate() {
            let (weight, bias) = parameters.add_linear(&format!("{name}.{i}"), (output, from));
            let linear = Linear { weight, bias: Some(bias), input: from, output };
            let relu = i + 1 < widths.len() || last == LastActivation::Relu;
            layers.push(Layer { linear, relu });
            from = output;
        }
        let widest = batch_max * widths.iter().copied().max().unwrap_or(0);
        Self {
            outputs: widths.iter().map(|width| vec![0.0; batch_max * width]).collect(),
            gradients: [vec![0.0; widest], vec![0.0; widest]],
            layers,
        }
    }

    /// The output of the last forward, `[B, output]`; `x` where there are no layers.
    #[must_use]
    pub fn output<'a>(&'a self, x: &'a [f32], samples: usize) -> &'a [f32] {
        match (self.layers.last(), self.outputs.last()) {
            (Some(layer), Some(output)) => &output[..samples * layer.linear.output],
            _ => x,
        }
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
        for (i, Layer { linear, relu }) in self.layers.iter().enumerate() {
            let (before, rest) = self.outputs.split_at_mut(i);
            let x = before.last().map_or(x, |output| &output[..samples * linear.input]);
            let y = &mut rest[0][..samples * linear.output];
            linear.forward(context, parameters, x, y)?;
            if *relu {
                let op = Op::Activation { elements: y.len(), pass: Pass::Forward };
                let RankContext { cpu, profiler, .. } = context;
                profiler.op(op, || activation::relu_forward(cpu, y));
            }
        }
        Ok(())
    }

    /// Runs all layers backward from `d_y [B, output]`, writing the parameters' gradients; writes
    /// the input's gradient to `d_x [B, input]` where it is wanted.
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
        let samples = d_y.len() / last.linear.output;
        let [mut current, mut next] = self.gradients.each_mut();
        current[..d_y.len()].copy_from_slice(d_y);
        for (i, Layer { linear, relu }) in self.layers.iter().enumerate().rev() {
            let d_y = &mut current[..samples * linear.output];
            if *relu {
                let y = &self.outputs[i][..samples * linear.output];
                let op = Op::Activation { elements: y.len(), pass: Pass::Backward };
                let RankContext { cpu, profiler, .. } = context;
                profiler.op(op, || activation::relu_backward(cpu, y, d_y))?;
            }
            let input = match i {
                0 => x,
                _ => &self.outputs[i - 1][..samples * linear.input],
            };
            linear.backward_weight(context, parameters, input, d_y)?;
            if i > 0 {
                let d_input = &mut next[..samples * linear.input];
                linear.backward_input(context, parameters, d_y, d_input)?;
                std::mem::swap(&mut current, &mut next);
            }
        }
        match (d_x, self.layers.first()) {
            (Some(d_x), Some(first)) => {
                let d_y = &current[..samples * first.linear.output];
                first.linear.backward_input(context, parameters, d_y, d_x)
            }
            _ => Ok(()),
        }
    }
}
