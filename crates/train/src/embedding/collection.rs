//! The tables of one rank, and the operations that use them: tiles, whose ids and gradients come
//! from all ranks of a group, and whole tables, in which each rank looks up its own samples.

use std::sync::Arc;

use device::Backend;
use device::backend::{BatchIds, DistributedIds, TileRoom, TileRows};
use device::cache::{CacheShape, RowAccess};
use device::ops::embedding_backward::{Factors, ScratchShape, Updated};
use device::ops::jagged::IdMessages;
use device::ops::{Slot, SlotOutput};
use schema::random::CounterRng;
use schema::stage::ActionPart;
use schema::{
    JaggedTensor, JobConfig, Op, Optimizer, Rank, ReplicaGroups, RowScope, ShardingPlan, Tile,
};

use super::group_average::GroupAverage;
use super::input_dist::{self, BatchUse, IdExchange};
use super::layout::{self, LookupEstimate, SlotLayout};
use super::output_dist::{self, LocalVectors, PooledGradient};
use super::replicas::{ReplicaSums, RowGradient};
use super::row_terms::RowTermExchange;
use super::stored_tile::{CacheUse, FetchTime};
use super::tables::{LookupSize, TableGroup};
use super::touched_rows::TouchedRows;
use crate::Error;
use crate::context::{DeviceQueue, RankContext};
use crate::memory::{CountingAllocator, MemoryUse, Traffic};
use crate::parameter::{TileState, TileView};
use crate::share::{self, RankBatch};

