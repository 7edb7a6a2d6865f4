//! Launches of the exclusive sums. They need three kernels, because a block must not wait for
//! another one.

use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};

/// The CUDA source of the prefix sum kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/prefix_sum/kernel.cu", text: include_str!("kernel.cu") };
/// Numbers per block, and threads per block.
const THREADS: u32 = 1024;

/// The prefix sum kernels, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct PrefixSum {
    kernels: [(Kernel, bool); 3],
}

/// Format of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumWidth {
    /// Takes 4 bytes; the total must fit.
    U32,
    /// Takes 8 bytes per value.
    U64,
}

/// Arguments of [`PrefixSum::launch`], all buffers on the device.
#[derive(Debug)]
pub struct ScanArguments<'a> {
    /// u32 `[count]`.
    pub values: &'a Buffer,
    /// `[count]`, overwritten. May be `values` if the sums are u32.
    pub out: &'a Buffer,
    /// Has [`scratch_bytes`] bytes.
    pub scratch: &'a Buffer,
    /// Address for the total sum; 0 if the caller does not need it.
    pub total: u64,
    pub count: usize,
    /// Format of `out` and `total`.
    pub sums: SumWidth,
}

/// Bytes of the scratch for `count` numbers.
#[must_use]
pub fn scratch_bytes(count: usize) -> usize {
    count.div_ceil(THREADS as usize).max(1) * size_of::<u64>()
}

impl PrefixSum {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// As [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        let kernels = [
            (module.kernel("prefix_sum_sums")?, false),
            (module.kernel("prefix_sum_blocks")?, true),
            (module.kernel("prefix_sum_write")?, false),
        ];
        Ok(Self { kernels })
    }

    /// `out[i] = Σ_{j<i} values[j]`.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub fn launch(&self, stream: &Stream, scan: &ScanArguments<'_>) -> Result<(), DriverError> {
        let arguments = KernelArguments::new()
            .buffer(scan.values)
            .buffer(scan.out)
            .buffer(scan.scratch)
            .u64(scan.total)
            .count(scan.count)
            .u32(u32::from(scan.sums == SumWidth::U64))
            .u32(0);
        for (kernel, is_one_block) in &self.kernels {
            let items = if *is_one_block { 1 } else { scan.count };
            stream.launch(kernel, Grid::over(items, THREADS, THREADS), &arguments)?;
        }
        Ok(())
    }
}
