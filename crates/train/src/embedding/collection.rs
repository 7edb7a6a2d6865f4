//! The tables of one rank, and the operations that use them: tiles, whose ids and gradients come
//! from all ranks, and whole tables, in which each rank looks up its own samples.

use std::sync::Arc;

use device::Backend;
use device::backend::{TileRoom, TileRows};
use device::ops::embedding_backward::{Factors, ScratchShape, Updated};
use device::ops::{Slot, SlotOutput};
use schema::stage::ActionPart;
use schema::{JaggedTensor, JobConfig, Op, Optimizer, Rank, RowScope, ShardingPlan, Tile};

use super::input_dist::{self, BatchUse, IdExchange, LocalIds};
use super::layout::{self, LookupEstimate, SlotLayout};
use super::output_dist::{self, LocalVectors};
use super::replicas::{ReplicaGradient, ReplicaSums};
use super::row_terms::{RowTermExchange, TileGradient};
use super::tables::{LookupSize, TableGroup};
use crate::Error;
use crate::context::{DeviceQueue, RankContext};
use crate::lane::Lane;
use crate::memory::{CountingAllocator, MemoryUse, Traffic};
use crate::parameter::{TileState, TileView};
use crate::share::RankBatch;

/// The embedding tables of a model on one rank. The exchanges carry ids to the tiles, and pooled
/// vectors back to the ranks of the samples. Whole tables write the vectors in place.
pub struct EmbeddingCollection<B: Backend> {
    layout: Arc<SlotLayout>,
    /// All tiles that this rank holds: those of `tiled`, then those of `whole`.
    tiles: Vec<Tile>,
    /// Number of tiles that this rank saves. Only rank 0 saves replicated tables.
    saved: usize,
    /// Tiles of this rank in which ids of all ranks are looked up.
    tiled: TableGroup<B>,
    /// Whole tables in which ids of this rank's samples are looked up.
    whole: TableGroup<B>,
    optimizer: Optimizer,
    /// Pooled rows of this rank's tiles for all ranks' samples, `[B_global, width]`.
    local: B::Vector,
    /// Ids of this batch.
    this: IdExchange,
    /// Buffers of the next batch, while it is not being distributed.
    spare: Option<IdExchange>,
    /// The batch of the next step, until its distribution starts.
    next: Option<RankBatch>,
    output: output_dist::PooledExchange<B>,
    replicas: ReplicaSums,
    /// Is `None` if the update rule needs nothing of other column tiles.
    terms: Option<RowTermExchange>,
}

impl<B: Backend> EmbeddingCollection<B> {
    /// Creates the collection from `tiles`, the tiles that this rank holds, in the order of
    /// [`ShardingPlan::held_by`].
    #[must_use]
    pub fn new(
        room: &mut CountingAllocator<'_, B>,
        config: &JobConfig,
        plan: &ShardingPlan,
        rank: Rank,
        mut tiles: Vec<TileState>,
    ) -> Self {
        let (model, optimizers) = (&config.model, &config.optimizer);
        let layout = Arc::new(SlotLayout::new(model, plan));
        let slot = |slot: &layout::Slot| Slot {
            tile: slot.tile,
            column: layout.local_column(rank.index(), slot),
        };
        let whole_slot =
            |slot: &layout::Slot| Slot { tile: slot.tile, column: slot.message_column };
        let slots: Vec<Slot> = layout.slots[rank.index()].iter().map(slot).collect();
        let local: Vec<Slot> = layout.local.iter().map(whole_slot).collect();
        let local_columns = SlotOutput::Columns(layout.local_width(rank.index()));
        let held: Vec<Tile> = plan.held_by(rank).cloned().collect();
        let split = held.len() - layout::whole_tiles(model, plan).len();
        let whole_tiles = tiles.split_off(split.min(tiles.len()));
        let mut group = |rectangles: &[Tile], tiles, slots, output| {
            TableGroup::new(room, &model.tables, rectangles.to_vec(), tiles, slots, output)
        };
        let columns = SlotOutput::Columns(layout.pooled_width);
        Self {
            tiled: group(&held[..split], tiles, slots, local_columns),
            whole: group(&held[split..], whole_tiles, local, columns),
            saved: held.iter().filter(|tile| tile.rank == rank).count(),
            tiles: held,
            optimizer: optimizers.sparse.kind,
            local: B::Vector::default(),
            this: IdExchange::new(Arc::clone(&layout)),
            spare: Some(IdExchange::new(Arc::clone(&layout))),
            next: None,
            output: output_dist::PooledExchange::new(room, Arc::clone(&layout), rank),
            replicas: ReplicaSums::default(),
            terms: RowScope::exchanges_terms(optimizers, plan)
                .then(|| RowTermExchange::new(plan, rank)),
            layout,
        }
    }

