//! Launches of the exchange of ids, and of copies of columns. Between two launches of an exchange,
//! a scan converts lengths to offsets.

use super::IdSlot;
use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};
use crate::ops::prefix_sum::cuda::{PrefixSum, ScanArguments, SumWidth};

/// The CUDA source of the jagged kernels, compiled when they are loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/jagged/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;

/// Bags on the device. The buffers of ids have a fixed capacity, and the number of ids in them is
/// the last offset, which only the device has to know. A launch depends on the capacity, so the
/// same launches serve every batch.
#[derive(Clone, Copy, Debug)]
pub struct Bags<'a> {
    /// Offsets of the bags, u64 `[bags + 1]`.
    pub offsets: &'a Buffer,
    /// Ids of all bags, i64 `[capacity]`.
    pub ids: &'a Buffer,
    /// Weights of the ids, f32 `[capacity]`.
    pub weights: Option<&'a Buffer>,
    /// Factors of the bags, f32 `[bags]`.
    pub scales: Option<&'a Buffer>,
    /// Largest number of ids.
    pub capacity: usize,
}

/// Buffers for computing offsets: the u32 lengths `[bags]` and the scratch memory of the scan.
#[derive(Clone, Copy, Debug)]
pub struct Lengths<'a> {
    pub lengths: &'a Buffer,
    /// Scratch memory of [`crate::ops::prefix_sum::cuda::scratch_bytes`] bytes.
    pub scratch: &'a Buffer,
}

/// Arguments of [`Jagged::split`].
#[derive(Clone, Copy, Debug)]
pub struct Split<'a> {
    /// Slots in the format of [`slot_bytes`].
    pub slots: &'a Buffer,
    pub slot_count: usize,
    pub batch_size: usize,
}

/// Arguments of [`Jagged::join`].
#[derive(Clone, Copy, Debug)]
pub struct Join<'a> {
    /// Number of samples of the ranks before each rank, u32 `[ranks + 1]`.
    pub bases: &'a Buffer,
    pub ranks: usize,
    /// Number of slots of this rank.
    pub slots: usize,
    /// Number of samples of all ranks.
    pub samples: usize,
}

/// Returns slots in the format of the kernels.
#[must_use]
pub fn slot_bytes<'a>(slots: impl IntoIterator<Item = &'a IdSlot>) -> Vec<u8> {
    const NO_POSITION: u32 = u32::MAX;
    let bytes = |slot: &IdSlot| {
        KernelArguments::new()
            .u64(slot.rows.start as u64)
            .u64(slot.rows.end as u64)
            .u32(slot.feature as u32)
            .u32(slot.position.map_or(NO_POSITION, |position| position as u32))
            .u32(u32::from(slot.all_rows))
            .u32(u32::from(slot.mean))
            .bytes()
    };
    slots.into_iter().flat_map(bytes).collect()
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
    split: [Kernel; 2],
    join: [Kernel; 2],
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
            split: [module.kernel("split_lengths")?, module.kernel("split_ids")?],
            join: [module.kernel("join_lengths")?, module.kernel("join_ids")?],
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

    /// Computes [`super::split`] for the slots of all ranks, in one tensor `[slots, B]`. `lengths`
    /// are overwritten.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn split(
        &self,
        stream: &Stream,
        Split { slots, slot_count, batch_size }: Split<'_>,
        [from, to]: [Bags<'_>; 2],
        lengths: Lengths<'_>,
    ) -> Result<(), DriverError> {
        let bags = slot_count * batch_size;
        let arguments = KernelArguments::new()
            .buffer(from.offsets)
            .buffer(from.ids)
            .optional(from.weights)
            .buffer(slots)
            .buffer(lengths.lengths)
            .buffer(to.offsets)
            .buffer(to.ids)
            .optional(to.weights)
            .optional(to.scales)
            .u32(slot_count as u32)
            .u32(batch_size as u32);
        let grid = Grid::over(bags, THREADS, THREADS);
        stream.launch(&self.split[0], grid, &arguments)?;
        self.offsets(stream, lengths, to.offsets, bags)?;
        stream.launch(&self.split[1], grid, &arguments)
    }

    /// Computes [`super::join`]. The lengths of `from` are given, and its offsets are overwritten.
    /// The lengths of `to` are overwritten.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`].
    pub fn join(
        &self,
        stream: &Stream,
        Join { bases, ranks, slots, samples }: Join<'_>,
        [from, to]: [Bags<'_>; 2],
        [sent, joined]: [Lengths<'_>; 2],
    ) -> Result<(), DriverError> {
        let bags = slots * samples;
        let arguments = KernelArguments::new()
            .buffer(sent.lengths)
            .buffer(from.offsets)
            .buffer(from.ids)
            .optional(from.weights)
            .optional(from.scales)
            .buffer(bases)
            .buffer(joined.lengths)
            .buffer(to.offsets)
            .buffer(to.ids)
            .optional(to.weights)
            .optional(to.scales)
            .u32(slots as u32)
            .u32(ranks as u32);
        stream.launch(&self.join[0], Grid::over(bags, THREADS, THREADS), &arguments)?;
        self.offsets(stream, sent, from.offsets, bags)?;
        self.offsets(stream, joined, to.offsets, bags)?;
        stream.launch(&self.join[1], Grid::over(to.capacity, THREADS, THREADS), &arguments)
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
