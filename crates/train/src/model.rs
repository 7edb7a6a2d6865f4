//! The model of one rank: bottom MLP, embeddings, interaction, top MLP and loss.
//!
//! Forward and backward passes are explicit, and buffers are allocated in advance. This file does
//! not depend on data files, schedules or checkpoints.

use std::path::Path;
use std::time::Duration;

use device::MatrixShape;
use device::backend::{Probabilities, StepScalars, TileRoom, TileRows};
use device::buffer::Array;
use device::cache::CacheShape;
use device::optimizer::UpdateRule;
use device::{Backend, Pool};
use schema::stage::Resource;
use schema::{
    Batch, JobConfig, Loss, ModelConfig, Optimizer, OptimizerConfig, Optimizers, Precision,
    ReplicaGroups, Schedule, ShardingPlan, Stage, StepGraph,
};

use crate::Error;
use crate::checkpoint;
use crate::context::{DeviceQueue, RankContext};
use crate::dense::{BUCKET_BYTES, Dense};
use crate::embedding::EmbeddingCollection;
use crate::embedding::collection;
use crate::embedding::row_store::StoreShape;
use crate::embedding::stored_tile::{self, CacheUse};
use crate::initial::{self, Initial};
use crate::layer::ParameterList;
use crate::layer::interaction::InteractionLayer;
use crate::layer::logit::Logit;
use crate::layer::mlp::Mlp;
use crate::layer::wide::Wide;
use crate::memory::{CountingAllocator, MemoryUse, RankMemory, Traffic};
use crate::parameter::{self, DenseParameter, Spot, TileState, TileView};
use crate::share::{RankBatch, SampleShare};
use crate::timing::{SummedTimes, nanoseconds};

mod step;

/// The step of the run that a batch belongs to, which decides learning rates and bias corrections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunStep {
    /// Number of earlier steps of the run, including those before it was resumed.
    pub number: u64,
    /// Factor by which the schedule multiplies the base learning rates.
    pub factor: f64,
}

/// The time of an action of a step on the compute thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActionTime {
    pub elapsed: Duration,
    /// The part of the time in which the thread waited for the exchange of the stage.
    pub waited: Duration,
}

/// The tiles that a rank holds, and the shapes of the caches of those that are in files.
struct TileCaches {
    held: Vec<schema::Tile>,
    shapes: Vec<Option<CacheShape>>,
}

impl TileCaches {
    fn new<B: Backend>(
        config: &JobConfig,
        plan: &ShardingPlan,
        rank: schema::Rank,
    ) -> Result<Self, Error> {
        stored_tile::check::<B>(config, plan)?;
        let held: Vec<schema::Tile> = plan.held_by(rank).cloned().collect();
        let shapes = stored_tile::cache_shapes(config, &held);
        Ok(Self { held, shapes })
    }
}

/// The parameters of one rank, as read from a checkpoint.
pub struct RankParameters {
    /// Dense parameters, which every rank holds in full.
    pub dense: Vec<DenseParameter>,
    /// The tiles that this rank holds, in the order of [`ShardingPlan::held_by`]. Tiles that are in
    /// files are empty.
    pub tiles: Vec<TileState>,
}

impl RankParameters {
    /// Fails if a value read from the checkpoint at `path` is not finite.
    ///
    /// # Errors
    /// [`Error::Value`] names the first value that is not finite.
    pub(crate) fn check_finite(
        &self,
        host: &Pool,
        path: &Path,
        config: &JobConfig,
    ) -> Result<(), Error> {
        let refused = |spot: Option<Spot>| match spot {
            None => Ok(()),
            Some(spot) => {
                Err(Error::Value { path: path.to_owned(), spot, expected: "a finite number" })
            }
        };
        let (sparse, dense) = (config.optimizer.sparse.kind, config.optimizer.dense.kind);
        for parameter in &self.dense {
            refused(parameter.not_finite(dense))?;
        }
        for state in &self.tiles {
            let table = &config.model.tables[state.tile.table.index()];
            refused(parameter::not_finite(host, &state.view(), &table.name, sparse))?;
        }
        Ok(())
    }
}

/// A model for inference only, which has weights but no optimizer state and cannot be trained.
pub struct ForwardModel<B: Backend> {
    model: Model<B>,
}

