//! Launches of the exclusive sums on a GPU. The sums need three kernels, because a block must not
//! wait for another block.

use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};

/// The CUDA source of the prefix sum kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/prefix_sum/kernel.cu", text: include_str!("kernel.cu") };
/// Number of values per block, which equals the number of threads per block.
const THREADS: u32 = 1024;

/// The prefix sum kernels, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct PrefixSum {
    kernels: [(Kernel, bool); 3],
}

/// Number format of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumWidth {
    /// Takes 4 bytes per value, which the total must fit.
    U32,
    /// Takes 8 bytes per value.
    U64,
}

/// Arguments of [`PrefixSum::launch`], whose buffers are on the device.
#[derive(Debug)]
pub struct ScanArguments<'a> {
    /// Values to sum, u32 `[count]`.
    pub values: &'a Buffer,
    /// Exclusive sums, `[count]`, overwritten. The buffer may be `values` itself if the sums are
    /// u32.
    pub out: &'a Buffer,
    /// Scratch memory of [`scratch_bytes`] bytes.
    pub scratch: &'a Buffer,
    /// Address for the total sum, or 0 if the caller does not need it.
    pub total: u64,
    pub count: usize,
    /// Number format of `out` and `total`.
    pub sums: SumWidth,
}

/// Returns the bytes of scratch memory for `count` values.
#[must_use]
pub fn scratch_bytes(count: usize) -> usize {
    count.div_ceil(THREADS as usize).max(1) * size_of::<u64>()
}

impl PrefixSum {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        let kernels = [
            (module.kernel("prefix_sum_sums")?, false),
            (module.kernel("prefix_sum_blocks")?, true),
            (module.kernel("prefix_sum_write")?, false),
        ];
        Ok(Self { kernels })
    }

    /// Computes exclusive sums, `out[i] = Σ_{j<i} values[j]`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
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
