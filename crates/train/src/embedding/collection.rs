//! The tiles of one rank: their weights, their optimizer state, and the calls that use them.

use device::Backend;
use device::backend::{BatchIds, TileRoom, TileRows, TileValues};
use device::ops::Slot;
use device::ops::embedding_backward::{Factors, ScratchShape, TileOrigin, Updated};
use schema::{JaggedTensor, ModelConfig, Op, Optimizer, ShardingPlan, TableConfig, Tile};

use super::input_dist::{self, LocalIds};
use super::layout::SlotLayout;
use super::output_dist;
use crate::Error;
use crate::context::{On, RankContext};
use crate::memory::{MemoryUse, Traffic, ZeroBuffers};
use crate::parameter::{TileState, TileView};

/// Who finds ids that are no rows, where ids need not be sorted out by their owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdCheck {
    /// The host, before anything is given to the device.
    OnHost,
    /// The device: it is known at the end of the step, whose updates are stopped.
    OnDevice,
}

/// The embedding tables of a model as one rank sees them.
pub struct EmbeddingCollection<B: Backend> {
    layout: SlotLayout,
    tiles: Vec<Tile>,
    /// The tables of `tiles`: their names, for messages, and the bytes of their rows.
    configs: Vec<TableConfig>,
    tables: B::Tables,
    slots: Vec<Slot>,
    optimizer: Optimizer,
    /// Pooled rows of this rank's slots for all ranks' samples, `[B_global, width]`; unused where
    /// they are the output as it is.
    local: B::Vector,
    /// Ids of the last forward; unused where they are the batch's as they are.
    ids: LocalIds,
    /// The device's copy of the ids of the last forward.
    on_device: B::Jagged,
    input: input_dist::IdExchange,
    output: output_dist::PooledExchange<B>,
}

impl<B: Backend> EmbeddingCollection<B> {
    /// The collection over `tiles`, which are those of this rank in plan order.
    #[must_use]
    pub fn new(
        room: &mut ZeroBuffers<'_, B>,
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

    /// Which tiles there are.
    #[must_use]
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// Some rows of tile number `tile` with their state.
    ///
    /// # Errors
    /// [`Error::Device`] where the device failed.
    pub fn tile<'a>(
        &'a self,
        (device, queue): On<'_, B>,
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

    /// Puts other tiles of the same tables in place, which have the rows of the ids to come.
    ///
    /// # Errors
    /// [`Error::Device`] where there is no memory.
    pub fn replace_tiles(&mut self, device: &B, tiles: Vec<TileState>) -> Result<(), Error> {
        assert_eq!(tiles.len(), self.tiles.len(), "tiles of the same tables");
        self.tiles = tiles.iter().map(|state| state.tile.clone()).collect();
        self.tables = device.tables(values(tiles, &self.configs), self.slots.clone())?;
        Ok(())
    }

    /// Whether every id of `sparse` names a row of its table; see [`input_dist::check_ids`].
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`].
    pub fn check_ids(&self, sparse: &JaggedTensor, first_sample: usize) -> Result<(), Error> {
        input_dist::check_ids(&self.layout, sparse, first_sample)
    }

    /// Counts what a step keeps beside the tiles: ids, pooled vectors of its slots, and the sort of
    /// the updates. Returns the bytes of the messages that come and go.
    pub fn step_memory(
        &self,
        rank: schema::Rank,
        traffic: &Traffic<'_>,
        room: &mut ZeroBuffers<'_, B>,
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

    /// Writes the pooled vectors of this rank's samples to `pooled [B, ΣD]`; what the device finds
    /// wrong with their ids goes to `scalars`.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] before any weight of this rank changes; [`Error::Communication`].
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
        let on = (&*device, &*queue);
        let (local, samples) = (&self.local, sparse.batch_size);
        profiler.op(op, || {
            output.forward(layout, on, &mut comm.pooled, local, batch_sizes, pooled, samples)
        })
    }

    /// Updates the rows of the last forward, which was given the same `sparse`, from
    /// `d_pooled [B, ΣD]` of this rank's samples, as `scalars` say.
    ///
    /// # Errors
    /// [`Error::Communication`].
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
            let (output, on) = (&mut self.output, (&*device, &*queue));
            let (comm, samples) = (&mut comm.pooled, sparse.batch_size);
            profiler.op(op, || output.backward(layout, on, comm, d_pooled, samples))?
        };
        let jagged = if layout.as_given { sparse } else { &self.ids.jagged };
        let (elements, _) = elements_and_bytes(&self.slots, &self.configs, &self.tiles, jagged);
        let bag_scales = self.ids.scales.as_deref();
        let ids = BatchIds { jagged, bag_scales, on_device: &self.on_device };
        // Distinct rows are known at the end of the step: see `complete`.
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

/// Completes the update of rows with what the device found out.
pub(crate) fn complete(op: &mut Op, updated: Updated) {
    if let Op::EmbeddingBackward { unique_rows, unique_elements, unique_row_bytes, .. } = op {
        *unique_rows = updated.unique_rows;
        *unique_elements = updated.unique_elements;
        *unique_row_bytes = updated.unique_bytes;
    }
}

/// Σ over ids of D, and of the bytes of a row.
fn elements_and_bytes(
    slots: &[Slot],
    configs: &[TableConfig],
    tiles: &[Tile],
    jagged: &JaggedTensor,
) -> (usize, usize) {
    let of_slot = |(key, slot): (usize, &Slot)| {
        let elements = jagged.feature(key).len() * tiles[slot.tile].dim();
        (elements, elements * configs[slot.tile].data_type.bytes())
    };
    let add = |a: (usize, usize), b: (usize, usize)| (a.0 + b.0, a.1 + b.1);
    slots.iter().enumerate().map(of_slot).fold((0, 0), add)
}

/// The tiles as a device takes them over.
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