/// The embedding tables of a model on one rank. The exchanges carry ids to the tiles, and pooled
/// vectors back to the ranks of the samples. Whole tables write the vectors in place.
pub struct EmbeddingCollection<B: Backend> {
    layout: Arc<SlotLayout>,
    /// All tiles that this rank holds: those of `tiled`, then those of `whole`.
    tiles: Vec<Tile>,
    /// Number of tiles that this rank saves. Only rank 0 saves replicated tables.
    saved: usize,
    groups: ReplicaGroups,
    /// Tiles of this rank in which ids of all ranks of its group are looked up.
    tiled: TableGroup<B>,
    /// Whole tables in which ids of this rank's samples are looked up.
    whole: TableGroup<B>,
    optimizer: Optimizer,
    /// Pooled rows of this rank's tiles for all samples of its group, `[B_group, width]`.
    local: B::Vector,
    /// Ids of this batch.
    this: IdExchange<B>,
    /// Buffers of the next batch, while it is not being distributed.
    spare: Option<IdExchange<B>>,
    /// The batch of the next step, until its distribution starts.
    next: Option<RankBatch>,
    /// Distributed ids of the next batch, if its rows were fetched ahead.
    ready: Option<IdExchange<B>>,
    output: output_dist::PooledExchange<B>,
    /// Gradients of the rows of whole tables, summed over all ranks.
    replicas: ReplicaSums,
    /// Gradients of the rows of tiles, if they are needed before the update. Replica groups may
    /// have summed them.
    tile_sums: ReplicaSums,
    average: GroupAverage,
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
        let mut layout = SlotLayout::new(model, plan);
        // The ids of tables in files are replaced by slots, so they are copied.
        layout.as_given &= config.storage.is_none();
        let layout = Arc::new(layout);
        let place = plan.place(rank);
        let slot = |slot: &layout::Slot| Slot {
            tile: slot.tile,
            column: layout.local_column(place.index(), slot),
        };
        let whole_slot =
            |slot: &layout::Slot| Slot { tile: slot.tile, column: slot.message_column };
        let slots: Vec<Slot> = layout.slots[place.index()].iter().map(slot).collect();
        let local: Vec<Slot> = layout.local.iter().map(whole_slot).collect();
        let local_columns = SlotOutput::Columns(layout.local_width(place.index()));
        let held: Vec<Tile> = plan.held_by(rank).cloned().collect();
        let split = held.len() - layout::whole_tiles(model, plan).len();
        let whole_tiles = tiles.split_off(split.min(tiles.len()));
        let mut group = |rectangles: &[Tile], tiles, slots, output| {
            TableGroup::new(room, &model.tables, rectangles.to_vec(), tiles, slots, output)
        };
        let columns = SlotOutput::Columns(layout.pooled_width);
        let groups = plan.groups();
        let summed = if groups.sums_gradients() { &held[..split] } else { &[] };
        let rows: Vec<u64> = summed.iter().map(|tile| tile.rows.end - tile.rows.start).collect();
        Self {
            groups,
            tiled: group(&held[..split], tiles, slots, local_columns),
            whole: group(&held[split..], whole_tiles, local, columns),
            saved: held.iter().filter(|tile| tile.rank == rank).count(),
            tiles: held,
            optimizer: optimizers.sparse.kind,
            local: B::Vector::default(),
            this: IdExchange::new(room, Arc::clone(&layout), place, &rows),
            spare: Some(IdExchange::new(room, Arc::clone(&layout), place, &rows)),
            next: None,
            ready: None,
            output: output_dist::PooledExchange::new(room, Arc::clone(&layout), place),
            replicas: ReplicaSums::default(),
            tile_sums: ReplicaSums::default(),
            average: GroupAverage::default(),
            terms: RowScope::exchanges_terms(optimizers, plan)
                .then(|| RowTermExchange::new(plan, rank)),
            layout,
        }
    }

    /// Creates the files of the tiles that have a cache. `shapes` has the shape of each held tile's
    /// cache.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be created.
    pub fn create_files(
        &mut self,
        config: &JobConfig,
        shapes: &[Option<CacheShape>],
    ) -> Result<(), Error> {
        let (tiled, whole) = shapes.split_at(self.tiled.tiles().len());
        self.tiled.create_files(config, tiled)?;
        self.whole.create_files(config, whole)
    }

    /// Overwrites rows of a held tile that is in a file, before the first step.
    ///
    /// # Errors
    /// [`Error::Io`] of the file.
    pub fn restore_rows(
        &mut self,
        device: &B,
        tile: usize,
        state: &TileState,
    ) -> Result<(), Error> {
        match tile.checked_sub(self.tiled.tiles().len()) {
            None => self.tiled.restore_rows(device, tile, state),
            Some(tile) => self.whole.restore_rows(device, tile, state),
        }
    }

    /// Whether the rows of a held tile are in a file.
    #[must_use]
    pub fn is_stored(&self, tile: usize) -> bool {
        match tile.checked_sub(self.tiled.tiles().len()) {
            None => self.tiled.is_stored(tile),
            Some(tile) => self.whole.is_stored(tile),
        }
    }

    /// Returns how the caches of table rows were used so far.
    #[must_use]
    pub fn cache_uses(&self) -> Vec<CacheUse> {
        self.tiled.cache_uses().chain(self.whole.cache_uses()).collect()
    }

    /// Lets the caches evict the rows of the last lookup.
    pub fn release_rows(&mut self, access: RowAccess) {
        self.tiled.release_rows(access);
        self.whole.release_rows(access);
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

    /// Counts the memory that a step needs besides the tiles on a rank with this place in its
    /// group: ids, pooled vectors of the slots, and the sort of the updates. Returns the size of
    /// the exchange's messages in bytes.
    pub fn step_memory(
        &self,
        place: Rank,
        traffic: &Traffic<'_>,
        room: &mut CountingAllocator<'_, B>,
    ) -> u64 {
        let layout = &self.layout;
        let unrolled =
            layout.slots[place.index()].len() + layout.in_sum_order.len() + layout.local.len();
        room.count(MemoryUse::Exchange, unrolled * size_of::<layout::Slot>());
        self.tiled_memory(place, traffic, room) + self.whole_memory(traffic, room)
    }

    fn tiled_memory(
        &self,
        place: Rank,
        traffic: &Traffic<'_>,
        room: &mut CountingAllocator<'_, B>,
    ) -> u64 {
        let layout = &self.layout;
        if !layout.has_tiles() {
            return 0;
        }
        let (slots, width) = (&layout.slots[place.index()], layout.local_width(place.index()));
        // The samples of all ranks of this rank's group.
        let samples = traffic.batch_size.div_ceil(self.groups.count.get() as usize);
        let size = layout.lookup_size(slots, samples, traffic.ids_per_bag);
        let gradient = samples * width;
        count_updates::<B>(room, slots.len(), size, gradient, layout.any_mean);
        let LookupEstimate { ids, bags, elements } = size;
        let scales = if layout.any_mean { bags } else { 0 };
        let buffers = traffic.id_buffers;
        room.count(MemoryUse::Exchange, buffers * B::id_bytes(ids, bags, scales));
        if self.terms.is_some() {
            room.count(MemoryUse::Exchange, RowTermExchange::bytes(ids));
        }
        let mut messages = 0;
        if self.groups.averages_tables() {
            room.count(MemoryUse::Exchange, GroupAverage::bytes());
            messages += GroupAverage::message_bytes();
        }
        if self.groups.sums_gradients() {
            let all = layout.lookup_size(slots, traffic.batch_size, traffic.ids_per_bag);
            let touched = &self.this.touched_in_groups;
            messages += count_sums(room, self.tiled.tiles(), touched, all, buffers);
        } else if self.terms.is_some() {
            room.count(MemoryUse::Exchange, ReplicaSums::bytes(ids, elements) / 2);
        }
        let vectors = gradient * size_of::<f32>();
        room.count(MemoryUse::Exchange, vectors);
        let arriving = buffers * IdMessages::bytes(ids, bags, scales);
        messages += arriving + output_dist::message_bytes(layout, place.index(), samples);
        messages as u64
    }

    fn whole_memory(&self, traffic: &Traffic<'_>, room: &mut CountingAllocator<'_, B>) -> u64 {
        let layout = &self.layout;
        if layout.local.is_empty() {
            return 0;
        }
        let ranks = layout.slots.len() * self.groups.count.get() as usize;
        let samples = traffic.batch_size.div_ceil(ranks);
        let size = layout.lookup_size(&layout.local, samples, traffic.ids_per_bag);
        let LookupEstimate { ids, bags, .. } = size;
        let gradient = samples * layout.pooled_width;
        count_updates::<B>(room, layout.local.len(), size, gradient, layout.any_local_mean);
        let mut messages = 0;
        if !layout.as_given {
            let scales = if layout.any_local_mean { bags } else { 0 };
            let buffers = traffic.id_buffers;
            room.count(MemoryUse::Exchange, buffers * B::id_bytes(ids, bags, scales));
            messages += buffers * IdMessages::bytes(ids, bags, scales);
        }
        if !layout.replica_rows.is_empty() {
            let all = layout.lookup_size(&layout.local, traffic.batch_size, traffic.ids_per_bag);
            let (tiles, touched) = (self.whole.tiles(), &self.this.touched);
            messages += count_sums(room, tiles, touched, all, traffic.id_buffers);
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
    /// [`Error::Communication`], or [`Error::Device`] if the device failed.
    pub fn start_next(&mut self, context: &mut RankContext<B>) -> Result<(), Error> {
        let Some(next) = self.next.take() else { return Ok(()) };
        let Some(mut exchange) = self.spare.take() else { return Ok(()) };
        exchange.batch = Some(next);
        release(context.device_queue(), &exchange)?;
        context.comm.input.start(exchange)
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
        if let Some(ready) = self.ready.take() {
            self.spare = Some(std::mem::replace(&mut self.this, ready));
            return Ok(());
        }
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
        release(context.device_queue(), &self.this)?;
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

    /// Waits for the ids of the next batch, if their distribution has started, and begins to fetch
    /// its rows that are only in files.
    ///
    /// # Errors
    /// [`Error::Communication`], and the errors of [`Self::fetch_rows`].
    pub fn fetch_ahead(&mut self, context: &mut RankContext<B>) -> Result<(), Error> {
        let RankContext { device, queue, comm, .. } = context;
        if comm.input.count() == 0 {
            return Ok(());
        }
        let mut next = comm.input.finish()?;
        // This wait belongs to this action, not to the distribution of ids that ends next.
        comm.input.set_wait(None);
        let device_queue = DeviceQueue { device: &*device, queue };
        self.tiled.fetch_rows(device_queue, &mut next.tiled, FetchTime::Ahead)?;
        self.whole.fetch_rows(device_queue, &mut next.own, FetchTime::Ahead)?;
        self.ready = Some(next);
        Ok(())
    }

    /// Brings the rows of the distributed ids that are only in files into the caches.
    ///
    /// # Errors
    /// [`Error::CacheFull`] if they do not fit. [`Error::Io`] and [`Error::StoredRows`] of a file.
    pub fn fetch_rows(
        &mut self,
        device_queue: DeviceQueue<'_, B>,
        time: FetchTime,
    ) -> Result<(), Error> {
        self.tiled.fetch_rows(device_queue, &mut self.this.tiled, time)?;
        self.whole.fetch_rows(device_queue, &mut self.this.own, time)
    }

    /// Copies ids that are looked up unchanged to the device. Distributed ids are there already,
    /// and the queue waits for them.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn copy(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        sparse: &JaggedTensor,
    ) -> Result<(), Error> {
        let IdExchange { tiled, own, .. } = &mut self.this;
        device.acquire_ids(queue, tiled)?;
        device.acquire_ids(queue, own)?;
        if self.layout.as_given && !self.whole.is_empty() {
            device.send_ids(queue, sparse, own)?;
        }
        Ok(())
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
        let pooled_elements = self.looked_up_elements(context.comm.place(), sparse);
        let RankContext { device, queue, comm, profiler } = context;
        let LookupSize { bags, ids, elements, row_bytes } = size;
        let op = Op::EmbeddingForward { bags, ids, elements, pooled_elements, row_bytes };
        profiler.op(op, || {
            if self.layout.has_tiles() {
                let width = self.layout.local_width(comm.place().index());
                device.grow(&mut self.local, self.this.tiled.counts().samples() * width)?;
                let (tables, ids) = (self.tiled.on_device(), tile_ids(&self.this));
                device.lookup(queue, tables, ids, &mut self.local, scalars)?;
            }
            if self.whole.is_empty() {
                return Ok(());
            }
            let ids = own_ids(&self.layout, &self.this, sparse);
            Ok(device.lookup(queue, self.whole.on_device(), ids, pooled, scalars)?)
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
        let batch_sizes = &self.this.tiled.counts().batch_sizes[..];
        let width = self.layout.looked_up_width(comm.place().index());
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
    /// ranks. `global_size` is the number of samples of all ranks.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn exchange_gradients(
        &mut self,
        context: &mut RankContext<B>,
        part: ActionPart,
        sparse: &JaggedTensor,
        global_size: usize,
        d_pooled: &B::Vector,
        scalars: &B::Scalars,
    ) -> Result<(), Error> {
        self.sum_replicas(context, part, sparse, d_pooled, scalars)?;
        if !self.layout.has_tiles() {
            return Ok(());
        }
        let samples = sparse.batch_size;
        let factor = self.tile_gradient_factor(context.comm.rank(), global_size);
        let RankContext { device, queue, comm, profiler } = context;
        let op = Op::GradientDist { elements: samples * self.layout.tiled_width };
        let (output, lanes) = (&mut self.output, &mut comm.pooled);
        let device_queue = DeviceQueue { device: &*device, queue };
        let given = PooledGradient { d_pooled, samples, factor };
        if part == ActionPart::Start {
            return output.send_gradient(device_queue, lanes, given);
        }
        profiler.op(op, || {
            if part == ActionPart::Whole {
                output.send_gradient(device_queue, lanes, given)?;
            }
            output.receive_gradient(device_queue, lanes)
        })
    }

    /// Returns the factor that turns gradients of the mean loss over all samples into those of the
    /// mean loss over the samples of this group, if groups update alone.
    fn tile_gradient_factor(&self, rank: Rank, global_size: usize) -> Option<f32> {
        if !self.groups.averages_tables() {
            return None;
        }
        let groups = self.groups.count.get() as usize;
        let group = rank.index() / self.layout.slots.len();
        let samples = share::samples_of_part(global_size, group, groups).len();
        Some(global_size as f32 / samples as f32)
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
        let ids = own_ids(&self.layout, &self.this, sparse);
        let gradient = RowGradient { ids, gradient: d_pooled, scalars };
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

    /// Carries out a part of the sum over replica groups of the gradients of this rank's tiles.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn sum_groups(
        &mut self,
        context: &mut RankContext<B>,
        part: ActionPart,
        scalars: &B::Scalars,
    ) -> Result<(), Error> {
        let touched = &self.this.touched_in_groups;
        if !touched.has_tables() {
            return Ok(());
        }
        let RankContext { device, queue, comm, profiler } = context;
        let (lane, sums) = (&mut comm.groups, &mut self.tile_sums);
        if part != ActionPart::Finish {
            let device_queue = DeviceQueue { device: &*device, queue };
            let gradient = tile_gradient(&self.this, &self.output, scalars);
            sums.start(device_queue, lane, &mut self.tiled, touched, gradient)?;
        }
        if part == ActionPart::Start {
            return Ok(());
        }
        let op = Op::AllReduce { elements: sums.sums().sums.len() };
        profiler.op(op, || sums.finish(lane))
    }

    /// Replaces this rank's tiles by their mean over replica groups. The random bits of `rounding`
    /// must be the same on all ranks.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn average_groups(
        &mut self,
        context: &mut RankContext<B>,
        rounding: CounterRng,
    ) -> Result<(), Error> {
        let RankContext { device, queue, comm, profiler } = context;
        let device_queue = DeviceQueue { device: &*device, queue };
        let values = |tile: &Tile| {
            tile.row_count() * (tile.dim() + self.optimizer.state_per_row(tile.dim()))
        };
        let op = Op::AllReduce { elements: self.tiled.tiles().iter().map(values).sum() };
        let (lane, tiled, optimizer) = (&mut comm.groups, &mut self.tiled, self.optimizer);
        profiler.op(op, || self.average.run(device_queue, lane, tiled, optimizer, rounding))
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
        let RankContext { device, queue, comm, profiler } = context;
        let device_queue = DeviceQueue { device: &*device, queue };
        if !self.groups.sums_gradients() {
            let gradient = tile_gradient(&self.this, &self.output, scalars);
            self.tile_sums.sum_own(device_queue, &mut self.tiled, gradient)?;
        }
        let sums = self.tile_sums.sums();
        terms.compute(device_queue, &mut self.tiled, sums, scalars)?;
        let op = Op::AllReduce { elements: terms.totals().len() };
        profiler.op(op, || terms.exchange(&mut comm.pooled.by_rank, &sums.rows))
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
            pooled_elements: self.looked_up_elements(context.comm.place(), sparse),
            optimizer: self.optimizer,
        };
        let RankContext { device, queue, profiler, .. } = context;
        let device_queue = DeviceQueue { device: &*device, queue };
        profiler.op(op, || {
            self.update_tiles(device_queue, scalars)?;
            if self.whole.is_empty() {
                return Ok::<_, Error>(());
            }
            if !self.layout.replica_rows.is_empty() {
                let (tables, sums) = (self.whole.on_device(), self.replicas.sums());
                return Ok(device.apply_rows(queue, tables, sums, None, scalars)?);
            }
            let ids = own_ids(&self.layout, &self.this, sparse);
            Ok(device.update_rows(queue, self.whole.on_device(), ids, d_pooled, scalars)?)
        })?;
        self.release_rows(RowAccess::Updated);
        Ok(())
    }

    fn update_tiles(
        &mut self,
        DeviceQueue { device, queue }: DeviceQueue<'_, B>,
        scalars: &mut B::Scalars,
    ) -> Result<(), Error> {
        if !self.layout.has_tiles() {
            return Ok(());
        }
        let has_sums = self.terms.is_some() || self.groups.sums_gradients();
        if has_sums && self.tiled.is_empty() {
            return Ok(());
        }
        let tables = self.tiled.on_device();
        if has_sums {
            let sums = self.tile_sums.sums();
            let totals = self.terms.as_ref().map(RowTermExchange::totals);
            return Ok(device.apply_rows(queue, tables, sums, totals, scalars)?);
        }
        let (ids, gradient) = (tile_ids(&self.this), self.output.gradient());
        Ok(device.update_rows(queue, tables, ids, gradient, scalars)?)
    }

    /// Returns the sizes of the lookup of the distributed ids.
    fn lookup_size(&self, sparse: &JaggedTensor) -> LookupSize {
        let (tiled, own) = (self.this.tiled.counts(), self.this.own.counts());
        let own_ids = |slot| match self.layout.as_given {
            true => sparse.feature(slot).len(),
            false => own.ids_per_slot[slot],
        };
        self.tiled.lookup_size(tiled.samples(), |slot| tiled.ids_per_slot[slot])
            + self.whole.lookup_size(sparse.batch_size, own_ids)
    }

    /// Returns the number of values that the lookup writes.
    fn looked_up_elements(&self, place: Rank, sparse: &JaggedTensor) -> usize {
        let tiled = self.this.tiled.counts().samples() * self.layout.looked_up_width(place.index());
        tiled + sparse.batch_size * (self.layout.pooled_width - self.layout.tiled_width)
    }
}

/// Makes the next exchange in these buffers wait for the operations that read them.
fn release<B: Backend>(
    DeviceQueue { device, queue }: DeviceQueue<'_, B>,
    ids: &IdExchange<B>,
) -> Result<(), Error> {
    device.release_ids(queue, &ids.tiled)?;
    Ok(device.release_ids(queue, &ids.own)?)
}

/// Returns the ids of all ranks' samples for tiles.
fn tile_ids<B: Backend>(ids: &IdExchange<B>) -> BatchIds<'_, B> {
    BatchIds { unchanged: None, ids: &ids.tiled }
}

/// Pairs the ids that were looked up in this rank's tiles with the gradient of the vectors that
/// the lookup returned.
fn tile_gradient<'a, B: Backend>(
    ids: &'a IdExchange<B>,
    output: &'a output_dist::PooledExchange<B>,
    scalars: &'a B::Scalars,
) -> RowGradient<'a, B> {
    RowGradient { ids: tile_ids(ids), gradient: output.gradient(), scalars }
}