impl<B: Backend> ForwardModel<B> {
    /// Creates a model with the weights in `parameters`, which have no optimizer state.
    ///
    /// # Errors
    /// Returns the same errors as [`Model::restored`].
    pub fn restored(
        device_queue: DeviceQueue<'_, B>,
        config: &JobConfig,
        plan: &ShardingPlan,
        rank: schema::Rank,
        batch_max: usize,
        parameters: RankParameters,
    ) -> Result<Self, Error> {
        // SGD keeps no state, so it needs no memory. This optimizer is never applied, because this
        // type has no method that trains.
        let none = OptimizerConfig::new(Optimizer::Sgd, 0.0);
        let optimizer = Optimizers { sparse: none, dense: none, ..config.optimizer };
        let config = JobConfig { optimizer, ..config.clone() };
        let model = Model::restored(device_queue, &config, plan, rank, batch_max, parameters)?;
        Ok(Self { model })
    }

    /// Fails if a batch has the wrong shape or ids outside the job's tables.
    ///
    /// # Errors
    /// [`Error::BatchShape`] or [`Error::RowOutOfRange`].
    pub(crate) fn check(&self, share: SampleShare<'_>) -> Result<(), Error> {
        self.model.check(share.batch)?;
        self.model.embedding.check_ids(&share.batch.sparse, share.first_sample)
    }

    /// Replaces the tables by `tiles`, one per table, which contain only the rows that the next
    /// batches look up.
    pub(crate) fn look_up_in(&mut self, device: &B, tiles: Vec<TileState>) -> Result<(), Error> {
        self.model.embedding.replace_tiles(device, tiles)
    }

    /// Computes the probabilities and the sum of the losses, see [`Model::evaluate`].
    ///
    /// # Errors
    /// Returns the same errors as [`Model::evaluate`].
    pub fn evaluate(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
    ) -> Result<(&[f32], f64), Error> {
        self.model.evaluate(context, share)
    }

    /// Computes only the probabilities, see [`Model::score`].
    ///
    /// # Errors
    /// Returns the same errors as [`Model::score`].
    pub fn score(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
    ) -> Result<&[f32], Error> {
        self.model.score(context, share)
    }
}

/// The model of one rank: parameters, layers and their buffers, for batches up to a fixed size.
pub struct Model<B: Backend> {
    loss: Loss,
    /// Seed of initial weights and of the random bits of rounding.
    seed: u64,
    dense_features: usize,
    batch_max: usize,
    parameters: Dense<B>,
    bottom: Mlp<B>,
    interaction: InteractionLayer<B>,
    top: Mlp<B>,
    logit: Logit,
    /// Whether the logit's input is the output of a ReLU, that is, whether the top MLP has hidden
    /// layers.
    logit_after_relu: bool,
    wide: Option<Wide>,
    embedding: EmbeddingCollection<B>,
    groups: ReplicaGroups,
    graph: StepGraph,
    /// Times of the actions of the last step.
    action_times: Vec<ActionTime>,
    optimizers: (OptimizerConfig, OptimizerConfig),
    /// Scalars of training steps and of evaluations. The two are separate, so that an error found
    /// in an evaluation does not stop training.
    scalars: B::Scalars,
    evaluation: B::Scalars,
    buffers: Buffers<B>,
    /// Host buffer for probabilities.
    read: Vec<f32>,
}

/// Whether a forward pass belongs to a training step or to an evaluation.
#[derive(Clone, Copy)]
enum Purpose {
    Training(RunStep),
    Evaluation,
}

impl Purpose {
    /// Selects the scalars of this purpose.
    fn choose<'a, S>(self, training: &'a mut S, evaluation: &'a mut S) -> &'a mut S {
        match self {
            Self::Training(_) => training,
            Self::Evaluation => evaluation,
        }
    }
}

/// A step that was submitted to the device and may still be running.
pub struct Started<B: Backend> {
    step: u64,
    end: B::Event,
}

impl<B: Backend> Started<B> {
    /// The number of earlier steps of the run.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }
}

