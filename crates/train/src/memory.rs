//! Estimates the memory of a training run, by use and by moment, before anything is allocated.
//! Reads neither the machine nor files; the caller compares it with available memory.
//!
//! Buffers of known length are counted by the constructors that allocate them ([`ZeroBuffers`]);
//! buffers that grow with the data by functions beside them, from the mean number of ids per row.
//! Allocator caches, thread stacks and the program itself are [`PROGRAM_BYTES`], [`ARENA_BYTES`]
//! and [`SLACK`], measured.

mod room;

use std::collections::BTreeMap;

use data::{DataShape, LoaderMemory, LoaderShape};
use device::Backend;
use schema::{Bytes, JobConfig, Rank, ShardingPlan};
use serde::Serialize;

use crate::model::Model;
use crate::run::feature_plan;

pub use room::ZeroBuffers;

/// The program's own pages that are touched, its libraries, and what it allocates before it trains.
const PROGRAM_BYTES: u64 = 22 << 20;
/// What MPI takes of a process: Open MPI 4.1 on one host 6 MiB, measured.
const MPI_BYTES: u64 = 8 << 20;
/// A thread's stack and its share of the allocator's free memory.
const THREAD_BYTES: u64 = 256 << 10;
/// What the allocator keeps at the end of each of its arenas, at most: a tenth of what was decoded
/// in them.
const ARENA_BYTES: u64 = 3 << 20;
/// Threads beside the ranks' own: the program's, one that puts batches together, some that decode.
const THREADS_BESIDE: u64 = 4;
/// What freed and fragmented memory adds to buffers that come and go with each batch.
const SLACK: f64 = 0.12;
/// Bytes of a recorded operation, and of what is written of it.
const SPAN_BYTES: u64 = 100;
/// Bytes of a category in a checkpoint's manifest while it is written: a JSON value and its text,
/// each twice.
const CATEGORY_BYTES: u64 = 96;

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryUse {
    /// The program, its libraries and threads, and what the allocator keeps.
    Program,
    /// Weights of the embedding tables.
    TableWeights,
    /// Optimizer states of the embedding tables.
    TableStates,
    /// Weights of the dense layers in all their forms, with gradients and optimizer states.
    DenseParameters,
    /// Outputs of layers, and pooled vectors.
    Activations,
    Gradients,
    /// Ids, pooled vectors and gradients between ranks or tiles.
    Exchange,
    /// Sorting the ids of a batch by row.
    RowUpdates,
    /// Rows decoded for the shuffle.
    Shuffle,
    Batches,
    /// Decoding and decompressing Parquet.
    Decoding,
    /// Vocabularies of exact ids.
    Vocabularies,
    Trace,
    /// Reading held-out rows, and their scores.
    Evaluation,
    /// Copies made to write a checkpoint, or to read one.
    Checkpoint,
    Preparation,
    Generation,
}

impl MemoryUse {
    /// The use in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "program and threads",
            Self::TableWeights => "table weights",
            Self::TableStates => "table optimizer states",
            Self::DenseParameters => "dense weights, gradients and states",
            Self::Activations => "activations",
            Self::Gradients => "gradients of activations",
            Self::Exchange => "exchange between ranks and tiles",
            Self::RowUpdates => "sorting of row updates",
            Self::Shuffle => "rows decoded for the shuffle",
            Self::Batches => "batches read ahead",
            Self::Decoding => "decoding of Parquet",
            Self::Vocabularies => "vocabularies",
            Self::Trace => "recorded steps",
            Self::Evaluation => "evaluation",
            Self::Checkpoint => "checkpoint copies",
            Self::Preparation => "preparation of raw files",
            Self::Generation => "generation of rows",
        }
    }
}

