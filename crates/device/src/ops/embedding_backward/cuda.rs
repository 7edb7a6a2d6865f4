//! Launches of the embedding backward pass and update on a GPU: pairs, sort, heads, partial sums,
//! update.
//!
//! The number and the shapes of the launches depend only on the tables and on the capacity for
//! ids, so every step launches the same sequence. Kernels read the actual numbers of ids and rows
//! from device memory.

use super::IDS_PER_PART;
use super::numbering::bits_below;
use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};
use crate::ops::embedding_forward::cuda::{DeviceLookup, IDS_LIMIT};
use crate::ops::prefix_sum::cuda::{PrefixSum, ScanArguments, SumWidth, scratch_bytes};

/// The CUDA source of the embedding backward kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/embedding_backward/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;
const WARP: u32 = 32;
/// Warps of an update block. Each warp keeps two vectors of the widest table in shared memory.
const UPDATE_WARPS: u32 = 4;
/// Rows that one warp updates. The value must equal `ROWS_PER_WARP` in the kernel.
const ROWS_PER_WARP: usize = 8;
/// If the vectors fit in this much shared memory, an update block has [`UPDATE_WARPS`] warps;
/// otherwise it has one.
const SHARED_BYTES: usize = 48 << 10;
/// Number of bits in a digit of the radix sort.
const DIGIT_BITS: u32 = 8;
const PAIRS_PER_TILE: usize = 2048;

/// The sizes that determine the launches and their buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceShape {
    /// Number of ids in the largest batch, at most [`IDS_LIMIT`].
    pub capacity: usize,
    /// Number of rows of all tiles together.
    pub rows: usize,
    pub tiles: usize,
    /// Number of columns of the widest tile.
    pub widest: usize,
    /// Number of elements of the largest gradient.
    pub gradient: usize,
    /// Whether ids have weights or bags have scales.
    pub factors: super::Factors,
}

/// Device buffers that every call of the update reuses.
#[derive(Debug)]
pub struct Workspace {
    shape: WorkspaceShape,
    /// Two buffers of u64 `[capacity]`, between which the sort alternates.
    pairs: [Buffer; 2],
    sources: Option<Buffer>,
    counts: Buffer,
    /// Flags that mark the first pair of each row, u32 `[capacity]`.
    heads: Buffer,
    indices: Buffer,
    /// Position of the first pair of each distinct row, u32 `[capacity + 1]`.
    starts: Buffer,
    /// Number of distinct rows of the last call, u32 `[1]`.
    unique: Buffer,
    partials: Buffer,
    scratch: Buffer,
}

impl Workspace {
    /// Allocates the buffers of a workspace for batches of this shape.
    ///
    /// # Errors
    /// Fails with [`DriverError::Extent`] if a pair does not fit in 64 bits or a row does not fit
    /// in shared memory. Fails with [`DriverError::OutOfMemory`] if the device has too little
    /// free memory.
    pub fn new(driver: &Driver, shape: WorkspaceShape) -> Result<Self, DriverError> {
        let extent = |what, expected, got| {
            let of = "embedding_backward".to_owned();
            if got <= expected {
                Ok(())
            } else {
                Err(DriverError::Extent { of, what, expected, got })
            }
        };
        let bits = bits_below(shape.rows) + shape.payload_bits();
        extent("bits of a row number and a place in the gradient, at most", 64, bits as usize)?;
        // Even a block of one warp keeps two vectors of the widest tile in shared memory.
        let widest =
            driver.shared_limit() / WorkspaceShape { widest: 1, ..shape }.shared_bytes_of_row();
        extent("columns of a tile, at most", widest, shape.widest)?;
        extent("ids of a batch, at most", IDS_LIMIT, shape.capacity)?;
        let [pairs, sources, counts, heads, starts, partials, scratch] = shape.bytes();
        Ok(Self {
            shape,
            pairs: [driver.alloc(pairs)?, driver.alloc(pairs)?],
            sources: match shape.factors {
                super::Factors::Absent => None,
                super::Factors::Present => Some(driver.alloc(sources)?),
            },
            counts: driver.alloc(counts)?,
            heads: driver.alloc(heads)?,
            indices: driver.alloc(heads)?,
            starts: driver.alloc(starts)?,
            unique: driver.alloc(size_of::<u32>())?,
            partials: driver.alloc(partials)?,
            scratch: driver.alloc(scratch)?,
        })
    }

    /// Returns the buffer for pairs that are not sorted on the device, and that of their number,
    /// u64 `[1]`.
    #[must_use]
    pub fn row_pairs(&self) -> (&Buffer, &Buffer) {
        (&self.pairs[0], &self.pairs[1])
    }

