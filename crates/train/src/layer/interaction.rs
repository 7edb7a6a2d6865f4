//! Combines the dense vector and the pooled vectors: pairwise dot products, concatenation, or a
//! cross network.

use std::ops::Range;

use device::Backend;
use device::MatrixShape;
use device::backend::{InteractionBackward, InteractionForward, JoinShape};
use device::ops::interaction;
use schema::{Interaction, ModelConfig, Op, Pass, Precision};

use super::ParameterList;
use super::cross::CrossNetwork;
use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, DenseStep};
use crate::memory::MemoryUse;

/// The combination of the dense vector and the embeddings: pairwise dot products, concatenation, or
/// a cross network.
enum InteractionKind<B: Backend> {
    Dot(interaction::Shape),
    Cat,
    Cross(Box<CrossNetwork<B>>),
}

/// The interaction layer of a model, with the buffer of its output.
pub struct InteractionLayer<B: Backend> {
    kind: InteractionKind<B>,
    dense_width: usize,
    pooled_width: usize,
    output_width: usize,
    /// The output `[B_max, width]`. For a cross network it is the network's input, the concatenated
    /// dense and pooled vectors.
    output: B::Matrix,
}

impl<B: Backend> InteractionLayer<B> {
    /// Creates the interaction that `model` configures, with buffers for `batch_max` samples.
    #[must_use]
    pub fn new(
        parameters: &mut ParameterList<'_, B>,
        model: &ModelConfig,
        batch_max: usize,
    ) -> Self {
        let output_width = model.interaction_width();
        let kind = match model.interaction {
            Interaction::Dot { order, itself } => {
                let shape = interaction::Shape {
                    b: 0,
                    features: model.sparse_vectors(),
                    dense: model.has_dense(),
                    dim: model.dot_dim(),
                    order,
                    itself,
                };
                parameters.room.check_interaction(&shape);
                InteractionKind::Dot(shape)
            }
            Interaction::Cat => InteractionKind::Cat,
            Interaction::DcnV2 { layers, rank } => {
                let network = CrossNetwork::new(parameters, layers, rank, output_width, batch_max);
                InteractionKind::Cross(Box::new(network))
            }
        };
        let shape = MatrixShape::new(batch_max, output_width);
        Self {
            kind,
            dense_width: model.dense_width(),
            pooled_width: model.pooled_width(),
            output_width,
            output: parameters.room.matrix(MemoryUse::Activations, Precision::F32, shape),
        }
    }

    /// Returns the output of the last forward pass, `[B, width]`.
    #[must_use]
    pub fn output(&self) -> &B::Matrix {
        match &self.kind {
            InteractionKind::Cross(network) => network.output(&self.output),
            _ => &self.output,
        }
    }

    fn joined(&self, samples: usize, pass: Pass) -> (JoinShape, Op) {
        let elements = B::matrix_len(samples, self.output_width);
        let shape = JoinShape { rows: samples, left: self.dense_width, right: self.pooled_width };
        (shape, Op::Concat { elements, pass })
    }

    /// Combines `dense [B, D]` and `pooled [B, ΣD]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward(
        &mut self,
        context: &mut RankContext<B>,
        parameters: &Dense<B>,
        dense: &B::Matrix,
        pooled: &B::Vector,
        samples: usize,
    ) -> Result<(), Error> {
        let (joined, op) = self.joined(samples, Pass::Forward);
        let RankContext { device, queue, profiler, .. } = &mut *context;
        let out = &mut self.output;
        if let InteractionKind::Dot(shape) = &self.kind {
            let shape = interaction::Shape { b: samples, ..*shape };
            let arguments = InteractionForward { shape, dense, pooled, out };
            let op = op_of(&shape, Pass::Forward);
            return Ok(profiler.op(op, || device.interaction_forward(queue, arguments))?);
        }
        profiler.op(op, || device.join(queue, dense, pooled, joined, out))?;
        match &mut self.kind {
            InteractionKind::Cross(network) => network.forward(context, parameters, out, samples),
            _ => Ok(()),
        }
    }

    /// Computes the gradients of the parameters of some cross layers from `d_out [B, width]`, the
    /// gradient of the output. Later layers have run before.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward_layers(
        &mut self,
        context: &mut RankContext<B>,
        step: &mut DenseStep<'_, B>,
        d_out: &B::Matrix,
        samples: usize,
        layers: Range<usize>,
    ) -> Result<(), Error> {
        let InteractionKind::Cross(network) = &mut self.kind else { return Ok(()) };
        network.backward(context, step, &self.output, d_out, samples, layers)
    }

    /// Writes the gradients of both inputs from `d_out [B, width]`. The layers of a cross network
    /// have run backward.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward(
        &mut self,
        context: &mut RankContext<B>,
        given: InteractionGiven<'_, B>,
        d_dense: &mut B::Matrix,
        d_pooled: &mut B::Vector,
    ) -> Result<(), Error> {
        let InteractionGiven { dense, pooled, d_out, samples } = given;
        let (joined, op) = self.joined(samples, Pass::Backward);
        let d_joined = match &mut self.kind {
            InteractionKind::Dot(shape) => {
                let shape = interaction::Shape { b: samples, ..*shape };
                let RankContext { device, queue, profiler, .. } = context;
                let arguments =
                    InteractionBackward { shape, dense, pooled, d_out, d_dense, d_pooled };
                let op = op_of(&shape, Pass::Backward);
                return Ok(profiler.op(op, || device.interaction_backward(queue, arguments))?);
            }
            InteractionKind::Cat => d_out,
            InteractionKind::Cross(network) => network.input_gradient(context, samples)?,
        };
        let RankContext { device, queue, profiler, .. } = context;
        Ok(profiler.op(op, || device.split(queue, d_joined, joined, d_dense, d_pooled))?)
    }
}

/// The inputs of [`InteractionLayer::backward`].
pub struct InteractionGiven<'a, B: Backend> {
    /// The dense vectors, `[B, D]`.
    pub dense: &'a B::Matrix,
    /// The pooled vectors, `[B, ΣD]`.
    pub pooled: &'a B::Vector,
    /// Gradient of the output, `[B, width]`.
    pub d_out: &'a B::Matrix,
    pub samples: usize,
}

fn op_of(shape: &interaction::Shape, pass: Pass) -> Op {
    Op::Interaction { batch_size: shape.b, vectors: shape.vectors(), dim: shape.dim, pass }
}
