//! Launches of the dot interaction on a GPU, on row-major matrices.

use schema::TriangleOrder;

use super::Shape;
use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};

/// The CUDA source of the interaction kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/interaction/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;

/// The interaction kernels, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct Interaction {
    forward: Kernel,
    backward: Kernel,
}

impl Interaction {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self {
            forward: module.kernel("interaction_forward")?,
            backward: module.kernel("interaction_backward")?,
        })
    }

    /// Checks before the first step that the device can run this shape.
    ///
    /// # Errors
    /// Fails with [`DriverError::Extent`] if a sample's vectors exceed a block's shared memory.
    pub fn check(driver: &Driver, shape: &Shape) -> Result<(), DriverError> {
        let (expected, got) = (driver.shared_limit(), shared_bytes(shape));
        if got <= expected {
            return Ok(());
        }
        let of = format!("dot interaction of {} vectors x {}", shape.vectors(), shape.dim);
        let what = "bytes of shared memory of a block, at most";
        Err(DriverError::Extent { of, what, expected, got })
    }

    /// Computes the interaction of a batch, like [`super::scalar::forward`], on the device.
    /// `pooled` is `[B, F·D]`, `out` is `[B, width]`, and `dense` is `[B, D]` if the shape has
    /// it.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`], and if a sample's vectors exceed shared
    /// memory.
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

    /// Computes the gradients of `dense` and `pooled`, like [`super::scalar::backward`], on the
    /// device. The gradients are overwritten.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::forward`].
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
    let grid = Grid { shared_bytes: shared_bytes(shape), ..Grid::over(shape.b, 1, THREADS) };
    stream.launch(kernel, grid, &arguments)
}

/// Returns the bytes of a sample's vectors, each of which is padded by one element.
fn shared_bytes(shape: &Shape) -> usize {
    let elements = shape.vectors().saturating_mul(shape.dim + 1);
    elements.saturating_mul(size_of::<f32>())
}
