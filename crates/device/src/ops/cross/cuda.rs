//! Launches of the cross layer's element-wise kernels on a GPU, on row-major matrices.

use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};

/// The CUDA source of the cross kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/cross/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;

/// The cross kernels, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct Cross {
    forward: Kernel,
    backward: Kernel,
}

/// Arguments of [`Cross::forward`]. All matrices are f32 `[B, N]`, and `bias` is `[N]`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceForward<'a> {
    /// Input of the first cross layer.
    pub x0: &'a Buffer,
    /// The product `W (V x)` without bias.
    pub u: &'a Buffer,
    pub bias: &'a Buffer,
    /// Input of this cross layer.
    pub x: &'a Buffer,
    pub out: &'a Buffer,
}

/// Arguments of [`Cross::backward`]. All matrices are f32 `[B, N]`, and `bias` is `[N]`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBackward<'a> {
    /// Input of the first cross layer.
    pub x0: &'a Buffer,
    /// The product `W (V x)` without bias.
    pub u: &'a Buffer,
    pub bias: &'a Buffer,
    /// Gradient of the layer's output.
    pub d_out: &'a Buffer,
    /// Gradient of `u`, overwritten. The column sums of this matrix are the gradient of the bias.
    pub d_u: &'a Buffer,
    /// Gradient of `x0`, to which the layer's part is added.
    pub d_x0: &'a Buffer,
    /// Gradient of `x` along the residual path, without the part through `u`, overwritten.
    pub d_x: &'a Buffer,
}

impl Cross {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self {
            forward: module.kernel("cross_forward")?,
            backward: module.kernel("cross_backward")?,
        })
    }

    /// Computes the layer's output, `out = x0 ⊙ (u + bias) + x`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn forward(
        &self,
        stream: &Stream,
        [rows, columns]: [usize; 2],
        DeviceForward { x0, u, bias, x, out }: DeviceForward<'_>,
    ) -> Result<(), DriverError> {
        let arguments =
            [x0, u, bias, x, out].into_iter().fold(KernelArguments::new(), KernelArguments::buffer);
        let arguments = (0..4).fold(arguments, |arguments, _| arguments.u64(0));
        launch(stream, &self.forward, [rows, columns], arguments)
    }

    /// Computes the gradients `d_u = d_out ⊙ x0`, `d_x0 += d_out ⊙ (u + bias)` and `d_x = d_out`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn backward(
        &self,
        stream: &Stream,
        [rows, columns]: [usize; 2],
        DeviceBackward { x0, u, bias, d_out, d_u, d_x0, d_x }: DeviceBackward<'_>,
    ) -> Result<(), DriverError> {
        let arguments =
            [x0, u, bias].into_iter().fold(KernelArguments::new(), KernelArguments::buffer);
        let arguments = arguments.u64(0).u64(0);
        let arguments =
            [d_out, d_u, d_x0, d_x].into_iter().fold(arguments, KernelArguments::buffer);
        launch(stream, &self.backward, [rows, columns], arguments)
    }
}

fn launch(
    stream: &Stream,
    kernel: &Kernel,
    [rows, columns]: [usize; 2],
    arguments: KernelArguments,
) -> Result<(), DriverError> {
    let elements = rows * columns;
    let arguments = arguments.count(elements).u32(columns as u32).u32(0);
    stream.launch(kernel, Grid::over(elements, THREADS, THREADS), &arguments)
}
