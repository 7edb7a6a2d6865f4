//! The tiles of one rank in GPU memory, with the sort buffers of their updates.

use super::handles::{Jagged, Vector};
use super::scalars::ScalarBlock;
use crate::backend::{Backend, BatchIds, TileRoom, TileRows, TileValues};
use crate::cuda::{Buffer, DriverError, Stream};
use crate::error::Error;
use crate::ops::embedding_backward::cuda::{
    DeviceGradient, EmbeddingBackward, Workspace, WorkspaceShape,
};
use crate::ops::embedding_backward::{Factors, ScratchShape, TileOrigin};
use crate::ops::embedding_forward::cuda::{
    DeviceLookup, DeviceTile, EmbeddingForward, slot_bytes, tile_bytes,
};
use crate::ops::{Slot, SlotOutput, extent};
use crate::weights::{Weights, WeightsView};

/// Tiles with their optimizer states and slots, and the sort buffers of their updates.
#[derive(Debug, Default)]
pub struct Tables {
    tiles: Vec<CudaTile>,
    slots: Vec<Slot>,
    blocks: Option<Blocks>,
    /// Elements of a pooled row: the sum of `D` over all slots.
    width: usize,
    widest: usize,
    workspace: Option<(WorkspaceShape, Workspace)>,
}

/// Lists of tiles and slots in device memory, which the kernels read.
#[derive(Debug)]
struct Blocks {
    tiles: Buffer,
    slots: Buffer,
}

/// A tile of an embedding table in device memory, with the optimizer state of its rows.
#[derive(Debug)]
struct CudaTile {
    weights: Buffer,
    state: Buffer,
    data_type: schema::DataType,
    rows: usize,
    dim: usize,
    state_width: usize,
    origin: TileOrigin,
}

/// A batch whose ids are to be looked up or whose rows are to be updated.
#[derive(Clone, Copy)]
pub(super) struct CudaBatch<'a> {
    /// Ids of the batch as they were uploaded.
    pub ids: &'a Jagged,
    /// `[F, B]`: the number of slots and the number of samples.
    pub shape: [usize; 2],
    /// Whether ids have weights, and whether bags have scales.
    pub factors: [bool; 2],
}

impl<'a> CudaBatch<'a> {
    /// Describes the ids of a batch that are already on the device.
    pub(super) fn from_ids<B: Backend<Jagged = Jagged>>(ids: &BatchIds<'a, B>) -> Self {
        Self {
            ids: ids.on_device,
            shape: [ids.jagged.features, ids.jagged.batch_size],
            factors: [ids.jagged.weights.is_some(), ids.bag_scales.is_some()],
        }
    }
}

impl Tables {
    pub(super) fn new(
        stream: &Stream,
        tiles: Vec<TileValues>,
        slots: Vec<Slot>,
    ) -> Result<Self, DriverError> {
        let tiles = tiles
            .into_iter()
            .map(|tile| CudaTile::new(stream, &tile))
            .collect::<Result<Vec<_>, _>>()?;
        let dims: Vec<usize> = tiles.iter().map(|tile| tile.dim).collect();
        let views: Vec<DeviceTile<'_>> = tiles.iter().map(CudaTile::view).collect();
        let blocks = Blocks {
            tiles: put(stream, &tile_bytes(&views))?,
            slots: put(stream, &slot_bytes(&slots, &dims, SlotOutput::Pooled, &[]))?,
        };
        // The host's lists are freed when this function returns, so the copies must have read them
        // by then.
        stream.synchronize()?;
        let width = slots.iter().map(|slot| dims[slot.tile]).sum();
        let widest = dims.iter().copied().max().unwrap_or(0);
        Ok(Self { tiles, slots, blocks: Some(blocks), width, widest, workspace: None })
    }

    fn lookup_of<'a>(&'a self, batch: &CudaBatch<'a>) -> Option<DeviceLookup<'a>> {
        let ([features, batch_size], blocks) = (batch.shape, self.blocks.as_ref()?);
        let sent = batch.ids.sent(batch.factors[0], batch.factors[1])?;
        Some(DeviceLookup {
            tiles: &blocks.tiles,
            slots: &blocks.slots,
            ids: sent.ids,
            id_bytes: size_of::<i64>(),
            offsets: sent.offsets,
            weights: sent.weights,
            bag_scales: sent.scales,
            features,
            batch_size,
            widest: self.widest,
        })
    }

    /// Pools the rows of a batch and writes them to the first elements of `out`.
    pub(super) fn lookup(
        &self,
        kernel: &EmbeddingForward,
        stream: &Stream,
        batch: CudaBatch<'_>,
        out: &Vector,
        scalars: &ScalarBlock,
    ) -> Result<(), Error> {
        const OP: &str = "embedding_forward";
        extent::check(OP, "slots: one per key", batch.shape[0], self.slots.len())?;
        if self.slots.is_empty() {
            return Ok(());
        }
        let out = out.get(OP, "out [B, ΣD]", batch.shape[1] * self.width)?;
        let Some(lookup) = self.lookup_of(&batch) else { return Err(unsent(OP)) };
        Ok(kernel.launch(stream, &lookup, [out, &scalars.first_bad])?)
    }

