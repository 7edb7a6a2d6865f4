//! Launches of the dense update kernels on a GPU, on row-major parameters.

use schema::{Granularity, Optimizer};

use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};
use crate::optimizer::lamb;

/// The CUDA source of the dense update kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/dense_update/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;
const ROWS_PER_BLOCK: u32 = 4;
const LAMB_THREADS: u32 = 512;

/// A dense parameter on the device, with its gradient and its optimizer state.
#[derive(Clone, Copy, Debug)]
pub struct DeviceParameter<'a> {
    /// The kind of the update rule in `rule`.
    pub kind: Optimizer,
    /// The update rule with this step's constants, written by [`crate::optimizer::device_block`].
    pub rule: &'a Buffer,
    /// Parameter values, f32 `[rows, dim]`, updated in place.
    pub weights: &'a Buffer,
    /// Gradient of the parameter, f32 `[rows, dim]`.
    pub gradient: &'a Buffer,
    /// Optimizer state in f32, laid out like [`super::DenseUpdate::state`], or `None` if the rule
    /// has no state.
    pub state: Option<&'a Buffer>,
    /// Flag that stops updates, u32 `[1]`. The update is skipped unless the flag is 0.
    pub stop: &'a Buffer,
    pub elements: usize,
    /// Number of elements per row.
    pub dim: usize,
    /// Scratch memory of [`scratch_bytes`] bytes for LAMB. Other rules use no scratch memory.
    pub scratch: Option<&'a Buffer>,
}

/// Returns the bytes of LAMB's scratch memory for a parameter: the sums of squares per block,
/// then the ratio.
#[must_use]
pub fn scratch_bytes(elements: usize) -> usize {
    (2 * elements.div_ceil(lamb::BLOCK) + 1) * size_of::<f32>()
}

/// The dense update kernels, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct DenseUpdate {
    elements: Kernel,
    rows: Kernel,
    moments: Kernel,
    ratio: Kernel,
    apply: Kernel,
}

impl DenseUpdate {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self {
            elements: module.kernel("dense_update")?,
            rows: module.kernel("dense_update_rows")?,
            moments: module.kernel("dense_update_moments")?,
            ratio: module.kernel("dense_update_ratio")?,
            apply: module.kernel("dense_update_apply")?,
        })
    }

    /// Applies the update rule to a parameter, like [`super::scalar::update`], on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn launch(
        &self,
        stream: &Stream,
        parameter: &DeviceParameter<'_>,
    ) -> Result<(), DriverError> {
        let DeviceParameter { elements, dim, .. } = *parameter;
        let first = parameter.state.map_or(0, Buffer::address);
        let second = first + (elements * size_of::<f32>()) as u64;
        let blocks = elements.div_ceil(lamb::BLOCK);
        let squares = parameter.scratch.map_or(0, Buffer::address);
        let ratio = squares + (2 * blocks * size_of::<f32>()) as u64;
        let arguments = KernelArguments::new()
            .buffer(parameter.rule)
            .buffer(parameter.weights)
            .buffer(parameter.gradient)
            .u64(first)
            .u64(second)
            .buffer(parameter.stop)
            .count(elements)
            .count(dim)
            .u64(squares)
            .u64(ratio);
        let per_element = Grid::over(elements, THREADS, THREADS);
        match parameter.kind.granularity() {
            Granularity::Row => {
                let rows = elements.checked_div(dim).unwrap_or(0);
                let grid = Grid::over(rows, ROWS_PER_BLOCK, ROWS_PER_BLOCK * 32);
                stream.launch(&self.rows, grid, &arguments)
            }
            Granularity::Tensor => {
                let grid = Grid::over(blocks, 1, LAMB_THREADS);
                stream.launch(&self.moments, grid, &arguments)?;
                stream.launch(&self.ratio, Grid::over(1, 1, 32), &arguments)?;
                stream.launch(&self.apply, per_element, &arguments)
            }
            Granularity::Element => stream.launch(&self.elements, per_element, &arguments),
        }
    }
}
