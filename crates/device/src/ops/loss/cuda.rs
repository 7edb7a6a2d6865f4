//! Launches of the loss on a GPU. The sum of the losses stays on the device.

use schema::Loss;

use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};

/// The CUDA source of the loss kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/loss/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;
const SUM_THREADS: u32 = 128;

/// Arguments of [`DeviceLoss::launch`], all buffers on the device.
#[derive(Clone, Copy, Debug)]
pub struct LossBuffers<'a> {
    /// f32 `[B]`.
    pub logits: &'a Buffer,
    /// f32 `[B]`.
    pub labels: &'a Buffer,
    /// f32 `[B]`, overwritten.
    pub gradient: &'a Buffer,
    /// f32 `[B]`, overwritten.
    pub probabilities: &'a Buffer,
    /// f64 `[B]`, overwritten: the loss of each sample.
    pub losses: &'a Buffer,
    /// f64 `[1]`, overwritten: the undivided sum of the losses.
    pub sum: &'a Buffer,
    /// u32 `[1]`: bit 0 is set if the sum is not finite, bit 1 if `first_bad` is a position.
    pub stop: &'a Buffer,
    /// f64 `[1]`: the divisor of the gradient.
    pub normaliser: &'a Buffer,
    /// u64 `[1]`: the first position with a bad id that the lookup detected.
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
    /// As [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self { samples: module.kernel("loss_samples")?, sum: module.kernel("loss_sum")? })
    }

    /// [`super::run`] on the device.
    ///
    /// # Errors
    /// As [`Stream::launch`].
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
