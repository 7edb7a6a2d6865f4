//! One rank's model: bottom MLP, embeddings, interaction, top MLP, loss, with explicit forward and
//! backward and buffers sized once. Knows nothing of data files, schedules or checkpoints.

use std::path::Path;

use device::buffer::Array;
use device::ops::gemm::panels;
use device::ops::{activation, loss};
use device::optimizer::Rule;
use device::{Cpu, Weights};
use schema::{
    Batch, JobConfig, Loss, ModelConfig, Op, Optimizer, OptimizerConfig, Optimizers, ShardingPlan,
};

use crate::Error;
use crate::checkpoint;
use crate::context::RankContext;
use crate::dense::{Dense, DenseStep};
use crate::embedding::EmbeddingCollection;
use crate::initial::{self, Initial};
use crate::layer::ParameterList;
use crate::layer::interaction::InteractionLayer;
use crate::layer::logit::{Given, Logit};
use crate::layer::mlp::Mlp;
use crate::memory::{MemoryUse, RankMemory, Room, Traffic};
use crate::parameter::{self, DenseParameter, Spot, TileState};

/// The samples of one rank within the batch of all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    /// This rank's samples.
    pub batch: &'a Batch,
    /// Number of the first of them in the global batch.
    pub first_sample: usize,
    /// Samples over all ranks: what the loss is a mean over.
    pub global_size: usize,
}

/// Which step of the run a batch is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Steps of the run before it: 0 at the first. Kept over a resumption, for bias corrections.
    pub number: u64,
    /// Factor on the base learning rates.
    pub factor: f64,
}

/// The parameters of one rank.
pub struct RankParameters {
    /// Replicated on every rank.
    pub dense: Vec<DenseParameter>,
    /// The tiles of this rank, in plan order.
    pub tiles: Vec<TileState>,
}

impl RankParameters {
    /// Refuses values, read from the checkpoint at `path`, that are no finite numbers.
    ///
    /// # Errors
    /// [`Error::Value`] naming the first.
    pub(crate) fn check_finite(
        &self,
        cpu: &Cpu,
        (path, config): (&Path, &JobConfig),
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
            refused(parameter::not_finite(cpu, state, (&table.name, sparse)))?;
        }
        Ok(())
    }
}

/// A model that only looks forward: it has weights, but neither an optimizer nor any state, and
/// cannot be trained.
pub struct ForwardModel {
    model: Model,
}

impl ForwardModel {
    /// A model with the weights in `parameters`, which have no state.
    ///
    /// # Errors
    /// As [`Model::restored`].
    pub fn restored(
        cpu: &Cpu,
        config: &JobConfig,
        place: (&ShardingPlan, schema::Rank),
        batch_max: usize,
        parameters: RankParameters,
    ) -> Result<Self, Error> {
        // The rule that keeps no state stands for none: nothing outside can take a step.
        let none = OptimizerConfig::new(Optimizer::Sgd, 0.0);
        let optimizer = Optimizers { sparse: none, dense: none };
        let config = JobConfig { optimizer, ..config.clone() };
        let model = Model::restored(cpu, &config, place, batch_max, parameters)?;
        Ok(Self { model })
    }

    /// Refuses a batch of another shape, and ids that are no rows of the tables of the job.
    ///
    /// # Errors
    /// [`Error::BatchShape`], [`Error::RowOutOfRange`].
    pub(crate) fn check(&self, share: Share<'_>) -> Result<(), Error> {
        self.model.check(share.batch)?;
        self.model.embedding.check_ids(&share.batch.sparse, share.first_sample)
    }

    /// Looks up the ids of the next batches in `tiles`, one for each table, which have the rows of
    /// these ids alone.
    pub(crate) fn look_up_in(&mut self, tiles: Vec<TileState>) {
        self.model.embedding.replace_tiles(tiles);
    }

    /// As [`Model::evaluate`].
    ///
    /// # Errors
    /// As there.
    pub fn evaluate(
        &mut self,
        context: &mut RankContext,
        share: Share<'_>,
    ) -> Result<(&[f32], f64), Error> {
        self.model.evaluate(context, share)
    }

    /// As [`Model::score`].
    ///
    /// # Errors
    /// As there.
    pub fn score(&mut self, context: &mut RankContext, share: Share<'_>) -> Result<&[f32], Error> {
        self.model.score(context, share)
    }
}

