//! The low-rank cross network of DCN v2: `x_{l+1} = x₀ ⊙ (W_l V_l x_l + b_l) + x_l`.

use std::ops::Range;

use device::Backend;
use device::MatrixShape;
use device::backend::{Combine, CrossBackward, CrossForward, InputGradient};
use device::ops::gemm::Activation;
use schema::{Op, Pass, Precision};

use super::ParameterList;
use super::linear::Linear;
use super::rounded::Rounded;
use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, DenseStep, DenseVector, VectorId};
use crate::memory::MemoryUse;

/// One cross layer, with the activations that its backward pass needs.
struct CrossLayer<B: Backend> {
    /// The factor V with shape `[rank, width]`.
    down: Linear,
    /// The factor W with shape `[width, rank]`.
    up: Linear,
    /// The bias b with shape `[width]`.
    bias: VectorId,
    /// The layer's input in the products' precision.
    entry: Rounded<B>,
    /// The product `V x`, `[B_max, rank]`, in the products' precision.
    projected: B::Matrix,
    /// The product `W V x`, `[B_max, width]`.
    u: B::Matrix,
    /// The layer's output, `[B_max, width]`.
    output: B::Matrix,
}

/// The cross layers of a model, applied one after another.
pub struct CrossNetwork<B: Backend> {
    width: usize,
    layers: Vec<CrossLayer<B>>,
    d_projected: B::Matrix,
    d_u: B::Matrix,
    /// The gradient `d_u` in the products' precision.
    d_u_entry: Rounded<B>,
    /// Gradients of the layers' outputs and inputs. The two buffers are swapped after each layer.
    gradients: [B::Matrix; 2],
    d_x0: B::Matrix,
}

impl<B: Backend> CrossNetwork<B> {
    /// Creates `layers` layers of `rank` on `width` columns, named `cross.{i}.{v,w,bias}`.
    #[must_use]
    pub fn new(
        parameters: &mut ParameterList<'_, B>,
        layers: usize,
        rank: usize,
        width: usize,
        batch_max: usize,
    ) -> Self {
        let precision = parameters.precision();
        let (forward, backward) = (MemoryUse::Activations, MemoryUse::Gradients);
        let whole = MatrixShape::new(batch_max, width);
        let mut layer = |i: usize| {
            let v = parameters.add_factor(format!("cross.{i}.v"), MatrixShape::new(rank, width));
            let w = parameters.add_factor(format!("cross.{i}.w"), MatrixShape::new(width, rank));
            let bias = parameters.add_zeros(&format!("cross.{i}.bias"), width);
            let room = &mut parameters.room;
            CrossLayer {
                down: Linear::new(
                    v,
                    None,
                    MatrixShape::new(rank, width),
                    Activation::None,
                    precision,
                ),
                up: Linear::new(
                    w,
                    None,
                    MatrixShape::new(width, rank),
                    Activation::None,
                    precision,
                ),
                bias,
                entry: Rounded::new(room, forward, precision, whole),
                projected: room.matrix(forward, precision, MatrixShape::new(batch_max, rank)),
                u: room.matrix(forward, Precision::F32, whole),
                output: room.matrix(forward, Precision::F32, whole),
            }
        };
        let layers = (0..layers).map(&mut layer).collect();
        let room = &mut parameters.room;
        let d_projected = room.matrix(backward, precision, MatrixShape::new(batch_max, rank));
        let d_u_entry = Rounded::new(room, backward, precision, whole);
        let mut gradient = || room.matrix(backward, Precision::F32, whole);
        let (d_u, gradients, d_x0) = (gradient(), [gradient(), gradient()], gradient());
        Self { width, layers, d_projected, d_u, d_u_entry, gradients, d_x0 }
    }

    /// Returns the output of the last forward pass, `[B, width]`, or `x0` if there are no layers.
    #[must_use]
    pub fn output<'a>(&'a self, x0: &'a B::Matrix) -> &'a B::Matrix {
        self.layers.last().map_or(x0, |layer| &layer.output)
    }