/// Activations and gradients between the layers, each for the largest batch.
struct Buffers<B: Backend> {
    input: B::Matrix,
    pooled: B::Vector,
    logits: B::Vector,
    probabilities: B::Vector,
    d_logits: B::Vector,
    d_last: B::Matrix,
    d_interaction: B::Matrix,
    d_dense: B::Matrix,
    d_pooled: B::Vector,
}

impl<B: Backend> Buffers<B> {
    fn new(
        room: &mut CountingAllocator<'_, B>,
        model: &ModelConfig,
        last_width: usize,
        batch_max: usize,
    ) -> Self {
        let (forward, backward) = (MemoryUse::Activations, MemoryUse::Gradients);
        let mut matrix =
            |of, width| room.matrix(of, Precision::F32, MatrixShape::new(batch_max, width));
        let input = matrix(forward, model.dense_features);
        let [d_last, d_interaction, d_dense] =
            [last_width, model.interaction_width(), model.dense_width()]
                .map(|width| matrix(backward, width));
        let mut vector = |of, width| room.vector(of, batch_max * width);
        Self {
            input,
            pooled: vector(forward, model.pooled_width()),
            logits: vector(forward, 1),
            probabilities: vector(forward, 1),
            d_logits: vector(backward, 1),
            d_last,
            d_interaction,
            d_dense,
            d_pooled: vector(backward, model.pooled_width()),
        }
    }
}

impl<B: Backend> Model<B> {
    /// Creates a model with the initial weights of `config`, for at most `batch_max` samples of
    /// this rank.
    ///
    /// # Errors
    /// [`Error::Device`] if the device runs out of memory.
    pub fn initial(
        device_queue: DeviceQueue<'_, B>,
        config: &JobConfig,
        plan: &ShardingPlan,
        rank: schema::Rank,
        batch_max: usize,
    ) -> Result<Self, Error> {
        let (host, optimizer) = (device_queue.device.host(), config.optimizer.sparse.kind);
        let caches = TileCaches::new::<B>(config, plan, rank)?;
        let tile = |(tile, cache): (&schema::Tile, &Option<CacheShape>)| match cache {
            Some(shape) => stored_tile::empty_slots(tile, optimizer, *shape),
            None => TileState {
                weight: initial::tile_weights(host, &config.model, tile),
                state: Array::zeroed(tile.row_count() * optimizer.state_per_row(tile.dim())),
                tile: tile.clone(),
            },
        };
        let tiles = caches.held.iter().zip(&caches.shapes).map(tile).collect();
        let (mut model, initial, room) = Self::build(
            CountingAllocator::new(device_queue.device),
            config,
            plan,
            rank,
            batch_max,
            tiles,
        );
        room.finish()?;
        model.embedding.create_files(config, &caches.shapes)?;
        for (i, initial) in initial.into_iter().enumerate() {
            let values = initial.values(host, config.model.init, config.model.seed);
            model.parameters.set_values(device_queue, i, &values)?;
        }
        Ok(model)
    }

    /// Creates a model with `parameters`, whose names and shapes must match `config`. Tiles that
    /// are in files have their initial weights until [`Self::restore_rows`].
    ///
    /// # Errors
    /// [`Error::Device`] if they do not match, or the device runs out of memory. [`Error::Storage`]
    /// and [`Error::Io`] of tables in files.
    pub fn restored(
        device_queue: DeviceQueue<'_, B>,
        config: &JobConfig,
        plan: &ShardingPlan,
        rank: schema::Rank,
        batch_max: usize,
        mut parameters: RankParameters,
    ) -> Result<Self, Error> {
        let room = CountingAllocator::new(device_queue.device);
        let caches = TileCaches::new::<B>(config, plan, rank)?;
        for (state, cache) in parameters.tiles.iter_mut().zip(&caches.shapes) {
            let Some(shape) = *cache else { continue };
            *state = stored_tile::empty_slots(&state.tile, config.optimizer.sparse.kind, shape);
        }
        let (mut model, _, room) =
            Self::build(room, config, plan, rank, batch_max, parameters.tiles);
        room.finish()?;
        model.embedding.create_files(config, &caches.shapes)?;
        model.parameters.set(device_queue, &parameters.dense)?;
        Ok(model)
    }

