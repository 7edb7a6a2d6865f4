//! Where the dense vector and the pooled vectors meet: pairwise dots, concatenation, or cross
//! network.

use device::buffer::Array;
use device::ops::gemm::panels;
use device::ops::interaction;
use schema::{Interaction, ModelConfig, Op, Pass};

use super::ParameterList;
use super::cross::CrossNetwork;
use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, DenseStep};
use crate::memory::MemoryUse;

enum Kind {
    Dot(interaction::Shape),
    Cat,
    Cross(Box<CrossNetwork>),
}

/// The interaction of one model.
pub struct InteractionLayer {
    kind: Kind,
    dense_width: usize,
    pooled_width: usize,
    output_width: usize,
    /// The output; under a cross network, its input: dense and pooled side by side. `[B_max,
    /// width]`.
    output: Array<f32>,
}

impl InteractionLayer {
    /// The interaction `model` asks for, with buffers for `batch_max` samples.
    #[must_use]
    pub fn new(parameters: &mut ParameterList, model: &ModelConfig, batch_max: usize) -> Self {
        let output_width = model.interaction_width();
        let kind = match model.interaction {
            Interaction::Dot { order, itself } => Kind::Dot(interaction::Shape {
                b: 0,
                features: model.sparse_vectors(),
                dense: model.has_dense(),
                dim: model.dot_dim(),
                order,
                itself,
            }),
            Interaction::Cat => Kind::Cat,
            Interaction::DcnV2 { layers, rank } => {
                let shape = (layers, rank);
                let network = CrossNetwork::new(parameters, shape, output_width, batch_max);
                Kind::Cross(Box::new(network))
            }
        };
        let output = panels::len(batch_max, output_width);
        Self {
            kind,
            dense_width: model.dense_width(),
            pooled_width: model.pooled_width(),
            output_width,
            output: parameters.room.array(MemoryUse::Activations, output),
        }
    }

    /// The output of the last forward, `[B, width]`.
    #[must_use]
    pub fn output(&self, samples: usize) -> &[f32] {
        match &self.kind {
            Kind::Cross(network) => network.output(samples),
            _ => &self.output[..panels::len(samples, self.output_width)],
        }
    }

    /// Combines `dense [B, D]`, in panels, and `pooled [B, ΣD]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward(
        &mut self,
        context: &mut RankContext,
        parameters: &Dense,
        (dense, pooled): (&[f32], &[f32]),
        samples: usize,
    ) -> Result<(), Error> {
        let out = &mut self.output[..panels::len(samples, self.output_width)];
        if let Kind::Dot(shape) = &self.kind {
            let shape = interaction::Shape { b: samples, ..*shape };
            let RankContext { cpu, profiler, .. } = context;
            let arguments = interaction::Forward { shape, dense, pooled, out };
            let op = op_of(&shape, Pass::Forward);
            return Ok(profiler.op(op, || interaction::forward(cpu, arguments))?);
        }
        let op = Op::Concat { elements: out.len(), pass: Pass::Forward };
        let shape = (samples, (self.dense_width, self.pooled_width));
        let RankContext { cpu, profiler, .. } = &mut *context;
        profiler.op(op, || panels::join(cpu, (dense, pooled), shape, out))?;
        match &mut self.kind {
            Kind::Cross(network) => network.forward(context, parameters, out),
            _ => Ok(()),
        }
    }

    /// Writes the gradients of both inputs, laid out as they are, from `d_out [B, width]`, and
    /// updates what parameters it has.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit; [`Error::Communication`].
    pub fn backward(
        &mut self,
        context: &mut RankContext,
        step: &mut DenseStep<'_>,
        (dense, pooled, d_out): (&[f32], &[f32], &[f32]),
        (d_dense, d_pooled): (&mut [f32], &mut [f32]),
    ) -> Result<(), Error> {
        let samples = d_out.len() / panels::len(1, self.output_width);
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
                network.backward(context, step, x0, d_out)?
            }
        };
        let op = Op::Concat { elements: d_out.len(), pass: Pass::Backward };
        let shape = (samples, (self.dense_width, self.pooled_width));
        let RankContext { cpu, profiler, .. } = context;
        Ok(profiler.op(op, || panels::split(cpu, d_joined, shape, (d_dense, d_pooled)))?)
    }
}

fn op_of(shape: &interaction::Shape, pass: Pass) -> Op {
    Op::Interaction { batch_size: shape.b, vectors: shape.vectors(), dim: shape.dim, pass }
}