/// A model with its buffers.
pub struct Model {
    loss: Loss,
    dense_features: usize,
    pooled_width: usize,
    parameters: Dense,
    bottom: Mlp,
    interaction: InteractionLayer,
    top: Mlp,
    logit: Logit,
    /// Whether the logit's input is the output of a ReLU: the top MLP has layers before it.
    logit_after_relu: bool,
    embedding: EmbeddingCollection,
    optimizers: (OptimizerConfig, OptimizerConfig),
    buffers: Buffers,
}

/// Activations and gradients between the layers, each for the largest batch; in panels but for the
/// pooled vectors and what there is one of per sample.
struct Buffers {
    input: Array<f32>,
    pooled: Array<f32>,
    logits: Array<f32>,
    probabilities: Array<f32>,
    d_logits: Array<f32>,
    d_last: Array<f32>,
    d_interaction: Array<f32>,
    d_dense: Array<f32>,
    d_pooled: Array<f32>,
}

impl Buffers {
    fn new(room: &mut Room, model: &ModelConfig, last_width: usize, batch_max: usize) -> Self {
        let (forward, backward) = (MemoryUse::Activations, MemoryUse::Gradients);
        let in_panels = |width: usize| panels::len(batch_max, width);
        Self {
            input: room.array(forward, in_panels(model.dense_features)),
            pooled: room.array(forward, batch_max * model.pooled_width()),
            logits: room.array(forward, batch_max),
            probabilities: room.array(forward, batch_max),
            d_logits: room.array(backward, batch_max),
            d_last: room.array(backward, in_panels(last_width)),
            d_interaction: room.array(backward, in_panels(model.interaction_width())),
            d_dense: room.array(backward, in_panels(model.dense_width())),
            d_pooled: room.array(backward, batch_max * model.pooled_width()),
        }
    }
}

impl Model {
    /// A model with the initial weights of `config`, for at most `batch_max` samples of this rank.
    ///
    /// # Errors
    /// [`Error::Device`], of a defect only.
    pub fn initial(
        cpu: &Cpu,
        config: &JobConfig,
        (plan, rank): (&ShardingPlan, schema::Rank),
        batch_max: usize,
    ) -> Result<Self, Error> {
        let optimizer = config.optimizer.sparse.kind;
        let tile = |tile: &schema::Tile| TileState {
            weight: initial::tile_weights(cpu, &config.model, tile),
            state: Array::zeroed(tile.row_count() * optimizer.state_per_row(tile.dim())),
            tile: tile.clone(),
        };
        let tiles = plan.tiles_of(rank).map(tile).collect();
        let room = Room::allocating();
        let (mut model, initial, _) = Self::build(room, config, (plan, rank), batch_max, tiles);
        for (i, initial) in initial.into_iter().enumerate() {
            model.parameters.set_values(cpu, i, &initial.values(cpu, &config.model))?;
        }
        Ok(model)
    }

    /// A model with `parameters`, which must have the names and shapes `config` gives.
    ///
    /// # Errors
    /// [`Error::Device`] where they have not.
    pub fn restored(
        cpu: &Cpu,
        config: &JobConfig,
        place: (&ShardingPlan, schema::Rank),
        batch_max: usize,
        parameters: RankParameters,
    ) -> Result<Self, Error> {
        let room = Room::allocating();
        let (mut model, ..) = Self::build(room, config, place, batch_max, parameters.tiles);
        model.parameters.set(cpu, &parameters.dense)?;
        Ok(model)
    }

    /// What such a model takes, counted by building it without memory.
    #[must_use]
    pub fn memory(
        config: &JobConfig,
        place: (&ShardingPlan, schema::Rank),
        batch_max: usize,
        traffic: &Traffic<'_>,
    ) -> RankMemory {
        let room = Room::counting();
        let (model, _, mut room) = Self::build(room, config, place, batch_max, Vec::new());
        let (optimizer, kind) = (config.optimizer.sparse.kind, config.optimizer.dense.kind);
        for tile in place.0.tiles_of(place.1) {
            let (rows, dim) = (tile.row_count(), tile.dim());
            let data_type = config.model.tables[tile.table.index()].data_type;
            // Of more rows than any machine holds, too.
            let weights = Weights::bytes(data_type, rows.saturating_mul(dim));
            room.count(MemoryUse::TableWeights, weights);
            let state = rows.saturating_mul(optimizer.state_per_row(dim));
            room.count(MemoryUse::TableStates, Array::<f32>::bytes(state));
        }
        let messages = model.embedding.step_memory(place.1, traffic, &mut room);
        let (saved_dense, gradients) = parameter::dense_bytes(&config.model, kind);
        let tiles = place.0.tiles_of(place.1);
        let chunk = tiles.map(|tile| checkpoint::read_bytes(&config.model, tile, optimizer)).max();
        RankMemory {
            held: room.finish(),
            messages,
            gradients,
            saved_dense,
            chunk: chunk.unwrap_or(0),
        }
    }

