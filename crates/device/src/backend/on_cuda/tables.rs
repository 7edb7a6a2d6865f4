//! The tiles of one rank in GPU memory, with the sort buffers of their updates.

use super::handles::{Vector, grown, put};
use super::ids::{BagShape, CudaIds};
use super::scalars::ScalarBlock;
use crate::backend::{RowValues, TableValues, TileRoom, TileRows, TileValues};
use crate::cuda::{Buffer, DriverError, Stream};
use crate::error::Error;
use crate::ops::embedding_backward::cuda::{
    DeviceGradient, EmbeddingBackward, RowPart, Workspace, WorkspaceShape,
};
use crate::ops::embedding_backward::{Factors, RowSums, ScratchShape, TileOrigin, write_rows};
use crate::ops::embedding_forward::cuda::{
    DeviceLookup, DeviceTile, EmbeddingForward, slot_bytes, tile_bytes,
};
use crate::ops::{Slot, extent};
use crate::weights::{Weights, WeightsView};

const OP: &str = "embedding_backward";

/// Tiles with their optimizer states and slots, and the sort buffers of their updates.
#[derive(Debug, Default)]
pub struct Tables {
    tiles: Vec<CudaTile>,
    slots: Vec<Slot>,
    blocks: Option<Blocks>,
    /// Elements of a pooled row.
    width: usize,
    widest: usize,
    workspace: Option<(WorkspaceShape, Workspace)>,
    /// Buffers of updates with given sums of gradients.
    rows: Option<(WorkspaceShape, Workspace)>,
    sums: Option<Buffer>,
    terms: Option<Buffer>,
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

impl Tables {
    pub(super) fn new(stream: &Stream, values: TableValues) -> Result<Self, DriverError> {
        let TableValues { tiles, slots, output } = values;
        let tiles = tiles
            .into_iter()
            .map(|tile| CudaTile::new(stream, &tile))
            .collect::<Result<Vec<_>, _>>()?;
        let dims: Vec<usize> = tiles.iter().map(|tile| tile.dim).collect();
        let views: Vec<DeviceTile<'_>> = tiles.iter().map(CudaTile::view).collect();
        let blocks = Blocks {
            tiles: put(stream, &tile_bytes(&views))?,
            slots: put(stream, &slot_bytes(&slots, &dims, output, &[]))?,
        };
        // The host's lists are freed when this function returns, so the copies must have read them
        // by then.
        stream.synchronize()?;
        let width = output.row_elements(slots.iter().map(|slot| dims[slot.tile]));
        let widest = dims.iter().copied().max().unwrap_or(0);
        Ok(Self { tiles, slots, blocks: Some(blocks), width, widest, ..Self::default() })
    }

