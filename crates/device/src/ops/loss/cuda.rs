//! Launches of the loss kernels on a GPU. The sum of the losses stays on the device.

use schema::Loss;

use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};

/// The CUDA source of the loss kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/loss/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;
const SUM_THREADS: u32 = 128;

/// Arguments of [`DeviceLoss::launch`], which are all buffers on the device.
#[derive(Clone, Copy, Debug)]
pub struct LossBuffers<'a> {
    /// Logits of the samples, f32 `[B]`.
    pub logits: &'a Buffer,
    /// Labels of the samples, f32 `[B]`.
    pub labels: &'a Buffer,
    /// Gradient with respect to the logits, f32 `[B]`, overwritten.
    pub gradient: &'a Buffer,
    /// Probabilities of the samples, f32 `[B]`, overwritten.
    pub probabilities: &'a Buffer,
    /// Loss of each sample, f64 `[B]`, overwritten.
    pub losses: &'a Buffer,
    /// Sum of the losses before the division, f64 `[1]`, overwritten.
    pub sum: &'a Buffer,
    /// Flags that stop updates, u32 `[1]`. Bit 0 is set if the sum is not finite, and bit 1 if
    /// `first_bad` is a position.
    pub stop: &'a Buffer,
    /// Divisor of the gradient, f64 `[1]`.
    pub normaliser: &'a Buffer,
    /// First position at which the lookup found an out-of-range id, u64 `[1]`.
    pub first_bad: &'a Buffer,
}

/// The loss kernels, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct DeviceLoss {
    samples: Kernel,
    sum: Kernel,
}

impl DeviceLoss {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self { samples: module.kernel("loss_samples")?, sum: module.kernel("loss_sum")? })
    }

    /// Computes the loss of a batch, like [`super::run`], on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn launch(
        &self,
        stream: &Stream,
        kind: Loss,
        samples: usize,
        buffers: &LossBuffers<'_>,
    ) -> Result<(), DriverError> {
        let arguments = KernelArguments::new()
            .buffer(buffers.logits)
            .buffer(buffers.labels)
            .buffer(buffers.gradient)
            .buffer(buffers.probabilities)
            .buffer(buffers.losses)
            .buffer(buffers.sum)
            .buffer(buffers.stop)
            .buffer(buffers.normaliser)
            .buffer(buffers.first_bad)
            .u32(samples as u32)
            .u32(u32::from(kind == Loss::Mse));
        stream.launch(&self.samples, Grid::over(samples, THREADS, THREADS), &arguments)?;
        stream.launch(&self.sum, Grid::over(1, 1, SUM_THREADS), &arguments)
    }
}
