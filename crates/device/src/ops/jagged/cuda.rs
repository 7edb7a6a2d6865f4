//! Launches of the operations on bags. Between two such launches, a scan converts lengths to
//! offsets.

use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};
use crate::ops::prefix_sum::cuda::{PrefixSum, ScanArguments, SumWidth};

/// The CUDA source of the jagged kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/jagged/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;

/// Bags on the device: u64 offsets `[bags + 1]`, u64 ids, and optional f32 weights.
#[derive(Clone, Copy, Debug)]
pub struct Bags<'a> {
    /// Offsets of the bags, u64 `[bags + 1]`.
    pub offsets: &'a Buffer,
    /// Ids of all bags, u64 `[nnz]`.
    pub ids: &'a Buffer,
    /// Weights of the ids, f32 `[nnz]`.
    pub weights: Option<&'a Buffer>,
}

/// Buffers for computing offsets: the u32 lengths `[bags]` and the scratch memory of the scan.
#[derive(Clone, Copy, Debug)]
pub struct Lengths<'a> {
    /// Lengths of the bags, u32 `[bags]`, overwritten.
    pub lengths: &'a Buffer,
    /// Scratch memory of [`crate::ops::prefix_sum::cuda::scratch_bytes`] bytes.
    pub scratch: &'a Buffer,
}

/// Arguments of [`Jagged::bucketise`], which splits ids by the rank that owns their rows.
#[derive(Clone, Copy, Debug)]
pub struct Bucketise<'a> {
    /// Number of rows per shard, one u64 for each key.
    pub blocks: &'a Buffer,
    /// Previous position of each id, u32 `[nnz]`, overwritten.
    pub positions: &'a Buffer,
    pub features: usize,
    pub batch_size: usize,
    pub shards: usize,
}

/// Arguments of [`Jagged::regroup`]: the columns of `from` that are moved, and their place in
/// `to`.
#[derive(Clone, Copy, Debug)]
pub struct Regroup {
    /// Number of rows of both matrices.
    pub rows: usize,
    pub columns: usize,
    /// Width of the source matrix, and its first column that is moved.
    pub from: [usize; 2],
    /// Width of the target matrix, and the first column that is written.
    pub to: [usize; 2],
    /// Whether the columns overwrite the target or are added to it.
    pub mode: RegroupMode,
}

/// The effect of a regroup on the values of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegroupMode {
    /// Overwrites the values, which concatenates split columns.
    Copy,
    /// Adds to the values, which sums partial sums of split rows.
    Add,
}

/// The jagged kernels, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct Jagged {
    permute: [Kernel; 2],
    bucketise: [Kernel; 2],
    regroup: Kernel,
    prefix_sum: PrefixSum,
}

impl Jagged {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self {
            permute: [module.kernel("permute_lengths")?, module.kernel("permute_ids")?],
            bucketise: [module.kernel("bucketise_lengths")?, module.kernel("bucketise_ids")?],
            regroup: module.kernel("regroup")?,
            prefix_sum: PrefixSum::load(driver)?,
        })
    }

    /// Converts the lengths of `bags` bags to offsets, which end with the total.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn offsets(
        &self,
        stream: &Stream,
        Lengths { lengths, scratch }: Lengths<'_>,
        offsets: &Buffer,
        bags: usize,
    ) -> Result<(), DriverError> {
        let total = offsets.address() + (bags * size_of::<u64>()) as u64;
        let sums = SumWidth::U64;
        let scan =
            ScanArguments { values: lengths, out: offsets, scratch, total, count: bags, sums };
        self.prefix_sum.launch(stream, &scan)
    }

    /// Reorders bags: bag `i` of `to` is bag `sources[i]` of `from`, where `sources` is u32
    /// `[bags]`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn permute(
        &self,
        stream: &Stream,
        sources: &Buffer,
        bags: usize,
        [from, to]: [Bags<'_>; 2],
        lengths: Lengths<'_>,
    ) -> Result<(), DriverError> {
        let arguments = KernelArguments::new()
            .buffer(sources)
            .buffer(from.offsets)
            .buffer(from.ids)
            .optional(from.weights)
            .buffer(lengths.lengths)
            .buffer(to.offsets)
            .buffer(to.ids)
            .optional(to.weights)
            .u32(bags as u32)
            .u32(0);
        let grid = Grid::over(bags, THREADS, THREADS);
        stream.launch(&self.permute[0], grid, &arguments)?;
        self.offsets(stream, lengths, to.offsets, bags)?;
        stream.launch(&self.permute[1], grid, &arguments)
    }

    /// Groups the ids of `from` by the shard that holds their rows. `to` has bags `[shards, F,
    /// B]`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn bucketise(
        &self,
        stream: &Stream,
        arguments: Bucketise<'_>,
        [from, to]: [Bags<'_>; 2],
        lengths: Lengths<'_>,
    ) -> Result<(), DriverError> {
        let Bucketise { blocks, positions, features, batch_size, shards } = arguments;
        let bags = features * batch_size * shards;
        let arguments = KernelArguments::new()
            .buffer(from.offsets)
            .buffer(from.ids)
            .optional(from.weights)
            .buffer(blocks)
            .buffer(lengths.lengths)
            .buffer(to.offsets)
            .buffer(to.ids)
            .optional(to.weights)
            .buffer(positions)
            .u32(features as u32)
            .u32(batch_size as u32)
            .u32(shards as u32)
            .u32(0);
        let grid = Grid::over(bags, THREADS, THREADS);
        stream.launch(&self.bucketise[0], grid, &arguments)?;
        self.offsets(stream, lengths, to.offsets, bags)?;
        stream.launch(&self.bucketise[1], grid, &arguments)
    }

    /// Copies or adds columns of one row-major f32 matrix to another matrix.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn regroup(
        &self,
        stream: &Stream,
        regroup: Regroup,
        [from, to]: [&Buffer; 2],
    ) -> Result<(), DriverError> {
        let Regroup { rows, columns, from: [from_width, from_column], to: place, mode } = regroup;
        let arguments = KernelArguments::new()
            .buffer(from)
            .buffer(to)
            .u32(rows as u32)
            .u32(columns as u32)
            .u32(from_width as u32)
            .u32(place[0] as u32)
            .u32(from_column as u32)
            .u32(place[1] as u32)
            .u32(u32::from(mode == RegroupMode::Add))
            .u32(0);
        let grid = Grid::over(rows * columns, THREADS, THREADS);
        stream.launch(&self.regroup, grid, &arguments)
    }
}