    fn lookup_of<'a>(&'a self, batch: &'a CudaIds) -> Option<DeviceLookup<'a>> {
        let (bags, blocks) = (batch.bags()?, self.blocks.as_ref()?);
        let BagShape { features, batch_size, .. } = batch.shape();
        Some(DeviceLookup {
            tiles: &blocks.tiles,
            slots: &blocks.slots,
            ids: bags.ids,
            id_bytes: size_of::<i64>(),
            offsets: bags.offsets,
            weights: bags.weights,
            bag_scales: bags.scales,
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
        batch: &CudaIds,
        out: &Vector,
        scalars: &ScalarBlock,
    ) -> Result<(), Error> {
        const OP: &str = "embedding_forward";
        extent::check(OP, "slots: one per key", batch.shape().features, self.slots.len())?;
        if self.slots.is_empty() {
            return Ok(());
        }
        let out = out.get(OP, "out [B, ΣD]", batch.shape().batch_size * self.width)?;
        let Some(lookup) = self.lookup_of(batch) else { return Err(unsent(OP)) };
        Ok(kernel.launch(stream, &lookup, [out, &scalars.first_bad])?)
    }

    /// Updates the rows of the last lookup. The first elements of `gradient` are the gradients of
    /// its pooled rows.
    pub(super) fn update(
        &mut self,
        stream: &Stream,
        kernels: &EmbeddingBackward,
        batch: &CudaIds,
        gradient: &Vector,
        scalars: &ScalarBlock,
    ) -> Result<(), Error> {
        extent::check(OP, "slots: one per key", batch.shape().features, self.slots.len())?;
        if self.slots.is_empty() {
            return Ok(());
        }
        self.prepare(stream, batch, gradient)?;
        let on_device =
            gradient.get(OP, "gradient [B, ΣD]", batch.shape().batch_size * self.width)?;
        let (Some(lookup), Some((_, workspace))) = (self.lookup_of(batch), &self.workspace) else {
            return Err(unsent(OP));
        };
        let gradient = gradient_of(on_device, scalars);
        Ok(kernels.launch(stream, &lookup, &gradient, workspace)?)
    }

    /// Allocates the buffers for the sort of a batch.
    fn prepare(
        &mut self,
        stream: &Stream,
        batch: &CudaIds,
        gradient: &Vector,
    ) -> Result<(), Error> {
        gradient.get(OP, "gradient [B, ΣD]", batch.shape().batch_size * self.width)?;
        let bags = batch.bags().ok_or_else(|| unsent(OP))?;
        let has_factors = bags.weights.is_some() || bags.scales.is_some();
        // Batches come from several buffers of ids. With the largest capacity so far, a change of
        // buffers does not remake the workspace.
        let made = self.workspace.as_ref().map_or(0, |(made, _)| made.capacity);
        let shape = WorkspaceShape {
            capacity: bags.capacity.max(made),
            rows: self.tiles.iter().map(|tile| tile.rows).sum(),
            tiles: self.tiles.len(),
            widest: self.widest,
            gradient: gradient.len,
            factors: if has_factors { Factors::Present } else { Factors::Absent },
        };
        remake(&mut self.workspace, stream, shape)
    }

    /// Sums the gradients of the rows of the last lookup.
    pub(super) fn sum_rows(
        &mut self,
        stream: &Stream,
        kernels: &EmbeddingBackward,
        batch: &CudaIds,
        gradient: &Vector,
        scalars: &ScalarBlock,
        to: &mut RowSums,
    ) -> Result<(), Error> {
        extent::check(OP, "slots: one per key", batch.shape().features, self.slots.len())?;
        to.rows.clear();
        to.sums.clear();
        if self.slots.is_empty() {
            return Ok(());
        }
        self.prepare(stream, batch, gradient)?;
        let on_device =
            gradient.get(OP, "gradient [B, ΣD]", batch.shape().batch_size * self.width)?;
        let all_rows = self.tiles.iter().map(|tile| tile.rows).sum::<usize>();
        let bytes = batch.shape().ids.min(all_rows).max(1) * self.widest * size_of::<f32>();
        let sums = grown(stream.driver(), &mut self.sums, bytes)?;
        let (Some(lookup), Some((shape, workspace))) = (self.lookup_of(batch), &self.workspace)
        else {
            return Err(unsent(OP));
        };
        let gradient = gradient_of(on_device, scalars);
        let sorted = kernels.launch_sums(stream, &lookup, &gradient, workspace, &sums)?;
        let (mut unique, mut pairs) = ([0u32], vec![0u64; batch.shape().ids]);
        stream.download(workspace.unique(), 0, bytemuck::cast_slice_mut(&mut unique))?;
        stream.download(sorted, 0, bytemuck::cast_slice_mut(&mut pairs))?;
        to.rows.extend(pairs.iter().map(|pair| pair >> shape.payload_bits()));
        to.rows.dedup();
        extent::check(OP, "distinct rows", to.rows.len(), unique[0] as usize)?;
        let mut wide = vec![0.0f32; to.rows.len() * self.widest];
        stream.download(&sums, 0, bytemuck::cast_slice_mut(&mut wide))?;
        // The device writes every sum with the width of the widest tile.
        let (mut tile, mut end) = (0, self.tiles[0].rows as u64);
        for (&row, sum) in to.rows.iter().zip(wide.chunks(self.widest)) {
            while row >= end {
                tile += 1;
                end += self.tiles[tile].rows as u64;
            }
            to.sums.extend_from_slice(&sum[..self.tiles[tile].dim]);
        }
        Ok(())
    }

    /// Computes the terms of rows with summed gradients.
    pub(super) fn row_terms(
        &mut self,
        stream: &Stream,
        kernels: &EmbeddingBackward,
        sums: &RowSums,
        scalars: &ScalarBlock,
        terms: &mut Vec<f32>,
    ) -> Result<(), Error> {
        terms.clear();
        terms.resize(2 * sums.rows.len(), 0.0);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(terms);
        let on_device = grown(stream.driver(), &mut self.terms, bytes.len().max(1))?;
        // The kernel writes nothing if updates are stopped.
        stream.upload(&on_device, 0, bytes)?;
        self.launch_rows(stream, kernels, sums, scalars, RowPart::Terms(&on_device))?;
        Ok(stream.download(&on_device, 0, bytes)?)
    }

    /// Updates rows with their summed gradients.
    pub(super) fn apply_rows(
        &mut self,
        stream: &Stream,
        kernels: &EmbeddingBackward,
        sums: &RowSums,
        terms: Option<&[f32]>,
        scalars: &ScalarBlock,
    ) -> Result<(), Error> {
        let Some(terms) = terms else {
            return self.launch_rows(stream, kernels, sums, scalars, RowPart::Update);
        };
        extent::check(OP, "terms [rows, 2]", 2 * sums.rows.len(), terms.len())?;
        let on_device = grown(stream.driver(), &mut self.terms, size_of_val(terms).max(1))?;
        stream.upload(&on_device, 0, bytemuck::cast_slice(terms))?;
        self.launch_rows(stream, kernels, sums, scalars, RowPart::Finish(&on_device))
    }

    fn launch_rows(
        &mut self,
        stream: &Stream,
        kernels: &EmbeddingBackward,
        RowSums { rows, sums }: &RowSums,
        scalars: &ScalarBlock,
        part: RowPart<'_>,
    ) -> Result<(), Error> {
        let Some(blocks) = &self.blocks else { return Err(unsent(OP)) };
        if rows.is_empty() {
            return Ok(());
        }
        let shape = WorkspaceShape {
            capacity: rows.len().next_power_of_two(),
            rows: self.tiles.iter().map(|tile| tile.rows).sum(),
            tiles: self.tiles.len(),
            widest: self.widest,
            gradient: sums.len().next_power_of_two(),
            factors: Factors::Absent,
        };
        remake(&mut self.rows, stream, shape)?;
        let Some((_, workspace)) = &self.rows else { return Err(unsent(OP)) };
        let (mut pairs, mut at) = (Vec::with_capacity(rows.len()), 0);
        let (mut tile, mut end) = (0, self.tiles[0].rows as u64);
        for &row in rows {
            while row >= end {
                tile += 1;
                extent::within(OP, "tiles of the rows", self.tiles.len(), tile + 1)?;
                end += self.tiles[tile].rows as u64;
            }
            pairs.push(row << shape.payload_bits() | at);
            at += self.tiles[tile].dim as u64;
        }
        extent::check(OP, "sums", at as usize, sums.len())?;
        let (to, count) = workspace.row_pairs();
        stream.upload(to, 0, bytemuck::cast_slice(&pairs))?;
        stream.upload(count, 0, bytemuck::cast_slice(&[rows.len() as u64]))?;
        let on_device = grown(stream.driver(), &mut self.sums, size_of_val(&sums[..]))?;
        stream.upload(&on_device, 0, bytemuck::cast_slice(sums))?;
        let gradient = gradient_of(&on_device, scalars);
        Ok(kernels.launch_rows(stream, &blocks.tiles, &gradient, workspace, part)?)
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

    /// Overwrites the weights and the optimizer state of a range of rows of a tile. Values of
    /// 16-bit tables are rounded on the host.
    pub(super) fn set_rows(
        &mut self,
        stream: &Stream,
        values: &RowValues<'_>,
    ) -> Result<(), Error> {
        const OP: &str = "set_rows";
        let TileRows { tile, rows } = &values.rows;
        let CudaTile { weights, state, data_type, dim, state_width, origin, .. } =
            &self.tiles[*tile];
        let (len, states) = (rows.len() * dim, rows.len() * state_width);
        extent::check(OP, "weights [rows, D]", len, values.weights.len())?;
        extent::check(OP, "state [rows, state per row]", states, values.state.len())?;
        let mut rounded = Weights::zeroed(*data_type, len);
        let origin = TileOrigin { row: origin.row + rows.start as u64, ..*origin };
        write_rows(rounded.view_mut(), values.weights, *dim, origin, values.rounding);
        let start = rows.start * dim * data_type.bytes();
        stream.upload(weights, start, rounded.view().bytes())?;
        let start = rows.start * state_width * size_of::<f32>();
        Ok(stream.upload(state, start, bytemuck::cast_slice(values.state))?)
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

/// Returns the buffers of an update whose gradient is in `gradient`.
fn gradient_of<'a>(gradient: &'a Buffer, scalars: &'a ScalarBlock) -> DeviceGradient<'a> {
    DeviceGradient {
        gradient,
        rule: &scalars.sparse,
        first_bad: &scalars.first_bad,
        stop: &scalars.stop,
        updated: &scalars.updated,
    }
}

/// Replaces a workspace of another shape.
fn remake(
    workspace: &mut Option<(WorkspaceShape, Workspace)>,
    stream: &Stream,
    shape: WorkspaceShape,
) -> Result<(), Error> {
    if workspace.as_ref().is_none_or(|(made, _)| *made != shape) {
        // The old workspace is freed first, so that the old and the new workspace need not fit
        // into device memory at the same time.
        *workspace = None;
        *workspace = Some((shape, Workspace::new(stream.driver(), shape)?));
    }
    Ok(())
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
