//! Steps that several GPU operations share: weight updates, bias gradients and sums over ranks.

use super::Cuda;
use super::handles::{Queue, Weight};
use crate::backend::GradientSum;
use crate::cuda::{Buffer, DriverError};
use crate::error::Error;
use crate::ops::extent;
use crate::ops::gemm::cuda::Operand;

impl Cuda {
    /// Refreshes the rounded copy of a weight that matrix products read.
    pub(super) fn renew(&self, queue: &Queue, weight: &Weight) -> Result<(), DriverError> {
        let buffers = weight.buffers();
        let Some(rounded) = buffers.rounded() else { return Ok(()) };
        self.kernels.gemm.round(&queue.stream, [&buffers.values, rounded], weight.len())
    }

    /// Computes the gradient of a bias: the sums of the columns of `d_y` `[B, N]`.
    pub(super) fn column_sums(
        &self,
        queue: &Queue,
        shape: [usize; 2],
        d_y: Operand<'_>,
        sums: &Buffer,
    ) -> Result<(), DriverError> {
        let partials = queue.partials(&self.driver, shape)?;
        self.kernels.gemm.column_sums(&queue.stream, shape, d_y, [sums, &partials])
    }

    /// Replaces the gradient by its sum over all ranks.
    pub(super) fn take_sum(
        &self,
        queue: &Queue,
        gradient: &Buffer,
        len: usize,
        sum: Option<GradientSum<'_>>,
    ) -> Result<(), Error> {
        const OP: &str = "sum of gradients";
        let mut lent = queue.lent.borrow_mut();
        let values = match sum {
            None => return Ok(()),
            Some(GradientSum::Whole(values)) => values,
            Some(GradientSum::Pieces(copy)) => {
                lent.resize(len, 0.0);
                copy(&mut lent);
                &lent[..]
            }
        };
        extent::check(OP, "values", len, values.len())?;
        Ok(queue.stream.upload(gradient, 0, bytemuck::cast_slice(values))?)
    }
}