/// When memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPhase {
    /// Rows are made up.
    Generation,
    /// Raw training files are prepared.
    Preparation,
    /// Raw evaluation files are prepared, while the first training rows are read.
    EvaluationPreparation,
    /// A checkpoint to resume from is read.
    Restoration,
    /// All rows of a small dataset are decoded, for the first batch.
    FirstRead,
    Training,
    /// An evaluation between training steps.
    Evaluation,
    /// A checkpoint is written between training steps.
    Checkpoint,
}

impl MemoryPhase {
    /// The moment in words, after "while".
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Generation => "generating rows",
            Self::Preparation => "preparing the training data",
            Self::EvaluationPreparation => "preparing the evaluation data",
            Self::Restoration => "reading the checkpoint",
            Self::FirstRead => "decoding all rows for the first batch",
            Self::Training => "training",
            Self::Evaluation => "evaluating",
            Self::Checkpoint => "writing a checkpoint",
        }
    }
}

/// Memory of one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryPart {
    pub of: MemoryUse,
    pub bytes: Bytes,
}

/// All memory at one moment of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryMoment {
    pub when: MemoryPhase,
    /// Sum of the parts.
    pub total: Bytes,
    /// Uses, the largest first; none is 0.
    pub parts: Vec<MemoryPart>,
}

/// The memory of a run, moment by moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryEstimate {
    pub moments: Vec<MemoryMoment>,
}

impl MemoryEstimate {
    /// The moment that takes most.
    #[must_use]
    pub fn peak(&self) -> Option<&MemoryMoment> {
        self.moments.iter().max_by_key(|moment| moment.total)
    }

    /// The most that the run takes at any moment.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.peak().map_or(Bytes(0), |moment| moment.total)
    }
}

/// What an estimate depends on.
#[derive(Clone, Copy, Debug)]
pub struct RunShape<'a> {
    pub config: &'a JobConfig,
    pub plan: &'a ShardingPlan,
    /// Threads over all ranks, or over the processes of this host.
    pub threads: usize,
    /// Where ranks are processes: those of this host, each of which reads all data.
    pub processes: Option<&'a [Rank]>,
    pub train: &'a DataShape,
    /// Rows of it to train on.
    pub train_rows: u64,
    /// Held-out data and its rows.
    pub evaluation: Option<(&'a DataShape, u64)>,
    /// Steps to be recorded.
    pub traced_steps: u64,
    /// Where weights come from.
    pub weights: WeightSource,
    /// Bytes that making up rows takes; 0 where none are.
    pub generation: u64,
    /// Which data has to be prepared before the run.
    pub raw: RawData,
}

/// The source of a run's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightSource {
    Initial,
    Checkpoint,
}

/// Which data of a run has to be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawData {
    Neither,
    Training,
    Evaluation,
    Both,
}

/// What a step of a rank moves.
#[derive(Clone, Copy, Debug)]
pub struct Traffic<'a> {
    /// Samples of all ranks.
    pub batch_size: usize,
    /// Mean ids of a bag, by feature.
    pub ids_per_bag: &'a [f64],
}

/// What a rank's model takes.
#[derive(Clone, Debug)]
pub struct RankMemory {
    /// From the first step to the last, by use.
    pub held: BTreeMap<MemoryUse, u64>,
    /// Messages of an exchange of pooled vectors, at most.
    pub messages: u64,
    /// Gradients of all dense parameters, whose buckets are on their way at once.
    pub gradients: u64,
    /// Values of all dense parameters and their states, as a checkpoint has them.
    pub saved_dense: u64,
    /// What reading the rank's largest tile from a checkpoint takes beside it.
    pub chunk: u64,
}