    /// Returns the number of distinct rows of the last launch, u32 `[1]`.
    #[must_use]
    pub fn unique(&self) -> &Buffer {
        &self.unique
    }

    /// Returns the total number of bytes of a workspace.
    #[must_use]
    pub fn bytes(shape: &WorkspaceShape) -> usize {
        let [pairs, sources, counts, heads, starts, partials, scratch] = shape.bytes();
        let sources = if shape.factors == super::Factors::Present { sources } else { 0 };
        2 * pairs + sources + counts + 2 * heads + size_of::<u32>() + starts + partials + scratch
    }
}

impl WorkspaceShape {
    /// Returns the bytes of each buffer: pairs, sources, counts, heads, starts, partial sums, and
    /// the scratch of the scans.
    fn bytes(&self) -> [usize; 7] {
        let capacity = self.capacity.max(1);
        let counts = (1 << DIGIT_BITS) * capacity.div_ceil(PAIRS_PER_TILE);
        [
            capacity * size_of::<u64>(),
            capacity * 2 * size_of::<u64>(),
            counts * size_of::<u32>(),
            capacity * size_of::<u32>(),
            (capacity + 1) * size_of::<u32>(),
            2 * capacity.div_ceil(IDS_PER_PART) * self.widest * size_of::<f32>(),
            scratch_bytes(counts.max(capacity)),
        ]
    }

    /// Returns the bytes of shared memory of a warp that updates rows: two vectors of the widest
    /// table.
    fn shared_bytes_of_row(&self) -> usize {
        2 * self.widest * size_of::<f32>()
    }

    /// Returns the number of low bits of a pair that hold the place of a gradient.
    #[must_use]
    pub fn payload_bits(&self) -> u32 {
        let payloads = match self.factors {
            super::Factors::Absent => self.gradient,
            super::Factors::Present => self.capacity,
        };
        bits_below(payloads)
    }
}

/// The device buffers of one call of the update, except those of the batch.
#[derive(Clone, Copy, Debug)]
pub struct DeviceGradient<'a> {
    /// Gradient of the forward pass's output, in f32.
    pub gradient: &'a Buffer,
    /// The update rule with this step's constants, written by [`crate::optimizer::device_block`].
    pub rule: &'a Buffer,
    /// Lowest position whose id is out of range, u64 `[1]`. If there is one, no row is updated.
    pub first_bad: &'a Buffer,
    /// Flag that stops updates, u32 `[1]`. The update is skipped unless the flag is 0.
    pub stop: &'a Buffer,
    /// Totals to which each call adds, u64 `[3]`: the number of updated rows, the sum of their
    /// columns, and the bytes of their weights.
    pub updated: &'a Buffer,
}

/// The part of an update that a launch carries out, see [`super::update::RowForm`].
#[derive(Clone, Copy, Debug)]
pub enum RowPart<'a> {
    Update,
    /// Writes the sums, f32 `[rows, widest]`.
    Sums(&'a Buffer),
    /// Writes the terms, f32 `[rows, 2]`.
    Terms(&'a Buffer),
    /// Reads the terms of whole rows, f32 `[rows, 2]`.
    Finish(&'a Buffer),
}

/// Pairs in row order on the device: those of a batch after its sort, or one per given row.
#[derive(Clone, Copy, Debug)]
struct SortedPairs<'a> {
    pairs: &'a Buffer,
    /// Address of the number of pairs, u64 `[1]`.
    count: u64,
    /// The tiles, encoded by [`crate::ops::embedding_forward::cuda::tile_bytes`].
    tiles: &'a Buffer,
}

/// The embedding backward kernels, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct EmbeddingBackward {
    pairs: Kernel,
    count: Kernel,
    scatter: Kernel,
    heads: Kernel,
    starts: Kernel,
    partials: Kernel,
    updated: Kernel,
    update: Kernel,
    sums: Kernel,
    terms: Kernel,
    finish: Kernel,
    prefix_sum: PrefixSum,
}