    /// Updates the rows of the last lookup. The first elements of `gradient` are the gradients of
    /// its pooled rows.
    pub(super) fn update(
        &mut self,
        stream: &Stream,
        kernels: &EmbeddingBackward,
        batch: CudaBatch<'_>,
        gradient: &Vector,
        scalars: &ScalarBlock,
    ) -> Result<(), Error> {
        const OP: &str = "embedding_backward";
        extent::check(OP, "slots: one per key", batch.shape[0], self.slots.len())?;
        if self.slots.is_empty() {
            return Ok(());
        }
        let on_device = gradient.get(OP, "gradient [B, ΣD]", batch.shape[1] * self.width)?;
        let sent = batch.ids.sent(batch.factors[0], batch.factors[1]).ok_or_else(|| unsent(OP))?;
        let has_factors = batch.factors.contains(&true);
        let shape = WorkspaceShape {
            capacity: sent.capacity,
            rows: self.tiles.iter().map(|tile| tile.rows).sum(),
            tiles: self.tiles.len(),
            widest: self.widest,
            gradient: gradient.len,
            factors: if has_factors { Factors::Present } else { Factors::Absent },
        };
        if self.workspace.as_ref().is_none_or(|(made, _)| *made != shape) {
            // The old workspace is freed first, so that the old and the new workspace need not
            // fit into device memory at the same time.
            self.workspace = None;
            self.workspace = Some((shape, Workspace::new(stream.driver(), shape)?));
        }
        let (Some(lookup), Some((_, workspace))) = (self.lookup_of(&batch), &self.workspace) else {
            return Err(unsent(OP));
        };
        let gradient = DeviceGradient {
            gradient: on_device,
            rule: &scalars.sparse,
            first_bad: &scalars.first_bad,
            stop: &scalars.stop,
            updated: &scalars.updated,
        };
        Ok(kernels.launch(stream, &lookup, &gradient, workspace)?)
    }

    /// Copies the weights and the optimizer state of a range of rows of a tile to `room`.
    pub(super) fn tile<'a>(
        &self,
        stream: &Stream,
        TileRows { tile, rows }: &TileRows,
        room: &'a mut TileRoom,
    ) -> Result<(WeightsView<'a>, &'a [f32]), Error> {
        let CudaTile { weights, state, data_type, dim, state_width, .. } = &self.tiles[*tile];
        let (len, element) = (rows.len() * dim, data_type.bytes());
        let fits = |held: &Weights| held.data_type() == *data_type && held.len() >= len;
        if !room.weights.as_ref().is_some_and(fits) {
            room.weights = Some(Weights::zeroed(*data_type, len));
        }
        room.state.resize(rows.len() * state_width, 0.0);
        let TileRoom { weights: Some(to), state: to_state } = room else {
            unreachable!("room was made")
        };
        let bytes = &mut to.view_mut().into_bytes()[..len * element];
        stream.download(weights, rows.start * dim * element, bytes)?;
        let start = rows.start * state_width * size_of::<f32>();
        stream.download(state, start, bytemuck::cast_slice_mut(to_state))?;
        Ok((to.view().slice(0..len), to_state))
    }
}

impl CudaTile {
    fn new(stream: &Stream, tile: &TileValues) -> Result<Self, DriverError> {
        let TileValues { weights, state, rows, dim, origin, .. } = tile;
        Ok(Self {
            weights: put(stream, weights.view().bytes())?,
            state: put(stream, bytemuck::cast_slice(state))?,
            data_type: weights.data_type(),
            rows: *rows,
            dim: *dim,
            state_width: state.len() / (*rows).max(1),
            origin: *origin,
        })
    }

    fn view(&self) -> DeviceTile<'_> {
        DeviceTile {
            weights: &self.weights,
            state: Some(&self.state),
            rows: self.rows,
            dim: self.dim,
            data_type: self.data_type,
            origin: self.origin,
        }
    }
}

/// Allocates a device buffer and uploads these bytes to it.
pub(super) fn put(stream: &Stream, bytes: &[u8]) -> Result<Buffer, DriverError> {
    let buffer = stream.driver().alloc(bytes.len())?;
    stream.upload(&buffer, 0, bytes)?;
    Ok(buffer)
}

/// Returns the error for a batch whose ids were not uploaded.
fn unsent(op: &'static str) -> Error {
    Error::Shape { op, what: "batches of ids on the device", expected: 1, got: 0 }
}

/// Returns the device memory in bytes for the ids of a batch and for the sort of its update.
pub(super) fn update_bytes(shape: ScratchShape) -> usize {
    let ScratchShape { ids, bags, gradient, factors, .. } = shape;
    let (capacity, widest) = (ids.next_power_of_two(), gradient / bags.max(1));
    let sent = capacity * size_of::<i64>() + (bags + 1) * size_of::<u64>();
    let (rows, tiles) = (usize::MAX, 1);
    sent + Workspace::bytes(&WorkspaceShape { capacity, rows, tiles, widest, gradient, factors })
}
