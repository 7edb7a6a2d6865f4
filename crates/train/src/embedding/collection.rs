//! The tiles of one rank: their weights, their optimizer state, and the operations that use them.

use device::Backend;
use device::backend::{BatchIds, TileRoom, TileRows, TileValues};
use device::ops::Slot;
use device::ops::embedding_backward::{Factors, ScratchShape, TileOrigin, Updated};
use schema::{JaggedTensor, ModelConfig, Op, Optimizer, ShardingPlan, TableConfig, Tile};

use super::input_dist::{self, LocalIds};
use super::layout::SlotLayout;
use super::output_dist;
use crate::Error;
use crate::context::{DeviceQueue, RankContext};
use crate::memory::{CountingAllocator, MemoryUse, Traffic};
use crate::parameter::{TileState, TileView};

/// Where out-of-range ids are detected if the batch's ids are used unchanged, without an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdCheck {
    /// The host checks the ids of a batch before it submits work to the device.
    OnHost,
    /// The device checks the ids of a batch. An id outside its table becomes an error at the end of
    /// the step, and the device then skips the updates of this step.
    OnDevice,
}

/// The tiles of a model's embedding tables that one rank owns. The exchanges carry ids to the
/// tiles, and pooled vectors back to the ranks of the samples.
pub struct EmbeddingCollection<B: Backend> {
    layout: SlotLayout,
    tiles: Vec<Tile>,
    /// The configuration of each tile's table.
    configs: Vec<TableConfig>,
    tables: B::Tables,
    slots: Vec<Slot>,
    optimizer: Optimizer,
    /// Pooled rows of this rank's slots for all ranks' samples, `[B_global, width]`. The buffer is
    /// unused if the lookup writes the output directly.
    local: B::Vector,
    /// Ids of the last forward pass. The buffer is unused if the batch's ids are used unchanged.
    ids: LocalIds,
    /// The device's copy of the ids of the last forward pass.
    on_device: B::Jagged,
    input: input_dist::IdExchange,
    output: output_dist::PooledExchange<B>,
}

impl<B: Backend> EmbeddingCollection<B> {
    /// Creates the collection from `tiles`, the tiles of this rank in plan order.
    #[must_use]
    pub fn new(
        room: &mut CountingAllocator<'_, B>,
        model: &ModelConfig,
        plan: &ShardingPlan,
        rank: schema::Rank,
        tiles: Vec<TileState>,
        optimizer: Optimizer,
    ) -> Self {
        let layout = SlotLayout::new(model, plan);
        let slot = |slot: &super::layout::Slot| Slot { tile: slot.tile, column: slot.local_column };
        let slots: Vec<Slot> = layout.slots[rank.index()].iter().map(slot).collect();
        let configs: Vec<TableConfig> =
            tiles.iter().map(|tile| model.tables[tile.tile.table.index()].clone()).collect();
        let rectangles = tiles.iter().map(|state| state.tile.clone()).collect();
        Self {
            tables: room.tables(values(tiles, &configs), slots.clone()),
            tiles: rectangles,
            configs,
            slots,
            optimizer,
            local: B::Vector::default(),
            ids: LocalIds::default(),
            on_device: B::Jagged::default(),
            input: input_dist::IdExchange::default(),
            output: output_dist::PooledExchange::new(
                room.exchange(output_dist::layout_of(&layout)),
            ),
            layout,
        }
    }