/// Estimates the memory of a run on devices of one kind.
#[must_use]
pub fn estimate<B: Backend>(run: &RunShape<'_>) -> MemoryEstimate {
    let program = MemoryParts::single(MemoryUse::Program, program_bytes(run));
    let mut moments = Vec::new();
    if run.generation > 0 {
        moments
            .push(program.with(MemoryUse::Generation, run.generation).at(MemoryPhase::Generation));
    }
    let (ids, threads) = (run.config.data.ids, run.threads);
    let prepared = |shape| data::prepare_memory(shape, ids, threads);
    if matches!(run.raw, RawData::Training | RawData::Both) {
        let bytes = prepared(run.train);
        moments.push(program.with(MemoryUse::Preparation, bytes).at(MemoryPhase::Preparation));
    }
    let vocabulary = 8 * run.train.vocabulary;
    let (loader, readers) = (loader(run), readers(run));
    let program = program.with(MemoryUse::Vocabularies, vocabulary * readers);
    let reading = program.clone().reading(&loader, readers);
    // Rows of one window are all decoded before the first batch is put together.
    let first = if loader.is_one_window { reading.without_batches() } else { reading };
    if let (RawData::Evaluation | RawData::Both, Some((shape, _))) = (run.raw, run.evaluation) {
        // Indices of the vocabularies beside what is written.
        let bytes = prepared(shape) + 2 * vocabulary;
        let parts = first.with(MemoryUse::Preparation, bytes);
        moments.push(parts.at(MemoryPhase::EvaluationPreparation));
    }
    // What decoding them took is returned before the first step.
    let first = loader.is_one_window.then_some(first);
    let steps = LoaderMemory { decoding: loader.decoding_in_steps(), ..loader };
    model_moments::<B>(run, first, program.reading(&steps, readers), &mut moments);
    MemoryEstimate { moments }
}

/// What the ranks of this host hold of one device of this kind while they train: their models, ids
/// and the sort of their updates.
#[must_use]
pub fn on_device<B: Backend>(run: &RunShape<'_>) -> MemoryMoment {
    let mut held = MemoryParts(BTreeMap::new());
    for (&of, &bytes) in ranks::<B>(run).iter().flat_map(|rank| &rank.held) {
        held.add(of, bytes);
    }
    listed(held.0, MemoryPhase::Training)
}

/// The moments at which the model is in memory; `first` is what reading takes before the first
/// step, where that is more than during the steps.
fn model_moments<B: Backend>(
    run: &RunShape<'_>,
    first: Option<MemoryParts>,
    reading: MemoryParts,
    moments: &mut Vec<MemoryMoment>,
) {
    let ranks = ranks::<B>(run);
    let with_model = |mut parts: MemoryParts| {
        for (&of, &bytes) in ranks.iter().flat_map(|rank| &rank.held) {
            parts.add(of, bytes);
        }
        parts
    };
    let mut idle = with_model(reading);
    let first = first.map(|first| with_model(first).untouched());
    let sum = |of: fn(&RankMemory) -> u64| ranks.iter().map(of).sum::<u64>();
    let world_size = ranks.len() as u64;
    idle.add(MemoryUse::Exchange, sum(|rank| rank.messages));
    if run.plan.world_size() > 1 {
        // A rank's share of a batch is a copy.
        idle.add(MemoryUse::Batches, batch_bytes(run) * world_size / ranks_in_all(run));
        // Threads hand over what they send and add it up in place; processes have what they sent,
        // what came to be added, and the others' sums.
        let copies = if run.processes.is_some() { 3 } else { 1 };
        idle.add(MemoryUse::Exchange, copies * sum(|rank| rank.gradients));
    }
    idle.add(MemoryUse::Trace, world_size * run.traced_steps * ops(run.config) * SPAN_BYTES);
    moments.extend(first.iter().map(|first| first.at(MemoryPhase::FirstRead)));
    moments.push(idle.at(MemoryPhase::Training));
    let saved = ranks.first().map_or(0, |rank| rank.saved_dense);
    let names = run.train.vocabulary * CATEGORY_BYTES;
    if run.weights == WeightSource::Checkpoint {
        // Every rank reads the dense parameters beside its model, whose buffers are untouched, and
        // chunks of tables that are cut otherwise.
        let chunks = sum(|rank| rank.chunk);
        let copies = world_size * saved + names + chunks;
        let read = first.unwrap_or_else(|| idle.untouched());
        moments.push(read.with(MemoryUse::Checkpoint, copies).at(MemoryPhase::Restoration));
    }
    moments.push(idle.with(MemoryUse::Checkpoint, saved + names).at(MemoryPhase::Checkpoint));
    if let Some((shape, rows)) = run.evaluation {
        let bytes = evaluation_bytes(run, shape, rows);
        moments.push(idle.with(MemoryUse::Evaluation, bytes).at(MemoryPhase::Evaluation));
    }
}