    /// Computes the memory that a model needs, by building it without allocating its buffers.
    #[must_use]
    pub fn memory(
        config: &JobConfig,
        plan: &ShardingPlan,
        rank: schema::Rank,
        batch_max: usize,
        traffic: &Traffic<'_>,
    ) -> RankMemory {
        let room = CountingAllocator::counting();
        let (model, _, mut room) = Self::build(room, config, plan, rank, batch_max, Vec::new());
        let (optimizer, kind) = (config.optimizer.sparse.kind, config.optimizer.dense.kind);
        let held: Vec<schema::Tile> = plan.held_by(rank).cloned().collect();
        let caches = stored_tile::cache_shapes(config, &held);
        for (tile, cache) in held.iter().zip(&caches) {
            let (rows, dim) = (cache.map_or(tile.row_count(), CacheShape::slots), tile.dim());
            if let (Some(shape), Some(storage)) = (cache, &config.storage) {
                let tags = shape.bytes(storage.policy);
                let moved = stored_tile::transfer_bytes(config, tile, *shape, traffic);
                let checksums = StoreShape::new(tile, optimizer).bytes();
                room.count(MemoryUse::RowCache, tags + moved + checksums);
            }
            let data_type = config.model.tables[tile.table.index()].data_type;
            // Saturate, because a configuration may have more rows than fit into any machine.
            let weights = B::table_bytes(data_type, rows.saturating_mul(dim));
            room.count(MemoryUse::TableWeights, weights);
            let state = rows.saturating_mul(optimizer.state_per_row(dim));
            room.count(MemoryUse::TableStates, B::vector_bytes(state));
        }
        let messages = model.embedding.step_memory(plan.place(rank), traffic, &mut room);
        let (saved_dense, gradients) = parameter::dense_bytes(&config.model, kind);
        let chunks = held.iter().zip(&caches).map(|(tile, cache)| match cache {
            None => checkpoint::read_bytes(&config.model, tile, optimizer),
            Some(_) => checkpoint::read_parts_bytes(&config.model, tile, optimizer),
        });
        let chunk = chunks.max();
        RankMemory {
            held: room.counts(),
            messages,
            gradients,
            saved_dense,
            chunk: chunk.unwrap_or(0),
        }
    }

