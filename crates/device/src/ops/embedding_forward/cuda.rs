//! Launch of the lookup on a GPU, and the structs that both embedding operations read: tiles,
//! slots and a batch.

use schema::DataType;

use crate::cuda::{
    Buffer, Driver, DriverError, Grid, Kernel, KernelArguments, KernelSource, Stream,
};
use crate::ops::embedding_backward::TileOrigin;
use crate::ops::slot::KeyPlace;
use crate::ops::{Slot, SlotOutput};

/// The CUDA source of the embedding forward kernel, compiled when it is loaded.
pub const SOURCE: KernelSource =
    KernelSource { name: "ops/embedding_forward/kernel.cu", text: include_str!("kernel.cu") };
const THREADS: u32 = 256;
/// Largest number of ids and of bags in a batch, because the kernels count both in 32 bits.
pub const IDS_LIMIT: usize = i32::MAX as usize;
/// Number of f32 columns that a thread sums at a time.
const COLUMNS: usize = 4;
/// Value of the first bad position if no id is out of range.
pub const NO_BAD_ID: u64 = u64::MAX;

/// A tile of an embedding table on the device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTile<'a> {
    /// Weights of the tile, `[rows, dim]` in `data_type`.
    pub weights: &'a Buffer,
    /// Optimizer state, f32 `[rows, state per row]`, or `None` if the rule has no state or the
    /// tile is only read.
    pub state: Option<&'a Buffer>,
    /// Number of rows of the tile.
    pub rows: usize,
    /// Number of columns of the tile, above 0.
    pub dim: usize,
    /// Number format of the weights.
    pub data_type: DataType,
    /// Position of the tile in its table.
    pub origin: TileOrigin,
}

/// Encodes the tiles as the array of `struct Tile` that kernels read.
#[must_use]
pub fn tile_bytes(tiles: &[DeviceTile<'_>]) -> Vec<u8> {
    let mut first_row = 0;
    let one = |tile: &DeviceTile<'_>| {
        let format = match tile.data_type {
            DataType::F32 => 0,
            DataType::F16 => 1,
            DataType::Bf16 => 2,
        };
        let bytes = KernelArguments::new()
            .buffer(tile.weights)
            .optional(tile.state)
            .count(tile.rows)
            .count(first_row)
            .u64(tile.origin.row)
            .u32(tile.dim as u32)
            .u32(format)
            .u32(tile.origin.table)
            .u32(tile.origin.column);
        first_row += tile.rows;
        bytes.bytes()
    };
    tiles.iter().flat_map(one).collect()
}

/// Encodes the output places of each key as the array of `struct Slot` that kernels read. `dims`
/// are the dimensions of the tiles. `ids_per_key` is called only for a sequence, whose output
/// places depend on the numbers of ids.
#[must_use]
pub fn slot_bytes(
    slots: &[Slot],
    dims: &[usize],
    output: SlotOutput,
    ids_per_key: &[usize],
) -> Vec<u8> {
    let width: usize = slots.iter().map(|slot| dims[slot.tile]).sum();
    let (mut len, mut position) = (0usize, 0usize);
    let mut bytes = Vec::new();
    for (key, slot) in slots.iter().enumerate() {
        let stride = dims[slot.tile];
        let place = match output {
            SlotOutput::Pooled => KeyPlace::Pooled { first: slot.column, stride: width },
            SlotOutput::Columns(row) => KeyPlace::Pooled { first: slot.column, stride: row },
            SlotOutput::Sequence => {
                let first = len.wrapping_sub(position.wrapping_mul(stride));
                len += ids_per_key[key] * stride;
                position += ids_per_key[key];
                KeyPlace::Sequence { first, stride }
            }
        };
        let (first, stride, is_sequence) = match place {
            KeyPlace::Pooled { first, stride } => (first, stride, 0),
            KeyPlace::Sequence { first, stride } => (first, stride, 1),
        };
        let tile = slot.tile as u32;
        let slot = KernelArguments::new().count(first).count(stride).u32(tile).u32(is_sequence);
        bytes.extend(slot.bytes());
    }
    bytes
}

/// A batch of ids on the device, with the tables in which they are looked up.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLookup<'a> {
    /// The tiles, encoded by [`tile_bytes`].
    pub tiles: &'a Buffer,
    /// The slots, encoded by [`slot_bytes`].
    pub slots: &'a Buffer,
    /// Ids relative to their tile's first row, `[nnz]`.
    pub ids: &'a Buffer,
    /// Size of an id in bytes, 4 or 8.
    pub id_bytes: usize,
    /// Offsets of the bags, u64 `[F·B + 1]`, feature-major.
    pub offsets: &'a Buffer,
    /// Weights of the ids, f32 `[nnz]`.
    pub weights: Option<&'a Buffer>,
    /// One scale factor per bag, f32 `[F·B]`.
    pub bag_scales: Option<&'a Buffer>,
    pub features: usize,
    pub batch_size: usize,
    /// Number of columns of the widest tile.
    pub widest: usize,
}

/// The embedding forward kernel, compiled and loaded on one device.
#[derive(Clone, Debug)]
pub struct EmbeddingForward {
    kernel: Kernel,
}

impl EmbeddingForward {
    /// Compiles the source, or takes it from the kernel cache, and loads it on the device.
    ///
    /// # Errors
    /// Fails in the same cases as [`Driver::module`].
    pub fn load(driver: &Driver) -> Result<Self, DriverError> {
        Ok(Self { kernel: driver.module(SOURCE)?.kernel("embedding_forward")? })
    }

    /// Looks up a batch in one launch, like [`super::run`]. `out` is f32 with the layout of
    /// [`super::run`]. `first_bad` is u64 `[1]` and is lowered to the first position whose id is
    /// out of range.
    ///
    /// # Errors
    /// Fails in the same cases as [`Stream::launch`], and with [`DriverError::Extent`] for more
    /// than [`IDS_LIMIT`] ids or bags.
    pub fn launch(
        &self,
        stream: &Stream,
        lookup: &DeviceLookup<'_>,
        [out, first_bad]: [&Buffer; 2],
    ) -> Result<(), DriverError> {
        let bags = lookup.features * lookup.batch_size;
        let got = bags.max(lookup.ids.bytes() / lookup.id_bytes);
        if got > IDS_LIMIT {
            let (of, what) = ("embedding_forward".to_owned(), "ids and bags of a batch, at most");
            return Err(DriverError::Extent { of, what, expected: IDS_LIMIT, got });
        }
        let lanes = lookup.widest.div_ceil(COLUMNS).next_power_of_two().min(32) as u32;
        let arguments = KernelArguments::new()
            .buffer(lookup.tiles)
            .buffer(lookup.slots)
            .buffer(lookup.ids)
            .buffer(lookup.offsets)
            .optional(lookup.weights)
            .optional(lookup.bag_scales)
            .buffer(out)
            .buffer(first_bad)
            .u32(lookup.features as u32)
            .u32(lookup.batch_size as u32)
            .u32(lanes)
            .u32(u32::from(lookup.id_bytes == size_of::<u64>()));
        stream.launch(&self.kernel, Grid::over(bags, THREADS / lanes, THREADS), &arguments)
    }
}