    /// Returns all tiles that this rank holds: its own in plan order, then replicated tables.
    #[must_use]
    pub fn held_tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// Returns the tiles that this rank saves, which come first among those that it holds.
    #[must_use]
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles[..self.saved]
    }

    /// Returns the weights and state of some rows of a tile that this rank holds.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn tile<'a>(
        &'a self,
        device_queue: DeviceQueue<'_, B>,
        TileRows { tile, rows }: TileRows,
        room: &'a mut TileRoom,
    ) -> Result<TileView<'a>, Error> {
        let tiled = self.tiled.tiles().len();
        match tile.checked_sub(tiled) {
            None => self.tiled.tile(device_queue, TileRows { tile, rows }, room),
            Some(tile) => self.whole.tile(device_queue, TileRows { tile, rows }, room),
        }
    }

    /// Replaces the whole tables by parts of the same tables, which contain the rows of the next
    /// batch's ids.
    ///
    /// # Errors
    /// [`Error::Device`] if the device has not enough memory.
    pub fn replace_tiles(&mut self, device: &B, tiles: Vec<TileState>) -> Result<(), Error> {
        self.whole.replace(device, tiles)
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
        rank: Rank,
        traffic: &Traffic<'_>,
        room: &mut CountingAllocator<'_, B>,
    ) -> u64 {
        let layout = &self.layout;
        let unrolled =
            layout.slots[rank.index()].len() + layout.in_sum_order.len() + layout.local.len();
        room.count(MemoryUse::Exchange, unrolled * size_of::<layout::Slot>());
        self.tiled_memory(rank, traffic, room) + self.whole_memory(traffic, room)
    }

    fn tiled_memory(
        &self,
        rank: Rank,
        traffic: &Traffic<'_>,
        room: &mut CountingAllocator<'_, B>,
    ) -> u64 {
        let layout = &self.layout;
        if !layout.has_tiles() {
            return 0;
        }
        let (slots, samples) = (&layout.slots[rank.index()], traffic.batch_size);
        let width = layout.local_width(rank.index());
        let size = layout.lookup_size(slots, samples, traffic.ids_per_bag);
        let gradient = samples * width;
        count_updates::<B>(room, slots.len(), size, gradient, layout.any_mean);
        let LookupEstimate { ids, bags, elements } = size;
        let scales = if layout.any_mean { bags } else { 0 };
        let buffers = traffic.id_buffers;
        room.count(MemoryUse::Exchange, buffers * LocalIds::bytes(ids, bags, scales));
        if self.terms.is_some() {
            room.count(MemoryUse::Exchange, RowTermExchange::bytes(ids, elements));
        }
        let vectors = gradient * size_of::<f32>();
        room.count(MemoryUse::Exchange, vectors);
        let arriving = buffers * input_dist::arriving_bytes(ids, bags, scales);
        (arriving + output_dist::message_bytes(layout, rank.index(), samples)) as u64
    }

    fn whole_memory(&self, traffic: &Traffic<'_>, room: &mut CountingAllocator<'_, B>) -> u64 {
        let (layout, world_size) = (&self.layout, self.layout.slots.len());
        if layout.local.is_empty() {
            return 0;
        }
        let samples = traffic.batch_size.div_ceil(world_size);
        let size = layout.lookup_size(&layout.local, samples, traffic.ids_per_bag);
        let LookupEstimate { ids, bags, .. } = size;
        let gradient = samples * layout.pooled_width;
        count_updates::<B>(room, layout.local.len(), size, gradient, layout.any_local_mean);
        let mut messages = 0;
        if !layout.as_given {
            let scales = if layout.any_local_mean { bags } else { 0 };
            room.count(
                MemoryUse::Exchange,
                traffic.id_buffers * LocalIds::bytes(ids, bags, scales),
            );
            messages += traffic.id_buffers * input_dist::arriving_bytes(ids, bags, scales);
        }
        if !layout.replica_rows.is_empty() {
            // At most all rows are touched, by the batch of all ranks.
            let all = layout.lookup_size(&layout.local, traffic.batch_size, traffic.ids_per_bag);
            let cells = |tile: &Tile| tile.row_count().saturating_mul(tile.dim());
            let most = self.whole.tiles().iter().map(cells).fold(0, usize::saturating_add);
            let most_rows =
                layout.replica_rows.iter().fold(0u64, |sum, &rows| sum.saturating_add(rows));
            let rows = all.ids.min(usize::try_from(most_rows).unwrap_or(usize::MAX));
            let elements = all.elements.min(most);
            let masks = traffic.id_buffers * self.this.touched.bytes(rows);
            room.count(MemoryUse::Exchange, masks + ReplicaSums::bytes(rows, elements));
            messages += 2 * elements * size_of::<f32>();
        }
        messages as u64
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
    ) -> Result<(), Error> {
        let RankContext { comm, profiler, .. } = context;
        if comm.input.count() == 0 {
            return self.distribute(context, sparse, first_sample, BatchUse::Training);
        }
        let op = Op::InputDist { ids: sparse.values.len() };
        let exchange = profiler.op(op, || comm.input.finish())?;
        self.spare = Some(std::mem::replace(&mut self.this, exchange));
        Ok(())
    }

    /// Distributes the ids of `sparse`, this rank's samples from `first_sample` of the global batch
    /// on, to the owners of their rows.
    ///
    /// An asynchronous device checks the ids of a training step itself if they are used unchanged.
    /// An id outside its table then becomes an error at the end of the step, and the device skips
    /// the updates of this step.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] before any weight of this rank changes, or
    /// [`Error::Communication`].
    pub fn distribute(
        &mut self,
        context: &mut RankContext<B>,
        sparse: &JaggedTensor,
        first_sample: usize,
        batch_use: BatchUse,
    ) -> Result<(), Error> {
        let RankContext { comm, profiler, .. } = context;
        let op = Op::InputDist { ids: sparse.values.len() };
        let is_given = self.layout.as_given && comm.world_size() == 1;
        let is_checked_later = is_given && B::IS_ASYNC && batch_use == BatchUse::Training;
        profiler.op(op, || match is_given {
            true if is_checked_later => Ok(()),
            true => input_dist::check_ids(&self.layout, sparse, first_sample),
            false => {
                let run = |comm: &mut _| self.this.run(comm, sparse, first_sample, batch_use);
                comm.input.run_with(run)
            }
        })
    }

    /// Copies the distributed ids to the device.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn copy(
        &mut self,
        device_queue: DeviceQueue<'_, B>,
        sparse: &JaggedTensor,
    ) -> Result<(), Error> {
        if self.layout.has_tiles() {
            let LocalIds { jagged, scales, .. } = &self.this.ids;
            self.tiled.send(device_queue, jagged, scales.as_deref())?;
        }
        if self.whole.is_empty() {
            return Ok(());
        }
        let (jagged, scales) = own_ids(&self.layout, &self.this, sparse);
        self.whole.send(device_queue, jagged, scales)
    }

    /// Looks up the distributed ids. Writes the pooled vectors of whole tables to their columns of
    /// `pooled [B, ΣD]`. Errors that the device detects in the ids are recorded in `scalars`.
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
        let size = self.lookup_size(sparse);
        let pooled_elements = self.looked_up_elements(context.comm.rank(), sparse);
        let RankContext { device, queue, comm, profiler } = context;
        let LookupSize { bags, ids, elements, row_bytes } = size;
        let op = Op::EmbeddingForward { bags, ids, elements, pooled_elements, row_bytes };
        let device_queue = DeviceQueue { device: &*device, queue };
        profiler.op(op, || {
            if self.layout.has_tiles() {
                let LocalIds { jagged, scales, .. } = &self.this.ids;
                let width = self.layout.local_width(comm.rank().index());
                device.grow(&mut self.local, jagged.batch_size * width)?;
                let (scales, out) = (scales.as_deref(), &mut self.local);
                self.tiled.look_up(device_queue, jagged, scales, out, scalars)?;
            }
            if self.whole.is_empty() {
                return Ok(());
            }
            let (jagged, scales) = own_ids(&self.layout, &self.this, sparse);
            self.whole.look_up(device_queue, jagged, scales, pooled, scalars)
        })
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
        if !self.layout.has_tiles() {
            return Ok(());
        }
        let RankContext { device, queue, comm, profiler } = context;
        let batch_sizes = &self.this.ids.batch_sizes[..];
        let width = self.layout.looked_up_width(comm.rank().index());
        let op = Op::OutputDist { elements: batch_sizes.iter().sum::<usize>() * width };
        let (output, vectors, lanes) = (&mut self.output, &self.local, &mut comm.pooled);
        let device_queue = DeviceQueue { device: &*device, queue };
        let local = LocalVectors { vectors, batch_sizes };
        if part == ActionPart::Start {
            return output.send_vectors(device_queue, lanes, local);
        }
        profiler.op(op, || {
            if part == ActionPart::Whole {
                output.send_vectors(device_queue, lanes, local)?;
            }
            output.receive_vectors(device_queue, lanes, local, pooled, samples)
        })
    }

    /// Carries out a part of the exchange of gradients: `d_pooled [B, ΣD]` of this rank's samples
    /// goes to the owners of the rows, and its sums by row of replicated tables are added over
    /// ranks.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn exchange_gradients(
        &mut self,
        context: &mut RankContext<B>,
        part: ActionPart,
        sparse: &JaggedTensor,
        d_pooled: &B::Vector,
        scalars: &B::Scalars,
    ) -> Result<(), Error> {
        self.sum_replicas(context, part, sparse, d_pooled, scalars)?;
        if !self.layout.has_tiles() {
            return Ok(());
        }
        let samples = sparse.batch_size;
        let RankContext { device, queue, comm, profiler } = context;
        let op = Op::GradientDist { elements: samples * self.layout.tiled_width };
        let (output, lanes) = (&mut self.output, &mut comm.pooled);
        let device_queue = DeviceQueue { device: &*device, queue };
        if part == ActionPart::Start {
            return output.send_gradient(device_queue, lanes, d_pooled, samples);
        }
        profiler.op(op, || {
            if part == ActionPart::Whole {
                output.send_gradient(device_queue, lanes, d_pooled, samples)?;
            }
            output.receive_gradient(device_queue, lanes)
        })
    }

    fn sum_replicas(
        &mut self,
        context: &mut RankContext<B>,
        part: ActionPart,
        sparse: &JaggedTensor,
        d_pooled: &B::Vector,
        scalars: &B::Scalars,
    ) -> Result<(), Error> {
        if self.layout.replica_rows.is_empty() {
            return Ok(());
        }
        let RankContext { device, queue, comm, profiler } = context;
        let device_queue = DeviceQueue { device: &*device, queue };
        let (jagged, bag_scales) = own_ids(&self.layout, &self.this, sparse);
        let gradient = ReplicaGradient { jagged, bag_scales, d_pooled, scalars };
        let (lane, touched) = (&mut comm.replicas, &self.this.touched);
        if part != ActionPart::Finish {
            self.replicas.start(device_queue, lane, &mut self.whole, touched, gradient)?;
        }
        if part == ActionPart::Start {
            return Ok(());
        }
        let op = Op::AllReduce { elements: self.replicas.sums().sums.len() };
        profiler.op(op, || self.replicas.finish(lane))
    }

    /// Exchanges what the update rule needs of rows whose columns are split.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn exchange_terms(
        &mut self,
        context: &mut RankContext<B>,
        scalars: &B::Scalars,
    ) -> Result<(), Error> {
        let Some(terms) = &mut self.terms else { return Ok(()) };
        let LocalIds { jagged, scales, .. } = &self.this.ids;
        let (bag_scales, gradient) = (scales.as_deref(), self.output.gradient());
        let given = TileGradient { jagged, bag_scales, gradient, scalars };
        let RankContext { device, queue, comm, profiler } = context;
        terms.sum(DeviceQueue { device: &*device, queue }, &mut self.tiled, given)?;
        let op = Op::AllReduce { elements: terms.rows().1.len() };
        profiler.op(op, || terms.exchange(&mut comm.pooled.by_rank))
    }

    /// Updates the rows of the last lookup from the exchanged gradients. Whole tables of a single
    /// rank are updated from `d_pooled [B, ΣD]`. `sparse` must be that of the lookup. `scalars`
    /// holds the learning rates.
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
        let size = self.lookup_size(sparse);
        // Distinct rows are known only at the end of the step, when `complete` sets them.
        let op = Op::EmbeddingBackward {
            ids: size.ids,
            unique_rows: 0,
            elements: size.elements,
            unique_elements: 0,
            unique_row_bytes: 0,
            pooled_elements: self.looked_up_elements(context.comm.rank(), sparse),
            optimizer: self.optimizer,
        };
        let RankContext { device, queue, profiler, .. } = context;
        let device_queue = DeviceQueue { device: &*device, queue };
        profiler.op(op, || {
            self.update_tiles(device_queue, scalars)?;
            if self.whole.is_empty() {
                return Ok(());
            }
            if !self.layout.replica_rows.is_empty() {
                let (tables, _) = self.whole.parts();
                let sums = self.replicas.sums();
                return Ok(device.apply_rows(queue, tables, sums, None, scalars)?);
            }
            let (jagged, scales) = own_ids(&self.layout, &self.this, sparse);
            self.whole.update(device_queue, jagged, scales, d_pooled, scalars)
        })
    }

    fn update_tiles(
        &mut self,
        device_queue: DeviceQueue<'_, B>,
        scalars: &mut B::Scalars,
    ) -> Result<(), Error> {
        if !self.layout.has_tiles() {
            return Ok(());
        }
        if let Some(terms) = &self.terms {
            let ((tables, _), (sums, totals)) = (self.tiled.parts(), terms.rows());
            let DeviceQueue { device, queue } = device_queue;
            return Ok(device.apply_rows(queue, tables, sums, Some(totals), scalars)?);
        }
        let LocalIds { jagged, scales, .. } = &self.this.ids;
        let gradient = self.output.gradient();
        self.tiled.update(device_queue, jagged, scales.as_deref(), gradient, scalars)
    }

    /// Returns the sizes of the lookup of the distributed ids.
    fn lookup_size(&self, sparse: &JaggedTensor) -> LookupSize {
        let (jagged, _) = own_ids(&self.layout, &self.this, sparse);
        self.tiled.lookup_size(&self.this.ids.jagged) + self.whole.lookup_size(jagged)
    }

    /// Returns the number of values that the lookup writes.
    fn looked_up_elements(&self, rank: Rank, sparse: &JaggedTensor) -> usize {
        let tiled = self.this.ids.jagged.batch_size * self.layout.looked_up_width(rank.index());
        tiled + sparse.batch_size * (self.layout.pooled_width - self.layout.tiled_width)
    }
}