    /// A model whose dense parameters are zero, how they start, and the room it is in.
    fn build(
        room: Room,
        config: &JobConfig,
        (plan, rank): (&ShardingPlan, schema::Rank),
        batch_max: usize,
        tiles: Vec<TileState>,
    ) -> (Self, Vec<Initial>, Room) {
        let model = &config.model;
        let optimizer = config.optimizer.dense.kind;
        let mut list = ParameterList::new(room, optimizer, config.training.precision);
        let bottom_layers = (model.dense_features, &model.bottom[..]);
        let bottom = Mlp::new(&mut list, "bottom", bottom_layers, batch_max);
        let interaction = InteractionLayer::new(&mut list, model, batch_max);
        let hidden = &model.top[..model.top.len() - 1];
        let top = Mlp::new(&mut list, "top", (model.interaction_width(), hidden), batch_max);
        let last_width = hidden.last().copied().unwrap_or(model.interaction_width());
        let logit = Logit::new(&mut list, &format!("top.{}", hidden.len()), last_width);
        let (parameters, initial, mut room) = list.finish();
        let (sparse, dense) = (config.optimizer.sparse, config.optimizer.dense);
        let built = Self {
            loss: model.loss,
            dense_features: model.dense_features,
            pooled_width: model.pooled_width(),
            parameters,
            bottom,
            interaction,
            top,
            logit,
            logit_after_relu: !hidden.is_empty(),
            embedding: EmbeddingCollection::new(model, plan, rank, (tiles, sparse.kind)),
            optimizers: (sparse, dense),
            buffers: Buffers::new(&mut room, model, last_width, batch_max),
        };
        (built, initial, room)
    }

    /// Sends dense gradients to other ranks in buckets of about so many bytes.
    pub fn set_bucket(&mut self, bytes: usize) {
        self.parameters.set_bucket(bytes);
    }

    /// Dense parameters, the same on every rank.
    #[must_use]
    pub fn dense(&self) -> &Dense {
        &self.parameters
    }

    /// This rank's tiles.
    #[must_use]
    pub fn tiles(&self) -> &[TileState] {
        self.embedding.tiles()
    }

    /// Click probabilities of this rank's samples, `[B]`, and the sum of their losses. NaN where
    /// the logit is no finite number.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`], [`Error::BatchShape`], [`Error::Communication`].
    pub fn evaluate(
        &mut self,
        context: &mut RankContext,
        share: Share<'_>,
    ) -> Result<(&[f32], f64), Error> {
        self.forward(context, share)?;
        let sum = self.loss(context, share)?;
        Ok((self.probabilities(share.batch.size), sum))
    }

    /// Those of the last forward, of so many samples: a logit beyond the finite numbers has none,
    /// whatever the sigmoid makes of it.
    fn probabilities(&mut self, samples: usize) -> &[f32] {
        let Buffers { logits, probabilities, .. } = &mut self.buffers;
        let probabilities = &mut probabilities[..samples];
        for (probability, logit) in probabilities.iter_mut().zip(&logits[..samples]) {
            if !logit.is_finite() {
                *probability = f32::NAN;
            }
        }
        probabilities
    }

    /// Click probabilities of this rank's samples, `[B]`; labels are not looked at. NaN where the
    /// logit is no finite number.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`], [`Error::BatchShape`], [`Error::Communication`].
    pub fn score(&mut self, context: &mut RankContext, share: Share<'_>) -> Result<&[f32], Error> {
        self.forward(context, share)?;
        let samples = share.batch.size;
        let Buffers { logits, probabilities, .. } = &mut self.buffers;
        let probabilities = &mut probabilities[..samples];
        activation::sigmoid(&context.cpu, &logits[..samples], probabilities)?;
        Ok(self.probabilities(samples))
    }

    /// One training step; returns the sum of the losses of this rank's samples before it.
    ///
    /// # Errors
    /// [`Error::RowOutOfRange`] and [`Error::BatchShape`] before any weight changes;
    /// [`Error::Communication`].
    pub fn train(
        &mut self,
        context: &mut RankContext,
        share: Share<'_>,
        step: Step,
    ) -> Result<f64, Error> {
        self.forward(context, share)?;
        let sum = self.loss(context, share)?;
        let rule = Rule::new(&self.optimizers.1, step.factor, step.number);
        self.backward(context, share, rule)?;
        let d_pooled = &self.buffers.d_pooled[..share.batch.size * self.pooled_width];
        let rule = Rule::new(&self.optimizers.0, step.factor, step.number);
        self.embedding.backward(context, (&share.batch.sparse, d_pooled), (rule, step.number))?;
        Ok(sum)
    }

