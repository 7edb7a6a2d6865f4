//! The loaded kernels, and what several operations of the backend do with them.

use super::Cuda;
use super::handles::{Queue, Weight};
use crate::backend::Sum;
use crate::cuda::{Buffer, Driver, DriverError};
use crate::error::Error;
use crate::ops::activation::cuda::Activation;
use crate::ops::cross::cuda::Cross;
use crate::ops::dense_update::cuda::DenseUpdate;
use crate::ops::embedding_backward::cuda::EmbeddingBackward;
use crate::ops::embedding_forward::cuda::EmbeddingForward;
use crate::ops::exchange::cuda::Exchange;
use crate::ops::extent;
use crate::ops::gemm::cuda::{Gemm, Operand};
use crate::ops::interaction::cuda::Interaction;
use crate::ops::jagged::cuda::Jagged as Bags;
use crate::ops::loss::cuda::DeviceLoss;

#[derive(Debug)]
pub(super) struct Kernels {
    pub activation: Activation,
    pub bags: Bags,
    pub cross: Cross,
    pub embedding_backward: EmbeddingBackward,
    pub embedding_forward: EmbeddingForward,
    pub exchange: Exchange,
    pub gemm: Gemm,
    pub interaction: Interaction,
    pub loss: DeviceLoss,
    pub update: DenseUpdate,
}

impl Kernels {
    /// Compiles and loads all.
    ///
    /// # Errors
    /// As [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        Ok(Self {
            activation: Activation::load(driver)?,
            bags: Bags::load(driver)?,
            cross: Cross::load(driver)?,
            embedding_backward: EmbeddingBackward::load(driver)?,
            embedding_forward: EmbeddingForward::load(driver)?,
            exchange: Exchange::load(driver)?,
            gemm: Gemm::load(driver)?.with_library(driver)?,
            interaction: Interaction::load(driver)?,
            loss: DeviceLoss::load(driver)?,
            update: DenseUpdate::load(driver)?,
        })
    }
}

impl Cuda {
    /// Renews what products read of a weight.
    pub(super) fn renew(&self, queue: &Queue, weight: &Weight) -> Result<(), DriverError> {
        let buffers = weight.buffers();
        let Some(rounded) = buffers.rounded() else { return Ok(()) };
        self.kernels.gemm.round(&queue.stream, [&buffers.values, rounded], weight.len())
    }

    /// The gradient of a bias: the sums of the columns of `d_y` `[B, N]`.
    pub(super) fn column_sums(
        &self,
        queue: &Queue,
        shape: [usize; 2],
        (d_y, sums): (Operand<'_>, &Buffer),
    ) -> Result<(), DriverError> {
        let partials = queue.partials(&self.driver, shape)?;
        self.kernels.gemm.column_sums(&queue.stream, shape, d_y, [sums, &partials])
    }

    /// Puts a sum over all ranks in the gradient's place.
    pub(super) fn take_sum(
        &self,
        queue: &Queue,
        (gradient, len): (&Buffer, usize),
        sum: Option<Sum<'_>>,
    ) -> Result<(), Error> {
        const OP: &str = "sum of gradients";
        let mut lent = queue.lent.borrow_mut();
        let values = match sum {
            None => return Ok(()),
            Some(Sum::Whole(values)) => values,
            Some(Sum::Pieces(copy)) => {
                lent.resize(len, 0.0);
                copy(&mut lent);
                &lent[..]
            }
        };
        extent::check(OP, "values", len, values.len())?;
        Ok(queue.stream.upload(gradient, 0, bytemuck::cast_slice(values))?)
    }
}