/// Returns the ids of this rank's samples for whole tables, and the scales of their bags.
fn own_ids<'a>(
    layout: &SlotLayout,
    ids: &'a IdExchange,
    sparse: &'a JaggedTensor,
) -> (&'a JaggedTensor, Option<&'a [f32]>) {
    if layout.as_given { (sparse, None) } else { (&ids.own.jagged, ids.own.scales.as_deref()) }
}

/// Counts the memory for the sort of the updates.
fn count_updates<B: Backend>(
    room: &mut CountingAllocator<'_, B>,
    slots: usize,
    LookupEstimate { ids, bags, .. }: LookupEstimate,
    gradient: usize,
    has_factors: bool,
) {
    let factors = if has_factors { Factors::Present } else { Factors::Absent };
    let scratch = ScratchShape { ids, bags, slots, gradient, factors };
    room.count(MemoryUse::RowUpdates, B::update_bytes(scratch));
}

/// Sets the number of distinct rows of an update, which the device reports at the end of the step.
pub(crate) fn complete(op: &mut Op, updated: Updated) {
    if let Op::EmbeddingBackward { unique_rows, unique_elements, unique_row_bytes, .. } = op {
        *unique_rows = updated.unique_rows;
        *unique_elements = updated.unique_elements;
        *unique_row_bytes = updated.unique_bytes;
    }
}
