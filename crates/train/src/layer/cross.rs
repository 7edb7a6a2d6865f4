//! The low-rank cross network of DCN v2: `x_{l+1} = x₀ ⊙ (W_l V_l x_l + b_l) + x_l`.

use device::ops::cross;
use device::ops::gemm::{Activation, InputGradient, Matrix, OperandMut, panels};
use schema::{Op, Pass};

use super::ParameterList;
use super::linear::Linear;
use super::rounded::Rounded;
use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, DenseStep, Vector, VectorId};
use crate::memory::MemoryUse;

/// One cross layer and what its backward needs.
struct CrossLayer {
    /// V, `[rank, width]`.
    down: Linear,
    /// W, `[width, rank]`.
    up: Linear,
    /// b, `[width]`.
    bias: VectorId,
    /// The layer's input as its product reads it.
    entry: Rounded,
    /// `V x`, `[B_max, rank]`, in the products' precision.
    projected: Matrix,
    /// `W V x`, `[B_max, width]`.
    u: Vec<f32>,
    /// The layer's output, `[B_max, width]`.
    output: Vec<f32>,
}

/// All cross layers on an input of one width.
pub struct CrossNetwork {
    width: usize,
    layers: Vec<CrossLayer>,
    d_projected: Matrix,
    d_u: Vec<f32>,
    /// The same as the products read it.
    d_u_entry: Rounded,
    /// Gradients of the layers' outputs and inputs, two in turn.
    gradients: [Vec<f32>; 2],
    d_x0: Vec<f32>,
}

impl CrossNetwork {
    /// `layers` layers of `rank` on `width` columns, named `cross.{i}.{v,w,bias}`.
    #[must_use]
    pub fn new(
        parameters: &mut ParameterList,
        (layers, rank): (usize, usize),
        width: usize,
        batch_max: usize,
    ) -> Self {
        let precision = parameters.precision();
        let (forward, backward) = (MemoryUse::Activations, MemoryUse::Gradients);
        let whole = panels::len(batch_max, width);
        let mut layer = |i: usize| {
            let v = parameters.add_factor(format!("cross.{i}.v"), (rank, width));
            let w = parameters.add_factor(format!("cross.{i}.w"), (width, rank));
            let bias = parameters.add_zeros(&format!("cross.{i}.bias"), width);
            let room = &mut parameters.room;
            CrossLayer {
                down: Linear::new((v, None), (rank, width), Activation::None, precision),
                up: Linear::new((w, None), (width, rank), Activation::None, precision),
                bias,
                entry: Rounded::new(room, forward, precision, (batch_max, width)),
                projected: room.matrix(forward, precision, (batch_max, rank)),
                u: room.values(forward, whole),
                output: room.values(forward, whole),
            }
        };
        let layers = (0..layers).map(&mut layer).collect();
        let room = &mut parameters.room;
        Self {
            width,
            layers,
            d_projected: room.matrix(backward, precision, (batch_max, rank)),
            d_u: room.values(backward, whole),
            d_u_entry: Rounded::new(room, backward, precision, (batch_max, width)),
            gradients: [room.values(backward, whole), room.values(backward, whole)],
            d_x0: room.values(backward, whole),
        }
    }

    /// The output of the last forward, `[B, width]`.
    #[must_use]
    pub fn output(&self, samples: usize) -> &[f32] {
        self.layers.last().map_or(&[], |layer| &layer.output[..panels::len(samples, self.width)])
    }