/// How often data is read on this host.
fn readers(run: &RunShape<'_>) -> u64 {
    run.processes.map_or(1, |processes| processes.len() as u64)
}

fn ranks_in_all(run: &RunShape<'_>) -> u64 {
    u64::from(run.plan.world_size())
}

/// Memory of each rank, of this host where they are processes.
fn ranks<B: Backend>(run: &RunShape<'_>) -> Vec<RankMemory> {
    let world_size = run.plan.world_size();
    let batch_size = batch_size(run);
    let model = &run.config.model;
    let features = model.features();
    let ids: Vec<f64> =
        features.iter().map(|feature| run.train.ids_per_row_of_column(feature.name)).collect();
    let traffic = Traffic { batch_size, ids_per_bag: &ids };
    let batch_max = batch_size.div_ceil(world_size as usize);
    let rank = |rank| Model::<B>::memory(run.config, run.plan, rank, batch_max, &traffic);
    match run.processes {
        None => (0..world_size).map(Rank).map(rank).collect(),
        Some(processes) => processes.iter().copied().map(rank).collect(),
    }
}

/// Samples of the largest batch there is: pages of longer buffers are never touched.
fn batch_size(run: &RunShape<'_>) -> usize {
    let rows = run.train_rows.max(run.evaluation.map_or(0, |(_, rows)| rows)).max(1);
    run.config.training.batch_size.min(usize::try_from(rows).unwrap_or(usize::MAX))
}

fn batch_bytes(run: &RunShape<'_>) -> u64 {
    let (samples, features) = (batch_size(run), run.config.model.features());
    let ids: f64 =
        features.iter().map(|feature| run.train.ids_per_row_of_column(feature.name)).sum();
    let ids = (ids * samples as f64) as usize;
    schema::Batch::bytes(samples, run.train.dense, (features.len(), ids)) as u64
}

fn loader(run: &RunShape<'_>) -> LoaderMemory {
    let training = &run.config.training;
    LoaderShape {
        data: run.train,
        features: &feature_plan(&run.config.model),
        rows: run.train_rows,
        batch_size: training.batch_size,
        shuffle_rows: training.shuffle_rows,
        epochs: training.epochs,
    }
    .memory()
}

fn evaluation_bytes(run: &RunShape<'_>, shape: &DataShape, rows: u64) -> u64 {
    let training = &run.config.training;
    let rows = rows.min(training.evaluate_samples.unwrap_or(u64::MAX));
    // Scores and labels; the loader is one of its own.
    let scores = rows * crate::metric::SAMPLE_BYTES;
    let read = LoaderShape {
        data: shape,
        features: &feature_plan(&run.config.model),
        rows,
        batch_size: training.batch_size,
        shuffle_rows: 0,
        epochs: 1,
    }
    .memory();
    let every = training.evaluate_every.is_some();
    let training = loader(run);
    // Where training data of one window is decoded once, its decoders' memory serves these.
    let decoding = if training.is_one_window { 0 } else { read.decoding };
    let read = read.decoded + read.batches + decoding;
    if every {
        return scores + read;
    }
    // The last evaluation: training no longer reads, and what it read with is used again.
    let free = training.decoded + training.batches + training.decoding_in_steps();
    scores + read.saturating_sub(free)
}

