//! Linear layers, each followed by ReLU: the bottom MLP, and the top MLP except for its last layer.

use std::ops::Range;

use device::Backend;
use device::MatrixShape;
use device::backend::{Combine, InputGradient};
use device::ops::gemm::Activation;
use schema::{Op, Precision};

use super::ParameterList;
use super::linear::Linear;
use super::rounded::Rounded;
use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, DenseStep};
use crate::memory::MemoryUse;

/// A stack of linear layers with ReLU after each. An MLP without layers is the identity. Input and
/// output are f32, and activations between the layers have the products' precision.
pub struct Mlp<B: Backend> {
    layers: Vec<Linear>,
    /// The input and the gradient of the output, in the products' precision.
    entries: [Rounded<B>; 2],
    /// Output of each layer but the last, after its ReLU, `[B_max, output]`.
    hidden: Vec<B::Matrix>,
    /// Output of the last layer, `[B_max, output]`.
    output: B::Matrix,
    /// Gradients of the outputs of all layers but the last, `[B_max, widest]`. The two buffers are
    /// swapped after each layer.
    gradients: [B::Matrix; 2],
    /// Number of input columns.
    width: usize,
}

impl<B: Backend> Mlp<B> {
    /// Creates layers of `widths` on an input of `input` columns, named `{name}.{i}`.
    #[must_use]
    pub fn new(
        parameters: &mut ParameterList<'_, B>,
        name: &str,
        input: usize,
        widths: &[usize],
        batch_max: usize,
    ) -> Self {
        let precision = parameters.precision();
        let mut layers = Vec::new();
        let mut from = input;
        for (i, &output) in widths.iter().enumerate() {
            let (weight, bias) =
                parameters.add_linear(&format!("{name}.{i}"), MatrixShape::new(output, from));
            let shape = MatrixShape::new(output, from);
            layers.push(Linear::new(weight, Some(bias), shape, Activation::Relu, precision));
            from = output;
        }
        // An MLP without layers needs no buffer for its input.
        let (kept, output) = if widths.is_empty() { (0, 0) } else { (input, from) };
        let hidden = &widths[..widths.len().saturating_sub(1)];
        let widest = hidden.iter().copied().max().unwrap_or(0);
        let room = &mut parameters.room;
        let (forward, backward) = (MemoryUse::Activations, MemoryUse::Gradients);
        let mut matrix = |of, width| room.matrix(of, precision, MatrixShape::new(batch_max, width));
        Self {
            layers,
            hidden: hidden.iter().map(|&width| matrix(forward, width)).collect(),
            gradients: [matrix(backward, widest), matrix(backward, widest)],
            entries: [(forward, kept), (backward, output)].map(|(of, width)| {
                Rounded::new(room, of, precision, MatrixShape::new(batch_max, width))
            }),
            output: room.matrix(forward, Precision::F32, MatrixShape::new(batch_max, output)),
            width: input,
        }
    }

    /// Returns the output of the last forward pass, `[B, output]`, or `x` if there are no layers.
    #[must_use]
    pub fn output<'a>(&'a self, x: &'a B::Matrix) -> &'a B::Matrix {
        if self.layers.is_empty() { x } else { &self.output }
    }

    /// Runs all layers on `x [B, input]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward(
        &mut self,
        context: &mut RankContext<B>,
        dense: &Dense<B>,
        x: &B::Matrix,
        samples: usize,
    ) -> Result<(), Error> {
        if self.layers.is_empty() {
            return Ok(());
        }
        let mut x = self.entries[0].take(context, x, samples)?;
        let mut hidden = self.hidden.iter_mut();
        for linear in &self.layers {
            match hidden.next() {
                Some(output) => {
                    linear.forward(context, dense, x, output, samples)?;
                    x = output;
                }
                None => linear.forward(context, dense, x, &mut self.output, samples)?,
            }
        }
        Ok(())
    }

    /// Applies the gradient of the last ReLU to `d_y [B, output]` in place. The call is needed only
    /// if the output feeds several layers, because a single linear layer applies the gradient
    /// within its product.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn last_relu_backward(
        &self,
        context: &mut RankContext<B>,
        d_y: &mut B::Matrix,
        samples: usize,
    ) -> Result<(), Error> {
        let Some(last) = self.layers.last() else { return Ok(()) };
        let RankContext { device, queue, profiler, .. } = context;
        let shape = MatrixShape::new(samples, last.output());
        let op = Op::ReluBackward { elements: B::matrix_len(shape.rows, shape.columns) };
        Ok(profiler.op(op, || device.relu_backward(queue, &self.output, shape, d_y))?)
    }

    /// The number of layers.
    #[must_use]
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// Runs some layers backward and computes the gradients of their parameters. Later layers have
    /// run before. Writes the input's gradient to `d_x [B, input]`, or adds it there, if it is
    /// requested and the first layer is among them.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward(
        &mut self,
        context: &mut RankContext<B>,
        step: &mut DenseStep<'_, B>,
        given: MlpGiven<'_, B>,
        mut d_x: Option<(&mut B::Matrix, InputGradient<'_, B>)>,
    ) -> Result<(), Error> {
        let MlpGiven { x, d_y, samples, layers } = given;
        let Some(last) = self.layers.len().checked_sub(1) else {
            let RankContext { device, queue, .. } = context;
            let Some((d_x, _)) = d_x else { return Ok(()) };
            let shape = MatrixShape::new(samples, self.width);
            return Ok(device.combine(queue, Combine::Copy(d_y), shape, d_x)?);
        };
        let [x_entry, d_y_entry] = self.entries.each_mut();
        if layers.contains(&last) {
            d_y_entry.take(context, d_y, samples)?;
        }
        let (x, d_y) = (x_entry.get(x), d_y_entry.get(d_y));
        let [even, odd] = self.gradients.each_mut();
        for layer in layers.rev() {
            // The last layer writes the gradient of its input to the first buffer.
            let (before, d_input) = if (last - layer).is_multiple_of(2) {
                (&*odd, &mut *even)
            } else {
                (&*even, &mut *odd)
            };
            let d_y = if layer == last { d_y } else { before };
            let linear = &self.layers[layer];
            match layer.checked_sub(1) {
                Some(below) => {
                    let input = &self.hidden[below];
                    let d_input = Some((d_input, InputGradient::BeforeRelu(input)));
                    linear.backward(context, step, input, d_y, samples, d_input)?;
                }
                None => {
                    linear.backward(context, step, x, d_y, samples, d_x.take())?;
                }
            }
        }
        Ok(())
    }
}

/// The inputs of [`Mlp::backward`].
pub struct MlpGiven<'a, B: Backend> {
    /// The input of the first layer, `[B, input]`.
    pub x: &'a B::Matrix,
    /// Gradient of the output before the last ReLU, `[B, output]`.
    pub d_y: &'a B::Matrix,
    pub samples: usize,
    /// The layers that run.
    pub layers: Range<usize>,
}
