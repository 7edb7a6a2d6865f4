//! Where the dense vector and the pooled vectors meet: pairwise dots, concatenation, or cross
//! network.

use device::Cpu;
use device::ops::interaction;
use schema::{Interaction, ModelConfig, Op, Pass};

use super::ParameterList;
use super::cross::CrossNetwork;
use crate::Error;
use crate::context::RankContext;
use crate::parameter::DenseParameter;

/// Samples copied by one chunk.
const SAMPLES_PER_CHUNK: usize = 64;

enum Kind {
    Dot(interaction::Shape),
    Cat,
    Cross(CrossNetwork),
}

/// The interaction of one model.
pub struct InteractionLayer {
    kind: Kind,
    dense_width: usize,
    pooled_width: usize,
    output_width: usize,
    /// The output; under a cross network, its input: dense and pooled side by side. `[B_max,
    /// width]`.
    output: Vec<f32>,
}

impl InteractionLayer {
    /// The interaction `model` asks for, with buffers for `batch_max` samples.
    #[must_use]
    pub fn new(parameters: &mut ParameterList<'_>, model: &ModelConfig, batch_max: usize) -> Self {
        let output_width = model.interaction_width();
        let kind = match model.interaction {
            Interaction::Dot { order, itself } => Kind::Dot(interaction::Shape {
                b: 0,
                features: model.features().len(),
                dim: model.dense_width(),
                order,
                itself,
            }),
            Interaction::Cat => Kind::Cat,
            Interaction::DcnV2 { layers, rank } => {
                Kind::Cross(CrossNetwork::new(parameters, (layers, rank), output_width, batch_max))
            }
        };
        Self {
            kind,
            dense_width: model.dense_width(),
            pooled_width: model.pooled_width(),
            output_width,
            output: vec![0.0; batch_max * output_width],
        }
    }

    /// The output of the last forward, `[B, width]`.
    #[must_use]
    pub fn output(&self, samples: usize) -> &[f32] {
        match &self.kind {
            Kind::Cross(network) => network.output(samples),
            _ => &self.output[..samples * self.output_width],
        }
    }

    /// Combines `dense [B, D]` and `pooled [B, ΣD]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward(
        &mut self,
        context: &mut RankContext,
        parameters: &[DenseParameter],
        (dense, pooled): (&[f32], &[f32]),
        samples: usize,
    ) -> Result<(), Error> {
        let out = &mut self.output[..samples * self.output_width];
        if let Kind::Dot(shape) = &self.kind {
            let shape = interaction::Shape { b: samples, ..*shape };
            let RankContext { cpu, profiler, .. } = context;
            let arguments = interaction::Forward { shape, dense, pooled, out };
            let op = op_of(&shape, Pass::Forward);
            return Ok(profiler.op(op, || interaction::forward(cpu, arguments))?);
        }
        let op = Op::Concat { elements: out.len(), pass: Pass::Forward };
        let widths = (self.dense_width, self.pooled_width);
        let RankContext { cpu, profiler, .. } = &mut *context;
        profiler.op(op, || concatenate(cpu, (dense, pooled), widths, out));
        match &mut self.kind {
            Kind::Cross(network) => network.forward(context, parameters, out),
            _ => Ok(()),
        }
    }

    /// Writes the gradients of both inputs from `d_out [B, width]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward(
        &mut self,
        context: &mut RankContext,
        parameters: &mut [DenseParameter],
        (dense, pooled, d_out): (&[f32], &[f32], &[f32]),
        (d_dense, d_pooled): (&mut [f32], &mut [f32]),
    ) -> Result<(), Error> {
        let samples = d_out.len() / self.output_width;
        let d_joined = match &mut self.kind {
            Kind::Dot(shape) => {
                let shape = interaction::Shape { b: samples, ..*shape };
                let RankContext { cpu, profiler, .. } = context;
                let arguments =
                    interaction::Backward { shape, dense, pooled, d_out, d_dense, d_pooled };
                let op = op_of(&shape, Pass::Backward);
                return Ok(profiler.op(op, || interaction::backward(cpu, arguments))?);
            }
            Kind::Cat => d_out,
            Kind::Cross(network) => {
                let x0 = &self.output[..d_out.len()];
                network.backward(context, parameters, x0, d_out)?
            }
        };
        let op = Op::Concat { elements: d_out.len(), pass: Pass::Backward };
        let widths = (self.dense_width, self.pooled_width);
        let RankContext { cpu, profiler, .. } = context;
        profiler.op(op, || take_apart(cpu, d_joined, widths, (d_dense, d_pooled)));
        Ok(())
    }
}

fn op_of(shape: &interaction::Shape, pass: Pass) -> Op {
    Op::Interaction { batch_size: shape.b, vectors: shape.vectors(), dim: shape.dim, pass }
}

fn concatenate(
    cpu: &Cpu,
    (dense, pooled): (&[f32], &[f32]),
    (dense_width, pooled_width): (usize, usize),
    out: &mut [f32],
) {
    let width = dense_width + pooled_width;
    cpu.pool.run_slices(out, SAMPLES_PER_CHUNK * width, |chunk, rows| {
        for (i, row) in rows.chunks_exact_mut(width).enumerate() {
            let sample = chunk * SAMPLES_PER_CHUNK + i;
            let (head, tail) = row.split_at_mut(dense_width);
            head.copy_from_slice(&dense[sample * dense_width..][..dense_width]);
            tail.copy_from_slice(&pooled[sample * pooled_width..][..pooled_width]);
        }
    });
}

fn take_apart(
    cpu: &Cpu,
    joined: &[f32],
    (dense_width, pooled_width): (usize, usize),
    (dense, pooled): (&mut [f32], &mut [f32]),
) {
    let width = dense_width + pooled_width;
    let columns = |out: &mut [f32], first: usize, columns: usize| {
        let chunk_len = SAMPLES_PER_CHUNK * columns.max(1);
        cpu.pool.run_slices(out, chunk_len, |chunk, rows| {
            for (i, row) in rows.chunks_exact_mut(columns).enumerate() {
                let sample = chunk * SAMPLES_PER_CHUNK + i;
                row.copy_from_slice(&joined[sample * width + first..][..columns]);
            }
        });
    };
    columns(dense, 0, dense_width);
    columns(pooled, dense_width, pooled_width);
}
