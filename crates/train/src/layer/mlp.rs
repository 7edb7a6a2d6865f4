//! Linear layers, each followed by ReLU: the bottom MLP, and the top one up to its logit.

use device::buffer::Array;
use device::ops::activation;
use device::ops::gemm::{Activation, InputGradient, Matrix, OperandMut, panels};
use schema::Op;

use super::ParameterList;
use super::linear::Linear;
use super::rounded::Rounded;
use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, DenseStep};
use crate::memory::MemoryUse;

/// A stack of linear layers with ReLU after each. With no layers it is the identity. What goes in
/// and comes out is f32 in panels; what passes between the layers has the products' precision.
pub struct Mlp {
    layers: Vec<Linear>,
    /// The input and the gradient of the output as the products read them.
    entries: [Rounded; 2],
    /// Output of each layer but the last, after its ReLU, `[B_max, output]`.
    hidden: Vec<Matrix>,
    /// Output of the last layer, `[B_max, output]` in panels.
    output: Array<f32>,
    /// Gradients of the outputs of all layers but the last, two in turn, `[B_max, widest]`.
    gradients: [Matrix; 2],
}

impl Mlp {
    /// Layers of `widths` on an input of `input` columns, named `{name}.{i}`.
    #[must_use]
    pub fn new(
        parameters: &mut ParameterList,
        name: &str,
        (input, widths): (usize, &[usize]),
        batch_max: usize,
    ) -> Self {
        let precision = parameters.precision();
        let mut layers = Vec::new();
        let mut from = input;
        for (i, &output) in widths.iter().enumerate() {
            let (weight, bias) = parameters.add_linear(&format!("{name}.{i}"), (output, from));
            let place = (weight, Some(bias));
            layers.push(Linear::new(place, (output, from), Activation::Relu, precision));
            from = output;
        }
        // An identity keeps no input.
        let (kept, output) = if widths.is_empty() { (0, 0) } else { (input, from) };
        let hidden = &widths[..widths.len().saturating_sub(1)];
        let widest = hidden.iter().copied().max().unwrap_or(0);
        let room = &mut parameters.room;
        let (forward, backward) = (MemoryUse::Activations, MemoryUse::Gradients);
        let mut matrix = |of, width| room.matrix(of, precision, (batch_max, width));
        Self {
            layers,
            hidden: hidden.iter().map(|&width| matrix(forward, width)).collect(),
            gradients: [matrix(backward, widest), matrix(backward, widest)],
            entries: [(forward, kept), (backward, output)]
                .map(|(of, width)| Rounded::new(room, of, precision, (batch_max, width))),
            output: room.array(forward, panels::len(batch_max, output)),
        }
    }

    /// The output of the last forward, `[B, output]`; `x` where there are no layers.
    #[must_use]
    pub fn output<'a>(&'a self, x: &'a [f32], samples: usize) -> &'a [f32] {
        self.layers.last().map_or(x, |layer| &self.output[..panels::len(samples, layer.output())])
    }

    /// Runs all layers on `x [B, input]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward(
        &mut self,
        context: &mut RankContext,
        dense: &Dense,
        x: &[f32],
        samples: usize,
    ) -> Result<(), Error> {
        if self.layers.is_empty() {
            return Ok(());
        }
        let mut x = self.entries[0].take(context, x, samples)?;
        let mut hidden = self.hidden.iter_mut();
        for linear in &self.layers {
            let width = linear.output();
            match hidden.next() {
                Some(output) => {
                    let y = output.get_mut(samples, width);
                    linear.forward(context, dense, (x, y), samples)?;
                    x = output.get(samples, width);
                }
                None => {
                    let y = OperandMut::F32(&mut self.output[..panels::len(samples, width)]);
                    linear.forward(context, dense, (x, y), samples)?;
                }
            }
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
        if self.layers.is_empty() {
            return Ok(());
        }
        let y = &self.output[..d_y.len()];
        let RankContext { cpu, profiler, .. } = context;
        let op = Op::ReluBackward { elements: y.len() };
        Ok(profiler.op(op, || activation::relu_backward(cpu, y, d_y))?)
    }

    /// Runs all layers backward from `d_y [B, output]`, the gradient before the last ReLU, and
    /// updates their parameters; writes the input's gradient to `d_x [B, input]` where it is
    /// wanted.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit; [`Error::Communication`].
    pub fn backward(
        &mut self,
        context: &mut RankContext,
        step: &mut DenseStep<'_>,
        (x, d_y): (&[f32], &[f32]),
        d_x: Option<&mut [f32]>,
    ) -> Result<(), Error> {
        let Some(last) = self.layers.last() else {
            if let Some(d_x) = d_x {
                d_x.copy_from_slice(d_y);
            }
            return Ok(());
        };
        let b = d_y.len() / panels::len(1, last.output());
        let [x_entry, d_y_entry] = self.entries.each_mut();
        let (x, mut d_y) = (x_entry.get(x, b), d_y_entry.take(context, d_y, b)?);
        let [mut current, mut next] = self.gradients.each_mut();
        for (linear, input) in self.layers[1..].iter().zip(&self.hidden).rev() {
            let width = linear.input();
            let input = input.get(b, width);
            let d_x = (next.get_mut(b, width), InputGradient::BeforeRelu(input));
            linear.backward(context, step, (input, d_y, b), Some(d_x))?;
            std::mem::swap(&mut current, &mut next);
            d_y = current.get(b, width);
        }
        let d_x = d_x.map(|d_x| (OperandMut::F32(d_x), InputGradient::Write));
        self.layers[0].backward(context, step, (x, d_y, b), d_x)
    }
}
