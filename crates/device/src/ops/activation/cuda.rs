//! Launches of the activation kernels on a GPU.

use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};
use crate::ops::gemm;

/// The CUDA source of the activation kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/activation/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;

/// The activation kernels, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct Activation {
    relu_backward: Kernel,
    sigmoid: Kernel,
    unbounded: Kernel,
    bias_relu: Kernel,
}

impl Activation {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self {
            relu_backward: module.kernel("relu_backward")?,
            sigmoid: module.kernel("sigmoid")?,
            unbounded: module.kernel("unbounded_has_none")?,
            bias_relu: module.kernel("bias_relu")?,
        })
    }

    /// Applies the gradient of ReLU in place: `d_y = 0 where y ≤ 0`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn relu_backward(
        &self,
        stream: &Stream,
        [y, d_y]: [&Buffer; 2],
        elements: usize,
    ) -> Result<(), DriverError> {
        let arguments = KernelArguments::new().buffer(y).buffer(d_y).u64(0).count(elements);
        launch(stream, &self.relu_backward, elements, arguments.u32(0).u32(0))
    }

    /// Computes `probabilities = 1 / (1 + e^−logits)` for each element.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn sigmoid(
        &self,
        stream: &Stream,
        [logits, probabilities]: [&Buffer; 2],
        elements: usize,
    ) -> Result<(), DriverError> {
        let arguments = logit_arguments([logits, probabilities], elements);
        launch(stream, &self.sigmoid, elements, arguments)
    }

    /// Sets the probability to NaN where the logit is not finite.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn unbounded_has_none(
        &self,
        stream: &Stream,
        [logits, probabilities]: [&Buffer; 2],
        elements: usize,
    ) -> Result<(), DriverError> {
        let arguments = logit_arguments([logits, probabilities], elements);
        launch(stream, &self.unbounded, elements, arguments)
    }

    /// Computes `y = y + bias` and applies the activation, in place on `y` `[B, N]`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn bias(
        &self,
        stream: &Stream,
        [y, bias]: [&Buffer; 2],
        activation: gemm::Activation,
        [rows, columns]: [usize; 2],
    ) -> Result<(), DriverError> {
        let elements = rows * columns;
        let arguments = KernelArguments::new()
            .u64(0)
            .buffer(y)
            .buffer(bias)
            .count(elements)
            .u32(columns as u32)
            .u32(u32::from(activation == gemm::Activation::Relu));
        launch(stream, &self.bias_relu, elements, arguments)
    }
}

/// Builds the arguments of a kernel that reads logits.
fn logit_arguments([logits, probabilities]: [&Buffer; 2], elements: usize) -> KernelArguments {
    KernelArguments::new().buffer(logits).buffer(probabilities).u64(0).count(elements).u32(0).u32(0)
}

fn launch(
    stream: &Stream,
    kernel: &Kernel,
    elements: usize,
    arguments: KernelArguments,
) -> Result<(), DriverError> {
    stream.launch(kernel, Grid::over(elements, THREADS, THREADS), &arguments)
}
