//! The kernels of all operations, compiled and loaded on one GPU.

use crate::cuda::{Driver, DriverError, KernelSource};
use crate::ops;
use crate::ops::activation::cuda::Activation;
use crate::ops::cross::cuda::Cross;
use crate::ops::dense_update::cuda::DenseUpdate;
use crate::ops::embedding_backward::cuda::EmbeddingBackward;
use crate::ops::embedding_forward::cuda::EmbeddingForward;
use crate::ops::exchange::cuda::ExchangeKernel;
use crate::ops::gemm::cuda::Gemm;
use crate::ops::interaction::cuda::Interaction;
use crate::ops::jagged::cuda::Jagged as Bags;
use crate::ops::loss::cuda::DeviceLoss;

/// All kernel sources, which `cargo xtask kernels` and the mutation test iterate over.
pub const SOURCES: &[KernelSource] = &[
    ops::activation::cuda::SOURCE,
    ops::cross::cuda::SOURCE,
    ops::dense_update::cuda::SOURCE,
    ops::embedding_backward::cuda::SOURCE,
    ops::embedding_forward::cuda::SOURCE,
    ops::exchange::cuda::SOURCE,
    ops::gemm::cuda::SOURCE,
    ops::interaction::cuda::SOURCE,
    ops::jagged::cuda::SOURCE,
    ops::loss::cuda::SOURCE,
    ops::prefix_sum::cuda::SOURCE,
];

/// The kernels of all operations, loaded once per device.
#[derive(Debug)]
pub(super) struct Kernels {
    pub activation: Activation,
    pub bags: Bags,
    pub cross: Cross,
    pub embedding_backward: EmbeddingBackward,
    pub embedding_forward: EmbeddingForward,
    pub exchange: ExchangeKernel,
    pub gemm: Gemm,
    pub interaction: Interaction,
    pub loss: DeviceLoss,
    pub update: DenseUpdate,
}

impl Kernels {
    /// Compiles and loads the kernels of all operations.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        Ok(Self {
            activation: Activation::load(driver)?,
            bags: Bags::load(driver)?,
            cross: Cross::load(driver)?,
            embedding_backward: EmbeddingBackward::load(driver)?,
            embedding_forward: EmbeddingForward::load(driver)?,
            exchange: ExchangeKernel::load(driver)?,
            gemm: Gemm::load(driver)?.with_library(driver)?,
            interaction: Interaction::load(driver)?,
            loss: DeviceLoss::load(driver)?,
            update: DenseUpdate::load(driver)?,
        })
    }
}