/// Returns the ids of this rank's samples for whole tables.
fn own_ids<'a, B: Backend>(
    layout: &SlotLayout,
    ids: &'a IdExchange<B>,
    sparse: &'a JaggedTensor,
) -> BatchIds<'a, B> {
    BatchIds { unchanged: layout.as_given.then_some(sparse), ids: &ids.own }
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

/// Counts the memory for the sums over ranks of the gradients of `tiles`, of which the batches of
/// these ranks look up `all`. Returns the bytes of their messages.
fn count_sums<B: Backend>(
    room: &mut CountingAllocator<'_, B>,
    tiles: &[Tile],
    touched: &TouchedRows,
    all: LookupEstimate,
    id_buffers: usize,
) -> usize {
    let sum = |of: fn(&Tile) -> usize| tiles.iter().map(of).fold(0, usize::saturating_add);
    // At most all rows are touched.
    let rows = all.ids.min(sum(Tile::row_count));
    let elements = all.elements.min(sum(|tile| tile.row_count().saturating_mul(tile.dim())));
    let masks = id_buffers * touched.bytes(rows);
    room.count(MemoryUse::Exchange, masks + ReplicaSums::bytes(rows, elements));
    2 * elements * size_of::<f32>()
}

/// Sets the number of distinct rows of an update, which the device reports at the end of the step.
pub(crate) fn complete(op: &mut Op, updated: Updated) {
    if let Op::EmbeddingBackward { unique_rows, unique_elements, unique_row_bytes, .. } = op {
        *unique_rows = updated.unique_rows;
        *unique_elements = updated.unique_elements;
        *unique_row_bytes = updated.unique_bytes;
    }
}