    /// Builds a model whose dense parameters are zero. Also returns the distributions of their
    /// initial values, and the allocator.
    fn build<'r>(
        room: CountingAllocator<'r, B>,
        config: &JobConfig,
        plan: &ShardingPlan,
        rank: schema::Rank,
        batch_max: usize,
        tiles: Vec<TileState>,
    ) -> (Self, Vec<Initial>, CountingAllocator<'r, B>) {
        let model = &config.model;
        let optimizer = config.optimizer.dense.kind;
        let mut list = ParameterList::new(room, optimizer, config.training.precision);
        let bottom = Mlp::new(&mut list, "bottom", model.dense_features, &model.bottom, batch_max);
        let interaction = InteractionLayer::new(&mut list, model, batch_max);
        // The last layer of the top MLP is the logit, which has its own type.
        let hidden = &model.top[..model.top.len() - 1];
        let top = Mlp::new(&mut list, "top", model.interaction_width(), hidden, batch_max);
        let last_width = hidden.last().copied().unwrap_or(model.interaction_width());
        let logit = Logit::new(&mut list, &format!("top.{}", hidden.len()), last_width);
        let wide = model.wide.then(|| Wide::new(&mut list, model.interaction_width()));
        let (parameters, initial, mut room) = list.finish();
        let (sparse, dense) = (config.optimizer.sparse, config.optimizer.dense);
        let built = Self {
            loss: model.loss,
            seed: model.seed,
            dense_features: model.dense_features,
            batch_max,
            parameters,
            bottom,
            interaction,
            top,
            logit,
            logit_after_relu: !hidden.is_empty(),
            wide,
            embedding: EmbeddingCollection::new(&mut room, config, plan, rank, tiles),
            groups: plan.groups(),
            graph: StepGraph::new(config, BUCKET_BYTES, Schedule::SERIAL, plan),
            action_times: Vec::new(),
            optimizers: (sparse, dense),
            scalars: room.scalars(),
            evaluation: room.scalars(),
            buffers: Buffers::new(&mut room, model, last_width, batch_max),
            read: Vec::new(),
        };
        (built, initial, room)
    }

    /// Sets the actions of a training step.
    pub fn set_graph(&mut self, graph: StepGraph) {
        self.graph = graph;
        self.action_times.clear();
    }

    /// Returns the actions of a training step.
    #[must_use]
    pub fn graph(&self) -> &StepGraph {
        &self.graph
    }

    /// Returns the times of the actions of the last step, in the order of [`Self::graph`].
    #[must_use]
    pub fn action_times(&self) -> &[ActionTime] {
        &self.action_times
    }

    /// Returns the times of the last step that its actions tell: those of the device, unless it is
    /// asynchronous, and the waits for exchanges.
    pub(crate) fn step_times(&self) -> SummedTimes {
        let mut times = SummedTimes::default();
        for (action, time) in self.graph.actions.iter().zip(&self.action_times) {
            if let Some(overlap) = action.stage.overlap() {
                times.add_wait(overlap, time.waited);
                times.exchange_ns[overlap as usize] += nanoseconds(time.elapsed);
            }
            if action.stage == Stage::FetchRows {
                times.fetch_ns += nanoseconds(time.elapsed);
            }
            if action.stage.resource() == Resource::ComputeQueue && !B::IS_ASYNC {
                times.device_ns += nanoseconds(time.elapsed);
                match action.stage {
                    Stage::Lookup => times.lookup_ns += nanoseconds(time.elapsed),
                    Stage::EmbeddingUpdate => times.update_ns += nanoseconds(time.elapsed),
                    _ => {}
                }
            }
        }
        times
    }

    /// Sets the batch of the next step, whose ids this step may distribute.
    pub fn set_next(&mut self, next: RankBatch) {
        self.embedding.set_next(next);
    }

    /// Returns the dense parameters, which are the same on every rank.
    #[must_use]
    pub fn dense(&self) -> &Dense<B> {
        &self.parameters
    }

    /// Returns all tiles that this rank holds: its own in plan order, then replicated tables.
    #[must_use]
    pub fn held_tiles(&self) -> &[schema::Tile] {
        self.embedding.held_tiles()
    }

    /// Returns the tiles of the embedding tables that this rank saves. They come first among those
    /// that it holds, and include replicated tables on rank 0 only.
    #[must_use]
    pub fn tiles(&self) -> &[schema::Tile] {
        self.embedding.tiles()
    }

    /// Returns the weights and state of some rows of a tile.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed.
    pub fn tile<'a>(
        &'a self,
        device_queue: DeviceQueue<'_, B>,
        rows: TileRows,
        room: &'a mut TileRoom,
    ) -> Result<TileView<'a>, Error> {
        self.embedding.tile(device_queue, rows, room)
    }

    /// Whether the rows of a held tile are in a file, so that reading many of them takes memory.
    #[must_use]
    pub fn is_stored(&self, tile: usize) -> bool {
        self.embedding.is_stored(tile)
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
        self.embedding.restore_rows(device, tile, state)
    }

    /// Returns how the caches of table rows were used so far.
    #[must_use]
    pub fn cache_uses(&self) -> Vec<CacheUse> {
        self.embedding.cache_uses()
    }

    /// Computes the click probabilities of this rank's samples, `[B]`, and the sum of their losses.
    /// The probability of a non-finite logit is NaN.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`], [`Error::BatchShape`] or [`Error::Communication`].
    pub fn evaluate(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
    ) -> Result<(&[f32], f64), Error> {
        self.begin(context, share, Purpose::Evaluation)?;
        self.run_forward(context, share)?;
        self.loss(context, share, Purpose::Evaluation)?;
        let end = context.device.end(&context.queue, &mut self.evaluation)?;
        let sum = context.device.outcome(&mut self.evaluation, end)?.loss;
        Ok((self.probabilities(context, share.batch.size, Probabilities::Computed)?, sum))
    }

    /// Reads the probabilities of the last forward pass. The probability of a non-finite logit is
    /// NaN, whatever the sigmoid returns.
    fn probabilities(
        &mut self,
        context: &RankContext<B>,
        samples: usize,
        form: Probabilities,
    ) -> Result<&[f32], Error> {
        let DeviceQueue { device, queue } = context.device_queue();
        let Buffers { logits, probabilities, .. } = &mut self.buffers;
        device.probabilities(queue, logits, samples, form, probabilities)?;
        Ok(device.read(queue, probabilities, samples, &mut self.read)?)
    }

    /// Computes the click probabilities of this rank's samples, `[B]`, without using labels. The
    /// probability of a non-finite logit is NaN.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`], [`Error::BatchShape`] or [`Error::Communication`].
    pub fn score(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
    ) -> Result<&[f32], Error> {
        self.begin(context, share, Purpose::Evaluation)?;
        self.run_forward(context, share)?;
        self.probabilities(context, share.batch.size, Probabilities::Missing)
    }

    /// Runs one training step. Returns the sum of the losses of this rank's samples, computed
    /// before the update.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] and [`Error::BatchShape`] before any weight changes, or
    /// [`Error::Communication`].
    pub fn train(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
        step: RunStep,
    ) -> Result<f64, Error> {
        let started = self.start(context, share, step)?;
        self.finish(context, started, share)
    }

    /// Makes the tables of all replica groups equal after `steps` steps of the run, if groups
    /// update alone.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn average_groups(
        &mut self,
        context: &mut RankContext<B>,
        steps: u64,
    ) -> Result<(), Error> {
        self.embedding.average_groups(context, initial::average_rounding(self.seed, steps))
    }

    /// Submits one training step to the device. [`Self::finish`] waits for its end.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::train`].
    pub fn start(
        &mut self,
        context: &mut RankContext<B>,
        share: SampleShare<'_>,
        step: RunStep,
    ) -> Result<Started<B>, Error> {
        self.begin(context, share, Purpose::Training(step))?;
        self.run_step(context, share, step)?;
        let end = context.device.end(&context.queue, &mut self.scalars)?;
        Ok(Started { step: step.number, end })
    }

    /// Waits for the end of a step that was started with the same `share`. Returns the sum of the
    /// losses of this rank's samples.
    ///
    /// # Errors
    /// [`Error::Device`] if the device failed. [`Error::RowOutOfRange`] if the device found an
    /// out-of-range id. In that case neither this step nor a later one has changed a weight.
    pub fn finish(
        &mut self,
        context: &mut RankContext<B>,
        Started { step, end }: Started<B>,
        share: SampleShare<'_>,
    ) -> Result<f64, Error> {
        let outcome = context.device.outcome(&mut self.scalars, end)?;
        // The device reports only that an id is invalid. A check on the host finds the invalid id.
        if outcome.bad_id.is_some() {
            self.embedding.check_ids(&share.batch.sparse, share.first_sample)?;
        }
        assert!(outcome.bad_id.is_none(), "the device rejected an id that is in its table");
        context.profiler.complete(step, |op| collection::complete(op, outcome.updated));
        Ok(outcome.loss)
    }

    /// Writes the scalars of a step to the device.
    fn begin(
        &mut self,
        context: &RankContext<B>,
        share: SampleShare<'_>,
        purpose: Purpose,
    ) -> Result<(), Error> {
        let step = match purpose {
            Purpose::Training(step) => step,
            Purpose::Evaluation => RunStep { number: 0, factor: 0.0 },
        };
        let (sparse, dense) = &self.optimizers;
        let [sparse, dense] =
            [sparse, dense].map(|config| UpdateRule::new(config, step.factor, step.number));
        let numbers = StepScalars {
            dense,
            sparse,
            normaliser: share.global_size as f64,
            rounding: initial::rounding(self.seed, step.number),
        };
        let scalars = purpose.choose(&mut self.scalars, &mut self.evaluation);
        Ok(context.device.begin(&context.queue, &numbers, scalars)?)
    }

    fn check(&self, batch: &Batch) -> Result<(), Error> {
        for (what, expected, got) in [
            ("dense features", batch.size * self.dense_features, batch.dense.len()),
            ("labels", batch.size, batch.labels.len()),
            ("sparse batch size", batch.size, batch.sparse.batch_size),
            ("samples, at most", batch.size.min(self.batch_max), batch.size),
        ] {
            if expected != got {
                return Err(Error::BatchShape { what, expected, got });
            }
        }
        Ok(())
    }
}
