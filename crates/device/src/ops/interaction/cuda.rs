//! The launches of the dot interaction on a GPU, on row-major matrices.

use schema::TriangleOrder;

use super::Shape;
use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};

/// The kernels.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/interaction/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;

/// The loaded kernels.
#[derive(Clone, Debug)]
pub struct Interaction {
    forward: Kernel,
    backward: Kernel,
}

impl Interaction {
    /// Compiles and loads.
    ///
    /// # Errors
    /// As [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self {
            forward: module.kernel("interaction_forward")?,
            backward: module.kernel("interaction_backward")?,
        })
    }

    /// [`super::scalar::forward`] on the device: `pooled` `[B, F·D]`, `out` `[B, width]`, `dense`
    /// `[B, D]` where the shape has it.
    ///
    /// # Errors
    /// As [`Stream::launch`], also where a sample's vectors exceed shared memory.
    pub fn forward(
        &self,
        stream: &Stream,
        shape: &Shape,
        dense: Option<&Buffer>,
        pooled: &Buffer,
        out: &Buffer,
    ) -> Result<(), DriverError> {
        let matrices =
            KernelArguments::new().optional(dense).buffer(pooled).buffer(out).u64(0).u64(0);
        launch(stream, &self.forward, shape, matrices)
    }

    /// [`super::scalar::backward`] on the device; gradients of `dense` and `pooled` are
    /// overwritten.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn backward(
        &self,
        stream: &Stream,
        shape: &Shape,
        dense: Option<&Buffer>,
        pooled: &Buffer,
        d_out: &Buffer,
        d_dense: Option<&Buffer>,
        d_pooled: &Buffer,
    ) -> Result<(), DriverError> {
        let matrices = KernelArguments::new()
            .optional(dense)
            .buffer(pooled)
            .buffer(d_out)
            .optional(d_dense)
            .buffer(d_pooled);
        launch(stream, &self.backward, shape, matrices)
    }
}

fn launch(
    stream: &Stream,
    kernel: &Kernel,
    shape: &Shape,
    matrices: KernelArguments,
) -> Result<(), DriverError> {
    let arguments = matrices
        .u32(shape.b as u32)
        .u32(shape.features as u32)
        .u32(shape.dim as u32)
        .u32(shape.width() as u32)
        .u32(u32::from(shape.dense))
        .u32(u32::from(shape.order == TriangleOrder::Upper))
        .u32(u32::from(shape.itself))
        .u32(0);
    let shared_bytes = (shape.vectors() * (shape.dim + 1) * size_of::<f32>()) as u32;
    stream.launch(kernel, Grid { shared_bytes, ..Grid::over(shape.b, 1, THREADS) }, &arguments)
}