/// How many arenas of the allocator the threads of a run share: see
/// [`device::buffer::limit_arenas`].
#[must_use]
pub fn arenas(threads: usize) -> usize {
    threads.max(2)
}

fn program_bytes(run: &RunShape<'_>) -> u64 {
    let decoding = loader(run).decoding / 10;
    let kept = |threads| decoding.min(arenas(threads) as u64 * ARENA_BYTES);
    let Some(processes) = run.processes else {
        let threads = (run.threads as u64 + THREADS_BESIDE) * THREAD_BYTES;
        return PROGRAM_BYTES + threads + kept(run.threads);
    };
    let count = processes.len().max(1);
    let beside = PROGRAM_BYTES + MPI_BYTES + (THREADS_BESIDE + 2) * THREAD_BYTES;
    let each = beside + kept(run.threads / count);
    count as u64 * each + run.threads as u64 * THREAD_BYTES
}

/// Operations of a step, about: three products and an update of each layer, and what is once.
fn ops(config: &JobConfig) -> u64 {
    let model = &config.model;
    let cross = match model.interaction {
        schema::Interaction::DcnV2 { layers, .. } => 10 * layers,
        _ => 2,
    };
    (16 + 6 * (model.bottom.len() + model.top.len()) + cross) as u64
}

/// Bytes by use.
#[derive(Clone, Debug)]
struct MemoryParts(BTreeMap<MemoryUse, u64>);

impl MemoryParts {
    fn single(of: MemoryUse, bytes: u64) -> Self {
        Self(BTreeMap::from([(of, bytes)]))
    }

    fn add(&mut self, of: MemoryUse, bytes: u64) {
        let sum = self.0.entry(of).or_default();
        *sum = sum.saturating_add(bytes);
    }

    fn with(&self, of: MemoryUse, bytes: u64) -> Self {
        let mut parts = self.clone();
        parts.add(of, bytes);
        parts
    }

    /// Without what only a step touches.
    fn untouched(&self) -> Self {
        let mut parts = self.clone();
        for of in [
            MemoryUse::Activations,
            MemoryUse::Gradients,
            MemoryUse::Exchange,
            MemoryUse::RowUpdates,
        ] {
            parts.0.remove(&of);
        }
        parts
    }

    /// Without batches: none is put together before all rows are there.
    fn without_batches(&self) -> Self {
        let mut parts = self.clone();
        parts.0.remove(&MemoryUse::Batches);
        parts
    }

    fn reading(mut self, loader: &LoaderMemory, readers: u64) -> Self {
        self.add(MemoryUse::Shuffle, readers * loader.decoded);
        self.add(MemoryUse::Batches, readers * loader.batches);
        self.add(MemoryUse::Decoding, readers * loader.decoding);
        self
    }

    /// Adds what the allocator keeps of buffers that come and go, and sorts.
    fn at(&self, when: MemoryPhase) -> MemoryMoment {
        let mut parts = self.0.clone();
        let fleeting = [
            MemoryUse::Exchange,
            MemoryUse::Batches,
            MemoryUse::Decoding,
            MemoryUse::Shuffle,
            MemoryUse::Evaluation,
            MemoryUse::Preparation,
        ];
        let moved: u64 = fleeting.iter().filter_map(|of| parts.get(of)).sum();
        *parts.entry(MemoryUse::Program).or_default() += (moved as f64 * SLACK) as u64;
        listed(parts, when)
    }
}

/// The uses that are not 0, the largest first.
fn listed(parts: BTreeMap<MemoryUse, u64>, when: MemoryPhase) -> MemoryMoment {
    let mut parts: Vec<MemoryPart> =
        parts.into_iter().map(|(of, bytes)| MemoryPart { of, bytes: Bytes(bytes) }).collect();
    parts.retain(|part| part.bytes.0 > 0);
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    let total = parts.iter().map(|part| part.bytes.0).fold(0, u64::saturating_add);
    MemoryMoment { when, total: Bytes(total), parts }
}