    /// Returns the tiles of this rank, in plan order.
    #[must_use]
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// Returns the weights and state of some rows of a tile.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn tile<'a>(
        &'a self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        rows: TileRows,
        room: &'a mut TileRoom,
    ) -> Result<TileView<'a>, Error> {
        let whole = &self.tiles[rows.tile];
        let first = whole.rows.start;
        let range = first + rows.rows.start as u64..first + rows.rows.end as u64;
        let tile = Tile { rows: range, ..whole.clone() };
        let (weight, state) = device.tile(queue, &self.tables, rows, room)?;
        Ok(TileView { tile, weight, state })
    }

    /// Replaces the tiles by other tiles of the same tables, which contain the rows of the next
    /// batch's ids.
    ///
    /// # Errors
    /// [`Error::Device`] if the device has not enough memory.
    pub fn replace_tiles(&mut self, device: &B, tiles: Vec<TileState>) -> Result<(), Error> {
        assert_eq!(tiles.len(), self.tiles.len(), "the new tiles belong to the same tables");
        self.tiles = tiles.iter().map(|state| state.tile.clone()).collect();
        self.tables = device.tables(values(tiles, &self.configs), self.slots.clone())?;
        Ok(())
    }

    /// Checks that every id of `sparse` is a row of its table, see [`input_dist::check_ids`].
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] names the first invalid id.
    pub fn check_ids(&self, sparse: &JaggedTensor, first_sample: usize) -> Result<(), Error> {
        input_dist::check_ids(&self.layout, sparse, first_sample)
    }

    /// Counts the memory that a step needs besides the tiles: ids, pooled vectors of the slots, and
    /// the sort of the updates. Returns the size of the exchange's messages in bytes.
    pub fn step_memory(
        &self,
        rank: schema::Rank,
        traffic: &Traffic<'_>,
        room: &mut CountingAllocator<'_, B>,
    ) -> u64 {
        let layout = &self.layout;
        let slots = &layout.slots[rank.index()];
        let (samples, width) = (traffic.batch_size, layout.widths[rank.index()]);
        let ids: f64 = slots.iter().map(|slot| layout.ids_per_bag(slot, traffic.ids_per_bag)).sum();
        let (ids, bags) = ((ids * samples as f64) as usize, slots.len() * samples);
        let gradient = samples * width;
        let scratch = ScratchShape {
            ids,
            bags,
            slots: slots.len(),
            gradient,
            factors: if layout.any_mean { Factors::Present } else { Factors::Absent },
        };
        room.count(MemoryUse::RowUpdates, B::update_bytes(scratch));
        let unrolled = slots.len() + layout.in_sum_order.len();
        room.count(MemoryUse::Exchange, unrolled * size_of::<super::layout::Slot>());
        if layout.as_given {
            return 0;
        }
        let scales = if layout.any_mean { bags } else { 0 };
        room.count(MemoryUse::Exchange, LocalIds::bytes(ids, bags, scales));
        let arriving = input_dist::arriving_bytes(ids, bags, scales);
        let vectors = gradient * size_of::<f32>();
        let vectors = if layout.whole {
            0
        } else {
            room.count(MemoryUse::Exchange, vectors);
            output_dist::message_bytes(vectors, layout.slots.len())
        };
        (arriving + vectors) as u64
    }

    /// Writes the pooled vectors of this rank's samples to `pooled [B, ΣD]`. Errors that the device
    /// detects in the ids are recorded in `scalars`.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] before any weight of this rank changes, or
    /// [`Error::Communication`].
    pub fn forward(
        &mut self,
        context: &mut RankContext<B>,
        sparse: &JaggedTensor,
        first_sample: usize,
        check: IdCheck,
        pooled: &mut B::Vector,
        scalars: &mut B::Scalars,
    ) -> Result<(), Error> {
        let RankContext { device, queue, comm, profiler } = context;
        let (layout, rank) = (&self.layout, comm.rank().index());
        let op = Op::InputDist { ids: sparse.values.len() };
        let (ids, input) = (&mut self.ids, &mut self.input);
        profiler.op(op, || {
            match (layout.as_given, check) {
                (true, IdCheck::OnHost) => {
                    return input_dist::check_ids(layout, sparse, first_sample);
                }
                (true, IdCheck::OnDevice) => return Ok(()),
                (false, _) => {}
            }
            input.run(layout, &mut comm.input, sparse, first_sample, ids)
        })?;
        let jagged = if layout.as_given { sparse } else { &self.ids.jagged };
        let bag_scales = self.ids.scales.as_deref();
        device.send_ids(queue, jagged, bag_scales, &mut self.on_device)?;
        let (elements, row_bytes) =
            elements_and_bytes(&self.slots, &self.configs, &self.tiles, jagged);
        let len = jagged.batch_size * layout.widths[rank];
        // If one rank holds every table, the lookup writes the pooled vectors directly.
        let out = if layout.whole {
            &mut *pooled
        } else {
            device.grow(&mut self.local, len)?;
            &mut self.local
        };
        let op = Op::EmbeddingForward {
            bags: jagged.features * jagged.batch_size,
            ids: jagged.values.len(),
            elements,
            pooled_elements: len,
            row_bytes,
        };
        let ids = BatchIds { jagged, bag_scales, on_device: &self.on_device };
        let tables = &mut self.tables;
        profiler.op(op, || device.lookup(queue, tables, ids, out, scalars))?;
        if layout.whole {
            return Ok(());
        }
        let op = Op::OutputDist { elements: len };
        let (batch_sizes, output) = (&self.ids.batch_sizes, &mut self.output);
        let device_queue = DeviceQueue { device, queue };
        let (local, samples) = (&self.local, sparse.batch_size);
        profiler.op(op, || {
            output.forward(
                layout,
                device_queue,
                &mut comm.pooled,
                local,
                batch_sizes,
                pooled,
                samples,
            )
        })
    }

    /// Updates the rows that the last forward pass looked up. `d_pooled [B, ΣD]` is the gradient of
    /// this rank's samples, and `sparse` must be that of the forward pass. `scalars` holds the
    /// learning rates.
    ///
    /// # Errors
    /// [`Error::Communication`] if a peer left.
    pub fn backward(
        &mut self,
        context: &mut RankContext<B>,
        sparse: &JaggedTensor,
        d_pooled: &B::Vector,
        scalars: &mut B::Scalars,
    ) -> Result<(), Error> {
        let RankContext { device, queue, comm, profiler } = context;
        let (layout, rank) = (&self.layout, comm.rank().index());
        let gradient = if layout.whole {
            d_pooled
        } else {
            let op = Op::GradientDist { elements: sparse.batch_size * layout.pooled_width };
            let (output, device_queue) = (&mut self.output, DeviceQueue { device, queue });
            let (comm, samples) = (&mut comm.pooled, sparse.batch_size);
            profiler.op(op, || output.backward(layout, device_queue, comm, d_pooled, samples))?
        };
        let jagged = if layout.as_given { sparse } else { &self.ids.jagged };
        let (elements, _) = elements_and_bytes(&self.slots, &self.configs, &self.tiles, jagged);
        let bag_scales = self.ids.scales.as_deref();
        let ids = BatchIds { jagged, bag_scales, on_device: &self.on_device };
        // Distinct rows are known only at the end of the step, when `complete` sets them.
        let op = Op::EmbeddingBackward {
            ids: jagged.values.len(),
            unique_rows: 0,
            elements,
            unique_elements: 0,
            unique_row_bytes: 0,
            pooled_elements: jagged.batch_size * layout.widths[rank],
            optimizer: self.optimizer,
        };
        profiler.op(op, || device.update_rows(queue, &mut self.tables, ids, gradient, scalars))?;
        Ok(())
    }
}