    /// Runs all layers on `x0 [B, width]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward(
        &mut self,
        context: &mut RankContext<B>,
        dense: &Dense<B>,
        x0: &B::Matrix,
        samples: usize,
    ) -> Result<(), Error> {
        let shape = MatrixShape::new(samples, self.width);
        for i in 0..self.layers.len() {
            let (before, rest) = self.layers.split_at_mut(i);
            let x = before.last().map_or(x0, |layer| &layer.output);
            let layer = &mut rest[0];
            let given = layer.entry.take(context, x, samples)?;
            layer.down.forward(context, dense, given, &mut layer.projected, samples)?;
            layer.up.forward(context, dense, &layer.projected, &mut layer.u, samples)?;
            let CrossLayer { u, output: out, bias, .. } = layer;
            let bias = &dense.vector(*bias).values;
            let op = cross_op::<B>(shape, Pass::Forward);
            let RankContext { device, queue, profiler, .. } = &mut *context;
            let arguments = CrossForward { x0, u, bias, x, out, shape };
            profiler.op(op, || device.cross_forward(queue, arguments))?;
        }
        Ok(())
    }

    /// Runs `layers` backward and computes the gradients of their parameters. Later layers have run
    /// before. `d_out [B, width]` is the gradient of the network's output.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward(
        &mut self,
        context: &mut RankContext<B>,
        step: &mut DenseStep<'_, B>,
        x0: &B::Matrix,
        d_out: &B::Matrix,
        samples: usize,
        backward: Range<usize>,
    ) -> Result<(), Error> {
        let (shape, count) = (MatrixShape::new(samples, self.width), self.layers.len());
        let Self { layers, d_projected, d_u, d_u_entry, gradients, d_x0, .. } = self;
        // Each layer reads one buffer and writes the other, so two buffers suffice for any depth.
        let [even, odd] = gradients.each_mut();
        if backward.end == count {
            context.device.combine(&context.queue, Combine::Clear, shape, d_x0)?;
            context.device.combine(&context.queue, Combine::Copy(d_out), shape, even)?;
        }
        for i in backward.rev() {
            let (current, next) =
                if (count - i) % 2 == 1 { (&*even, &mut *odd) } else { (&*odd, &mut *even) };
            let (before, rest) = layers.split_at(i);
            let layer = &rest[0];
            let x = before.last().map_or(x0, |layer| &layer.output);
            let DenseVector { values: bias, gradient: d_bias, .. } =
                step.dense.vector_mut(layer.bias);
            let RankContext { device, queue, profiler, .. } = &mut *context;
            let arguments = CrossBackward {
                d_out: current,
                x0,
                u: &layer.u,
                bias,
                d_u,
                d_bias,
                d_x0,
                d_x: next,
                shape,
            };
            let op = cross_op::<B>(shape, Pass::Backward);
            profiler.op(op, || device.cross_backward(queue, arguments))?;
            // The forward pass has already rounded `x`, but `d_u` was just computed and must be
            // rounded.
            let (x, d_u) = (layer.entry.get(x), d_u_entry.take(context, d_u, samples)?);
            let d_x = (&mut *d_projected, InputGradient::Write);
            layer.up.backward(context, step, &layer.projected, d_u, samples, Some(d_x))?;
            let d_x = (&mut *next, InputGradient::Accumulate);
            layer.down.backward(context, step, x, d_projected, samples, Some(d_x))?;
        }
        Ok(())
    }

    /// Returns the gradient of `x0 [B, width]`, once all layers have run backward.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn input_gradient(
        &mut self,
        context: &RankContext<B>,
        samples: usize,
    ) -> Result<&B::Matrix, Error> {
        let shape = MatrixShape::new(samples, self.width);
        let last = &self.gradients[self.layers.len() % 2];
        context.device.combine(&context.queue, Combine::Add(last), shape, &mut self.d_x0)?;
        Ok(&self.d_x0)
    }
}

fn cross_op<B: Backend>(shape: MatrixShape, pass: Pass) -> Op {
    Op::Cross { elements: B::matrix_len(shape.rows, shape.columns), pass }
}