    /// Runs all layers on `x0 [B, width]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward(
        &mut self,
        context: &mut RankContext,
        dense: &Dense,
        x0: &[f32],
    ) -> Result<(), Error> {
        let samples = x0.len() / panels::len(1, self.width);
        for i in 0..self.layers.len() {
            let (before, rest) = self.layers.split_at_mut(i);
            let x = before.last().map_or(x0, |layer| &layer.output[..x0.len()]);
            let layer = &mut rest[0];
            let rank = layer.down.output();
            let given = layer.entry.take(context, x, samples)?;
            let projected = layer.projected.get_mut(samples, rank);
            layer.down.forward(context, dense, (given, projected), samples)?;
            let u = &mut layer.u[..x0.len()];
            let factors = (layer.projected.get(samples, rank), OperandMut::F32(&mut *u));
            layer.up.forward(context, dense, factors, samples)?;
            let bias = &dense.vector(layer.bias).parameter.weight;
            let out = &mut layer.output[..x0.len()];
            let op = Op::Cross { elements: x0.len(), pass: Pass::Forward };
            let RankContext { cpu, profiler, .. } = context;
            profiler.op(op, || cross::forward(cpu, cross::Forward { x0, u, bias, x, out }))?;
        }
        Ok(())
    }

    /// Runs all layers backward from `d_out [B, width]` and updates their parameters; returns the
    /// gradient of `x0 [B, width]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit; [`Error::Communication`].
    pub fn backward(
        &mut self,
        context: &mut RankContext,
        step: &mut DenseStep<'_>,
        x0: &[f32],
        d_out: &[f32],
    ) -> Result<&[f32], Error> {
        let elements = x0.len();
        let samples = elements / panels::len(1, self.width);
        let d_x0 = &mut self.d_x0[..elements];
        d_x0.fill(0.0);
        let [mut current, mut next] = self.gradients.each_mut();
        current[..elements].copy_from_slice(d_out);
        for i in (0..self.layers.len()).rev() {
            let (before, rest) = self.layers.split_at(i);
            let layer = &rest[0];
            let x = before.last().map_or(x0, |layer| &layer.output[..elements]);
            let (d_u, d_x) = (&mut self.d_u[..elements], &mut next[..elements]);
            layer.cross_backward(
                context,
                step.dense,
                CrossGradients {
                    d_out: &current[..elements],
                    x0,
                    d_u: &mut *d_u,
                    d_x0: &mut *d_x0,
                    d_x: &mut *d_x,
                },
            )?;
            let rank = layer.down.output();
            let (x, d_u) =
                (layer.entry.get(x, samples), self.d_u_entry.take(context, d_u, samples)?);
            let given = (layer.projected.get(samples, rank), d_u, samples);
            let d_projected = (self.d_projected.get_mut(samples, rank), InputGradient::Write);
            layer.up.backward(context, step, given, Some(d_projected))?;
            let given = (x, self.d_projected.get(samples, rank), samples);
            let d_x = (OperandMut::F32(d_x), InputGradient::Accumulate);
            layer.down.backward(context, step, given, Some(d_x))?;
            std::mem::swap(&mut current, &mut next);
        }
        d_x0.iter_mut().zip(&current[..elements]).for_each(|(d_x0, d_x)| *d_x0 += d_x);
        Ok(&self.d_x0[..elements])
    }
}

/// Gradients around the element-wise part of one layer, each `[B, width]`.
struct CrossGradients<'a> {
    d_out: &'a [f32],
    x0: &'a [f32],
    d_u: &'a mut [f32],
    d_x0: &'a mut [f32],
    d_x: &'a mut [f32],
}

impl CrossLayer {
    fn cross_backward(
        &self,
        context: &mut RankContext,
        dense: &mut Dense,
        gradients: CrossGradients<'_>,
    ) -> Result<(), Error> {
        let CrossGradients { d_out, x0, d_u, d_x0, d_x } = gradients;
        let u = &self.u[..x0.len()];
        let Vector { parameter, gradient: d_bias } = dense.vector_mut(self.bias);
        let bias = &parameter.weight[..];
        let op = Op::Cross { elements: x0.len(), pass: Pass::Backward };
        let arguments = cross::Backward { d_out, x0, u, bias, d_u, d_bias, d_x0, d_x };
        let RankContext { cpu, profiler, .. } = context;
        Ok(profiler.op(op, || cross::backward(cpu, arguments))?)
    }
}