    fn forward(&mut self, context: &mut RankContext, share: Share<'_>) -> Result<(), Error> {
        let (batch, samples) = (share.batch, share.batch.size);
        self.check(batch)?;
        let pooled = &mut self.buffers.pooled[..samples * self.pooled_width];
        self.embedding.forward(context, (&batch.sparse, share.first_sample), pooled)?;
        if samples == 0 {
            return Ok(());
        }
        let input = &mut self.buffers.input[..panels::len(samples, self.dense_features)];
        let RankContext { cpu, profiler, .. } = &mut *context;
        let shape = (samples, self.dense_features);
        let op = Op::Pack { elements: batch.dense.len() };
        profiler.op(op, || panels::pack(cpu, &batch.dense, shape, input))?;
        self.bottom.forward(context, &self.parameters, input, samples)?;
        let dense = self.bottom.output(input, samples);
        self.interaction.forward(context, &self.parameters, (dense, pooled), samples)?;
        let joined = self.interaction.output(samples);
        self.top.forward(context, &self.parameters, joined, samples)?;
        let last = self.top.output(joined, samples);
        self.logit.forward(context, &self.parameters, last, &mut self.buffers.logits[..samples])
    }

    fn check(&self, batch: &Batch) -> Result<(), Error> {
        let capacity = self.buffers.probabilities.len();
        for (what, expected, got) in [
            ("dense features", batch.size * self.dense_features, batch.dense.len()),
            ("labels", batch.size, batch.labels.len()),
            ("sparse batch size", batch.size, batch.sparse.batch_size),
            ("samples, at most", batch.size.min(capacity), batch.size),
        ] {
            if expected != got {
                return Err(Error::BatchShape { what, expected, got });
            }
        }
        Ok(())
    }

    fn loss(&mut self, context: &mut RankContext, share: Share<'_>) -> Result<f64, Error> {
        let samples = share.batch.size;
        let RankContext { cpu, profiler, .. } = context;
        let arguments = loss::Arguments {
            kind: self.loss,
            logits: &self.buffers.logits[..samples],
            labels: &share.batch.labels,
            normaliser: share.global_size as f64,
            gradient: &mut self.buffers.d_logits[..samples],
            probabilities: &mut self.buffers.probabilities[..samples],
        };
        Ok(profiler.op(Op::Loss { batch_size: samples }, || loss::run(cpu, arguments))?)
    }

    /// The gradient of the pooled vectors, and the dense parameters' update.
    fn backward(
        &mut self,
        context: &mut RankContext,
        share: Share<'_>,
        rule: Rule,
    ) -> Result<(), Error> {
        let samples = share.batch.size;
        if samples == 0 {
            // Nothing to learn from here; the gradients still take part in the sum over ranks.
            self.parameters.clear_gradients();
            return DenseStep::new(&mut self.parameters, rule).finish(context);
        }
        let Buffers { input, pooled, d_logits, d_last, d_interaction, d_dense, d_pooled, .. } =
            &mut self.buffers;
        let mut step = DenseStep::new(&mut self.parameters, rule);
        let joined = self.interaction.output(samples);
        let x = self.top.output(joined, samples);
        let given = Given { x, d_y: &d_logits[..samples], after_relu: self.logit_after_relu };
        let d_last = &mut d_last[..x.len()];
        self.logit.backward(context, step.dense, given, d_last)?;
        let d_joined = &mut d_interaction[..joined.len()];
        self.top.backward(context, &mut step, (joined, d_last), Some(&mut *d_joined))?;
        let input = &input[..panels::len(samples, self.dense_features)];
        let dense = self.bottom.output(input, samples);
        let d_dense = &mut d_dense[..dense.len()];
        let inputs = (dense, &pooled[..samples * self.pooled_width], &*d_joined);
        let outputs = (&mut *d_dense, &mut d_pooled[..samples * self.pooled_width]);
        self.interaction.backward(context, &mut step, inputs, outputs)?;
        self.bottom.last_relu_backward(context, d_dense)?;
        self.bottom.backward(context, &mut step, (input, d_dense), None)?;
        step.finish(context)
    }
}