impl EmbeddingBackward {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        let module = driver.module(SOURCE)?;
        Ok(Self {
            pairs: module.kernel("embedding_backward_pairs")?,
            count: module.kernel("sort_count")?,
            scatter: module.kernel("sort_scatter")?,
            heads: module.kernel("embedding_backward_heads")?,
            starts: module.kernel("embedding_backward_starts")?,
            partials: module.kernel("embedding_backward_partials")?,
            updated: module.kernel("embedding_backward_updated")?,
            update: module.kernel("embedding_backward_update")?,
            sums: module.kernel("embedding_backward_sums")?,
            terms: module.kernel("embedding_backward_terms")?,
            finish: module.kernel("embedding_backward_finish")?,
            prefix_sum: PrefixSum::load(driver)?,
        })
    }

    /// Updates the rows of a batch, like [`super::run`], on the device. The batch must not have
    /// more ids than the workspace.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn launch(
        &self,
        stream: &Stream,
        lookup: &DeviceLookup<'_>,
        gradient: &DeviceGradient<'_>,
        workspace: &Workspace,
    ) -> Result<(), DriverError> {
        let sorted = self.sort_ids(stream, lookup, gradient, workspace)?;
        self.run(stream, sorted, gradient, workspace, RowPart::Update)
    }

    /// Sums the gradients of the rows of a batch, like [`super::sum_rows`], and writes them to
    /// `sums`. Returns the buffer of the pairs in row order.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn launch_sums<'a>(
        &self,
        stream: &Stream,
        lookup: &'a DeviceLookup<'_>,
        gradient: &DeviceGradient<'_>,
        workspace: &'a Workspace,
        sums: &Buffer,
    ) -> Result<&'a Buffer, DriverError> {
        let sorted = self.sort_ids(stream, lookup, gradient, workspace)?;
        self.run(stream, sorted, gradient, workspace, RowPart::Sums(sums))?;
        Ok(sorted.pairs)
    }

    /// Carries out a part of the update of rows, one for each of the pairs that were written to
    /// [`Workspace::row_pairs`].
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn launch_rows(
        &self,
        stream: &Stream,
        tiles: &Buffer,
        gradient: &DeviceGradient<'_>,
        workspace: &Workspace,
        part: RowPart<'_>,
    ) -> Result<(), DriverError> {
        let (pairs, count) = workspace.row_pairs();
        let sorted = SortedPairs { pairs, count: count.address(), tiles };
        self.run(stream, sorted, gradient, workspace, part)
    }

    /// Writes the pairs of a batch and sorts them by row.
    fn sort_ids<'a>(
        &self,
        stream: &Stream,
        lookup: &'a DeviceLookup<'_>,
        gradient: &DeviceGradient<'_>,
        workspace: &'a Workspace,
    ) -> Result<SortedPairs<'a>, DriverError> {
        let Workspace { shape, pairs, .. } = workspace;
        let (capacity, payload_bits) = (shape.capacity, shape.payload_bits());
        let bags = lookup.features * lookup.batch_size;
        // The last offset of the batch equals its number of ids, so kernels read the count from
        // there.
        let count = lookup.offsets.address() + (bags * size_of::<u64>()) as u64;
        let per_id = Grid::over(capacity, THREADS, THREADS);
        let arguments = KernelArguments::new()
            .buffer(lookup.tiles)
            .buffer(lookup.slots)
            .buffer(lookup.ids)
            .buffer(lookup.offsets)
            .optional(lookup.weights)
            .optional(lookup.bag_scales)
            .optional(workspace.sources.as_ref())
            .buffer(&pairs[0])
            .buffer(gradient.first_bad)
            .u32(lookup.features as u32)
            .u32(lookup.batch_size as u32)
            .u32(payload_bits)
            .u32(u32::from(lookup.id_bytes == size_of::<u64>()));
        stream.launch(&self.pairs, per_id, &arguments)?;
        let pairs = &pairs[self.sort(stream, workspace, count)?];
        Ok(SortedPairs { pairs, count, tiles: lookup.tiles })
    }

    /// Finds the distinct rows of sorted pairs, and carries out a part of their update.
    fn run(
        &self,
        stream: &Stream,
        sorted: SortedPairs<'_>,
        gradient: &DeviceGradient<'_>,
        workspace: &Workspace,
        part: RowPart<'_>,
    ) -> Result<(), DriverError> {
        let Workspace { shape, heads, indices, starts, unique, scratch, .. } = workspace;
        let (capacity, payload_bits) = (shape.capacity, shape.payload_bits());
        let per_id = Grid::over(capacity, THREADS, THREADS);
        let SortedPairs { pairs, count, tiles } = sorted;
        let arguments = KernelArguments::new()
            .buffer(pairs)
            .u64(count)
            .buffer(heads)
            .buffer(indices)
            .buffer(unique)
            .buffer(starts)
            .count(capacity)
            .u32(payload_bits);
        stream.launch(&self.heads, per_id, &arguments)?;
        let scan = ScanArguments {
            values: heads,
            out: indices,
            scratch,
            total: unique.address(),
            count: capacity,
            sums: SumWidth::U32,
        };
        self.prefix_sum.launch(stream, &scan)?;
        // At least one thread must run, because it writes the end of the last row, or records
        // that the batch has no rows.
        stream.launch(&self.starts, Grid::over(capacity.max(1), THREADS, THREADS), &arguments)?;
        if matches!(part, RowPart::Update | RowPart::Finish(_)) {
            let arguments = KernelArguments::new()
                .buffer(tiles)
                .buffer(pairs)
                .buffer(indices)
                .buffer(unique)
                .u64(count)
                .buffer(gradient.first_bad)
                .buffer(gradient.stop)
                .buffer(gradient.updated)
                .u32(shape.tiles as u32)
                .u32(payload_bits);
            stream.launch(
                &self.updated,
                Grid::over(shape.tiles, THREADS / WARP, THREADS),
                &arguments,
            )?;
        }
        self.update(stream, sorted, gradient, workspace, part)
    }

    /// Sorts the pairs by row and returns the index of the buffer that holds the result.
    fn sort(
        &self,
        stream: &Stream,
        workspace: &Workspace,
        count: u64,
    ) -> Result<usize, DriverError> {
        let Workspace { shape, pairs, counts, scratch, .. } = workspace;
        let tiles = shape.capacity.div_ceil(PAIRS_PER_TILE);
        let grid = Grid::over(tiles, 1, THREADS);
        let passes = bits_below(shape.rows).div_ceil(DIGIT_BITS);
        // Each pass reads the pairs from one buffer and writes them to the other.
        for pass in 0..passes {
            let from = pass as usize % 2;
            let arguments = KernelArguments::new()
                .buffer(&pairs[from])
                .buffer(&pairs[1 - from])
                .buffer(counts)
                .u64(count)
                .u32(shape.payload_bits() + pass * DIGIT_BITS)
                .u32(tiles as u32);
            stream.launch(&self.count, grid, &arguments)?;
            let scan = ScanArguments {
                values: counts,
                out: counts,
                scratch,
                total: 0,
                count: tiles << DIGIT_BITS,
                sums: SumWidth::U32,
            };
            self.prefix_sum.launch(stream, &scan)?;
            stream.launch(&self.scatter, grid, &arguments)?;
        }
        Ok(passes as usize % 2)
    }

    fn update(
        &self,
        stream: &Stream,
        SortedPairs { pairs, count, tiles }: SortedPairs<'_>,
        gradient: &DeviceGradient<'_>,
        workspace: &Workspace,
        part: RowPart<'_>,
    ) -> Result<(), DriverError> {
        let Workspace { shape, heads, indices, starts, unique, partials, .. } = workspace;
        let (kernel, rows) = match part {
            RowPart::Update => (&self.update, None),
            RowPart::Sums(sums) => (&self.sums, Some(sums)),
            RowPart::Terms(terms) => (&self.terms, Some(terms)),
            RowPart::Finish(terms) => (&self.finish, Some(terms)),
        };
        let arguments = KernelArguments::new()
            .buffer(tiles)
            .buffer(gradient.rule)
            .buffer(pairs)
            .optional(workspace.sources.as_ref())
            .buffer(gradient.gradient)
            .buffer(starts)
            .buffer(unique)
            .buffer(heads)
            .buffer(indices)
            .u64(count)
            .buffer(partials)
            .buffer(gradient.first_bad)
            .buffer(gradient.stop)
            .optional(rows)
            .u32(shape.tiles as u32)
            .u32(shape.payload_bits())
            .u32(shape.widest as u32)
            .u32(0);
        let threads = UPDATE_WARPS * WARP;
        let places = 2 * shape.capacity.div_ceil(IDS_PER_PART);
        stream.launch(&self.partials, Grid::over(places, UPDATE_WARPS, threads), &arguments)?;
        let row_bytes = shape.shared_bytes_of_row();
        // Long rows use blocks of one warp, because a multiprocessor can run more of such blocks
        // at once.
        let is_wide = row_bytes * UPDATE_WARPS as usize > SHARED_BYTES;
        let warps = if is_wide { 1 } else { UPDATE_WARPS };
        // The number of distinct rows is at most the number of ids, and at most the number of all
        // rows.
        let warps_needed = shape.capacity.min(shape.rows).div_ceil(ROWS_PER_WARP);
        let grid = Grid::over(warps_needed, warps, warps * WARP);
        let grid = Grid { shared_bytes: warps as usize * row_bytes, ..grid };
        stream.launch(kernel, grid, &arguments)
    }
}
