//! The tiles of one rank: their weights, their optimizer state, and the operations that use them.

use std::sync::Arc;

use device::Backend;
use device::backend::{BatchIds, TileRoom, TileRows, TileValues};
use device::ops::Slot;
use device::ops::embedding_backward::{Factors, ScratchShape, TileOrigin, Updated};
use schema::stage::ActionPart;
use schema::{JaggedTensor, ModelConfig, Op, Optimizer, ShardingPlan, TableConfig, Tile};

use super::input_dist::{self, IdExchange, LocalIds};
use super::layout::SlotLayout;
use super::output_dist::{self, LocalVectors};
use crate::Error;
use crate::context::{DeviceQueue, RankContext};
use crate::lane::Lane;
use crate::memory::{CountingAllocator, MemoryUse, Traffic};
use crate::parameter::{TileState, TileView};
use crate::share::RankBatch;

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
    layout: Arc<SlotLayout>,
    tiles: Vec<Tile>,
    /// The configuration of each tile's table.
    configs: Vec<TableConfig>,
    tables: B::Tables,
    slots: Vec<Slot>,
    optimizer: Optimizer,
    /// Pooled rows of this rank's slots for all ranks' samples, `[B_global, width]`. The buffer is
    /// unused if the lookup writes the output directly.
    local: B::Vector,
    /// Ids of this batch. The buffers are unused if the batch's ids are used unchanged.
    this: IdExchange,
    /// Buffers of the next batch, while it is not being distributed.
    spare: Option<IdExchange>,
    /// The batch of the next step, until its distribution starts.
    next: Option<RankBatch>,
    /// The device's copy of the ids of the last forward pass.
    on_device: B::Jagged,
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
        let layout = Arc::new(SlotLayout::new(model, plan));
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
            this: IdExchange::new(Arc::clone(&layout)),
            spare: Some(IdExchange::new(Arc::clone(&layout))),
            next: None,
            on_device: B::Jagged::default(),
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
        let buffers = traffic.id_buffers;
        room.count(MemoryUse::Exchange, buffers * LocalIds::bytes(ids, bags, scales));
        let arriving = buffers * input_dist::arriving_bytes(ids, bags, scales);
        let vectors = gradient * size_of::<f32>();
        let vectors = if layout.whole {
            0
        } else {
            room.count(MemoryUse::Exchange, vectors);
            output_dist::message_bytes(vectors, layout.slots.len())
        };
        (arriving + vectors) as u64
    }

    /// Sets the batch that the next step trains, so that this step can distribute its ids.
    pub fn set_next(&mut self, next: RankBatch) {
        self.next = Some(next);
    }

    /// Starts the distribution of the ids of the next batch, if it is known.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn start_next(&mut self, lane: &mut Lane<IdExchange>) -> Result<(), Error> {
        let Some(next) = self.next.take() else { return Ok(()) };
        let Some(mut exchange) = self.spare.take() else { return Ok(()) };
        exchange.batch = Some(next);
        lane.start(exchange)
    }

    /// Waits for the distribution of ids that the step before has started. Without one, distributes
    /// those of `sparse` now.
    ///
    /// # Errors
    /// As [`Self::distribute`].
    pub fn finish_next(
        &mut self,
        context: &mut RankContext<B>,
        sparse: &JaggedTensor,
        first_sample: usize,
        check: IdCheck,
    ) -> Result<(), Error> {
        let RankContext { comm, profiler, .. } = context;
        if comm.input.count() == 0 {
            return self.distribute(context, sparse, first_sample, check);
        }
        let op = Op::InputDist { ids: sparse.values.len() };
        let exchange = profiler.op(op, || comm.input.finish())?;
        self.spare = Some(std::mem::replace(&mut self.this, exchange));
        Ok(())
    }

    /// Distributes the ids of `sparse`, this rank's samples from `first_sample` of the global batch
    /// on, to the owners of their rows.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] before any weight of this rank changes, or
    /// [`Error::Communication`].
    pub fn distribute(
        &mut self,
        context: &mut RankContext<B>,
        sparse: &JaggedTensor,
        first_sample: usize,
        check: IdCheck,
    ) -> Result<(), Error> {
        let RankContext { comm, profiler, .. } = context;
        let op = Op::InputDist { ids: sparse.values.len() };
        profiler.op(op, || match (self.layout.as_given, check) {
            (true, IdCheck::OnHost) => input_dist::check_ids(&self.layout, sparse, first_sample),
            (true, IdCheck::OnDevice) => Ok(()),
            (false, _) => comm.input.run_with(|comm| self.this.run(comm, sparse, first_sample)),
        })
    }

    /// Copies the distributed ids to the device.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn copy(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        sparse: &JaggedTensor,
    ) -> Result<(), Error> {
        let LocalIds { jagged, scales, .. } = &self.this.ids;
        let jagged = if self.layout.as_given { sparse } else { jagged };
        Ok(device.send_ids(queue, jagged, scales.as_deref(), &mut self.on_device)?)
    }

    /// Looks up the distributed ids. If this rank has every table whole, writes the pooled vectors
    /// of its samples to `pooled [B, ΣD]`. Errors that the device detects in the ids are recorded
    /// in `scalars`.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn look_up(
        &mut self,
        context: &mut RankContext<B>,
        sparse: &JaggedTensor,
        pooled: &mut B::Vector,
        scalars: &mut B::Scalars,
    ) -> Result<(), Error> {
        let RankContext { device, queue, comm, profiler } = context;
        let LocalIds { jagged, scales, .. } = &self.this.ids;
        let jagged = if self.layout.as_given { sparse } else { jagged };
        let (elements, row_bytes) =
            elements_and_bytes(&self.slots, &self.configs, &self.tiles, jagged);
        let len = jagged.batch_size * self.layout.widths[comm.rank().index()];
        // If one rank holds every table, the lookup writes the pooled vectors directly.
        let out = if self.layout.whole {
            pooled
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
        let (bag_scales, on_device) = (scales.as_deref(), &self.on_device);
        let ids = BatchIds { jagged, bag_scales, on_device };
        let tables = &mut self.tables;
        Ok(profiler.op(op, || device.lookup(queue, tables, ids, out, scalars))?)
    }

    /// Carries out a part of the exchange of pooled vectors, which ends in `pooled [B, ΣD]` of this
    /// rank's `samples`.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn exchange_vectors(
        &mut self,
        context: &mut RankContext<B>,
        part: ActionPart,
        pooled: &mut B::Vector,
        samples: usize,
    ) -> Result<(), Error> {
        if self.layout.whole {
            return Ok(());
        }
        let RankContext { device, queue, comm, profiler } = context;
        let (batch_sizes, width) =
            (&self.this.ids.batch_sizes[..], self.layout.widths[comm.rank().index()]);
        let op = Op::OutputDist { elements: batch_sizes.iter().sum::<usize>() * width };
        let (output, vectors, lane) = (&mut self.output, &self.local, &mut comm.pooled);
        let device_queue = DeviceQueue { device: &*device, queue };
        let local = LocalVectors { vectors, batch_sizes, width };
        if part == ActionPart::Start {
            return output.send_vectors(device_queue, lane, local);
        }
        profiler.op(op, || {
            if part == ActionPart::Whole {
                output.send_vectors(device_queue, lane, local)?;
            }
            output.receive_vectors(device_queue, lane, local, pooled, samples)
        })
    }

    /// Carries out a part of the exchange of gradients: `d_pooled [B, ΣD]` of this rank's `samples`
    /// goes to the owners of the rows.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn exchange_gradients(
        &mut self,
        context: &mut RankContext<B>,
        part: ActionPart,
        d_pooled: &B::Vector,
        samples: usize,
    ) -> Result<(), Error> {
        if self.layout.whole {
            return Ok(());
        }
        let RankContext { device, queue, comm, profiler } = context;
        let op = Op::GradientDist { elements: samples * self.layout.pooled_width };
        let (layout, output, lane) = (&self.layout, &mut self.output, &mut comm.pooled);
        let device_queue = DeviceQueue { device: &*device, queue };
        if part == ActionPart::Start {
            return output.send_gradient(layout, device_queue, lane, d_pooled, samples);
        }
        profiler.op(op, || {
            if part == ActionPart::Whole {
                output.send_gradient(layout, device_queue, lane, d_pooled, samples)?;
            }
            output.receive_gradient(device_queue, lane)
        })
    }

    /// Updates the rows of the last lookup from the exchanged gradients, or from `d_pooled [B, ΣD]`
    /// if one rank holds every table. `sparse` must be that of the lookup. `scalars` holds the
    /// learning rates.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn update(
        &mut self,
        context: &mut RankContext<B>,
        sparse: &JaggedTensor,
        d_pooled: &B::Vector,
        scalars: &mut B::Scalars,
    ) -> Result<(), Error> {
        let RankContext { device, queue, comm, profiler } = context;
        let gradient = if self.layout.whole { d_pooled } else { self.output.gradient() };
        let LocalIds { jagged, scales, .. } = &self.this.ids;
        let jagged = if self.layout.as_given { sparse } else { jagged };
        let (elements, _) = elements_and_bytes(&self.slots, &self.configs, &self.tiles, jagged);
        let (bag_scales, on_device) = (scales.as_deref(), &self.on_device);
        let ids = BatchIds { jagged, bag_scales, on_device };
        // Distinct rows are known only at the end of the step, when `complete` sets them.
        let op = Op::EmbeddingBackward {
            ids: jagged.values.len(),
            unique_rows: 0,
            elements,
            unique_elements: 0,
            unique_row_bytes: 0,
            pooled_elements: jagged.batch_size * self.layout.widths[comm.rank().index()],
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