/// Sets the number of distinct rows of an update, which the device reports at the end of the step.
pub(crate) fn complete(op: &mut Op, updated: Updated) {
    if let Op::EmbeddingBackward { unique_rows, unique_elements, unique_row_bytes, .. } = op {
        *unique_rows = updated.unique_rows;
        *unique_elements = updated.unique_elements;
        *unique_row_bytes = updated.unique_bytes;
    }
}

/// Returns the elements and the bytes of all rows that the ids look up.
fn elements_and_bytes(
    slots: &[Slot],
    configs: &[TableConfig],
    tiles: &[Tile],
    jagged: &JaggedTensor,
) -> (usize, usize) {
    let slot_size = |(key, slot): (usize, &Slot)| {
        let elements = jagged.feature(key).len() * tiles[slot.tile].dim();
        (elements, elements * configs[slot.tile].data_type.bytes())
    };
    let add = |a: (usize, usize), b: (usize, usize)| (a.0 + b.0, a.1 + b.1);
    slots.iter().enumerate().map(slot_size).fold((0, 0), add)
}

/// Converts tiles to the form in which a device takes ownership of them.
fn values(tiles: Vec<TileState>, configs: &[TableConfig]) -> Vec<TileValues> {
    let value = |(TileState { tile, weight, state }, config): (TileState, &TableConfig)| {
        let (rows, dim, name) = (tile.row_count(), tile.dim(), config.name.clone());
        let origin = TileOrigin {
            table: tile.table.0,
            row: tile.rows.start,
            column: tile.columns.start as u32,
        };
        TileValues { weights: weight, state, rows, dim, name, origin }
    };
    tiles.into_iter().zip(configs).map(value).collect()
}
