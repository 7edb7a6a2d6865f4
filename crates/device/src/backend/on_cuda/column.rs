//! The product of a matrix with one column, as a logit needs it.

use super::Cuda;
use super::handles::Queue;
use crate::MatrixShape;
use crate::backend::{ColumnForward, ColumnStart};
use crate::error::Error;
use crate::ops::gemm::cuda::{Join, LinearShape, Operand, ProductTarget};

impl Cuda {
    /// Computes `y` `[B]` from `x` `[B, K]` and a weight `[K]`.
    pub(super) fn multiply_column(
        &self,
        queue: &Queue,
        arguments: ColumnForward<'_, Self>,
    ) -> Result<(), Error> {
        const OP: &str = "column forward";
        let ColumnForward { x, weight, start, y, shape } = arguments;
        let MatrixShape { rows: b, columns: k } = shape;
        let factors = [x.f32(OP, shape)?, weight.get(OP, "weight [K]", k)?].map(Operand::f32);
        let target = ProductTarget::plain(y.get(OP, "y [B]", b)?);
        let (stream, gemm) = (&queue.stream, &self.kernels.gemm);
        match start {
            ColumnStart::Bias(bias) => {
                let bias = Some(bias.get(OP, "bias [1]", 1)?);
                let shape = LinearShape { b, n: 1, k };
                Ok(gemm.forward(stream, shape, factors, bias, target)?)
            }
            // A product that adds to its result is `dX + dY W`. Here `x` is dY with K columns, and
            // the weight is a W with one column.
            ColumnStart::Output => {
                let shape = LinearShape { b, n: k, k: 1 };
                Ok(gemm.backward_input(stream, shape, factors, target, Join::Add)?)
            }
        }
    }
}
