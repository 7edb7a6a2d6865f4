//! The wide term, which adds a linear function of the interaction's output to the logit. The other
//! part of the logit, behind the top MLP, is in [`super::logit`].

use device::Backend;
use device::MatrixShape;
use device::backend::{ColumnBackwardInput, ColumnBackwardWeight, ColumnForward, ColumnStart};
use schema::{GemmProduct, Op, Precision};

use super::ParameterList;
use crate::Error;
use crate::context::RankContext;
use crate::dense::{Dense, VectorId};

/// The layer that computes `logit += x · w`. It has no bias, because the logit already has one.
///
/// With concatenated vectors, it is a first-order term: each row of a table has the weight `e · w`,
/// where `e` is its vector and `w` the part of the weight for its table.
///
/// # Source
/// Wide & Deep, arXiv:1606.07792.
#[derive(Clone, Copy, Debug)]
pub struct Wide {
    weight: VectorId,
    input: usize,
}

impl Wide {
    /// Creates the layer on `input` columns, with the parameter `wide.weight`.
    #[must_use]
    pub fn new<B: Backend>(parameters: &mut ParameterList<'_, B>, input: usize) -> Self {
        Self { weight: parameters.add_column("wide", input), input }
    }

    /// Adds `x [B, input] · w` to `logits [B]`.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn forward<B: Backend>(
        &self,
        context: &mut RankContext<B>,
        dense: &Dense<B>,
        x: &B::Matrix,
        logits: &mut B::Vector,
        samples: usize,
    ) -> Result<(), Error> {
        let RankContext { device, queue, profiler, .. } = context;
        let (weight, shape) = (&dense.vector(self.weight).values, self.shape(samples));
        let arguments = ColumnForward { x, weight, start: ColumnStart::Output, y: logits, shape };
        let op = op_of(GemmProduct::Forward, [samples, 1, self.input]);
        Ok(profiler.op(op, || device.column_forward(queue, arguments))?)
    }

    /// Writes the gradient of the weight, and writes the gradient of the input that this layer
    /// causes to `d_x [B, input]`. `d_y [B]` is the gradient of the logits.
    ///
    /// # Errors
    /// [`Error::Device`] if the shapes do not fit.
    pub fn backward<B: Backend>(
        &self,
        context: &mut RankContext<B>,
        dense: &mut Dense<B>,
        x: &B::Matrix,
        d_y: &B::Vector,
        d_x: &mut B::Matrix,
        samples: usize,
    ) -> Result<(), Error> {
        let RankContext { device, queue, profiler, .. } = context;
        let (weight, shape) = (dense.vector_mut(self.weight), self.shape(samples));
        let op = op_of(GemmProduct::BackwardWeight, [1, self.input, samples]);
        let d_weight = &mut weight.gradient;
        let arguments = ColumnBackwardWeight { x, d_y, d_weight, d_bias: None, shape };
        profiler.op(op, || device.column_backward_weight(queue, arguments))?;
        let op = op_of(GemmProduct::BackwardInput, [samples, self.input, 1]);
        let arguments = ColumnBackwardInput { d_y, weight: &weight.values, relu: None, d_x, shape };
        Ok(profiler.op(op, || device.column_backward_input(queue, arguments))?)
    }

    fn shape(&self, samples: usize) -> MatrixShape {
        MatrixShape::new(samples, self.input)
    }
}

fn op_of(product: GemmProduct, [m, n, k]: [usize; 3]) -> Op {
    Op::Gemm { product, precision: Precision::F32, m, n, k }
}
