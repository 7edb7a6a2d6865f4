//! Estimates the memory of a training run, by purpose and by phase, before anything is allocated.
//!
//! The estimate reads neither the machine nor files, and the caller compares it with the available
//! memory. Buffers of known length are counted by the constructors that allocate them
//! ([`CountingAllocator`]). Buffers that grow with the data are counted by functions beside them,
//! from the mean number of ids per row. Allocator caches, thread stacks and the program itself are
//! the measured constants [`PROGRAM_BYTES`], [`ARENA_BYTES`] and [`SLACK`].

mod counting_allocator;
mod usage;

use std::collections::BTreeMap;

use data::{DataShape, LoaderMemory, LoaderShape};
use device::Backend;
use schema::stage::Overlap;
use schema::{Bytes, JobConfig, Rank, Schedule, ShardingPlan};
use serde::Serialize;

use crate::model::Model;
use crate::run::feature_plan;

pub use counting_allocator::CountingAllocator;
pub use usage::{MemoryUse, RankMemory, Traffic};

/// Resident pages of the program and its libraries, and its allocations before training.
const PROGRAM_BYTES: u64 = 27 << 20;
/// Memory of MPI in one process. Open MPI 4.1 took 6 MiB on one host.
const MPI_BYTES: u64 = 8 << 20;
/// A thread's stack and its share of the allocator's free memory.
const THREAD_BYTES: u64 = 256 << 10;
/// Maximum number of bytes that the allocator keeps free at the end of each arena. The allocator
/// keeps a tenth of the bytes that were decoded in the arena.
const ARENA_BYTES: u64 = 3 << 20;
/// Number of threads besides those of the ranks: the main thread, one that assembles batches, and
/// some that decode.
const THREADS_BESIDE: u64 = 4;
/// Overhead of freed and fragmented memory, relative to buffers that are allocated for each batch.
const SLACK: f64 = 0.12;
/// Bytes of a recorded operation, including its text while the trace is written.
const SPAN_BYTES: u64 = 100;
/// Bytes of a category in a checkpoint's manifest while the manifest is written: a JSON value and
/// its text, each twice.
const CATEGORY_BYTES: u64 = 96;

/// The phase of a run in which memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPhase {
    Generation,
    Preparation,
    /// Raw evaluation files are prepared, while the first training rows are read.
    EvaluationPreparation,
    /// A checkpoint to resume from is read.
    Restoration,
    /// All rows of a small dataset are decoded, for the first batch.
    FirstRead,
    Training,
    /// An evaluation runs between training steps.
    Evaluation,
    /// A checkpoint is written between training steps.
    Checkpoint,
}

impl MemoryPhase {
    /// Returns the phase in words that follow "while" in messages.
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

/// The memory needed for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryPart {
    pub of: MemoryUse,
    pub bytes: Bytes,
}

/// The memory needed during one phase of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryMoment {
    pub when: MemoryPhase,
    pub total: Bytes,
    /// Purposes sorted by size, the largest first. Purposes that need no memory are left out.
    pub parts: Vec<MemoryPart>,
}

/// The estimated memory of a run, phase by phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryEstimate {
    pub moments: Vec<MemoryMoment>,
}

impl MemoryEstimate {
    /// Returns the phase that needs the most memory.
    #[must_use]
    pub fn peak(&self) -> Option<&MemoryMoment> {
        self.moments.iter().max_by_key(|moment| moment.total)
    }

    /// Returns the memory of the phase that needs the most.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.peak().map_or(Bytes(0), |moment| moment.total)
    }
}

/// The inputs of an estimate: configuration, plan, data and processes of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunShape<'a> {
    pub config: &'a JobConfig,
    pub plan: &'a ShardingPlan,
    /// Number of threads over all ranks, or over the processes of this host.
    pub threads: usize,
    /// The ranks of this host, if ranks are processes. All ranks share the reading of the data.
    pub processes: Option<&'a [Rank]>,
    pub train: &'a DataShape,
    pub train_rows: u64,
    /// Held-out data and its number of rows.
    pub evaluation: Option<(&'a DataShape, u64)>,
    pub traced_steps: u64,
    pub weights: WeightSource,
    /// Bytes needed to generate synthetic rows, or 0 if the run generates no rows.
    pub generation: u64,
    pub raw: RawData,
    pub schedule: Schedule,
}

/// Whether a run starts from initial weights or from a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightSource {
    Initial,
    Checkpoint,
}

/// The data of a run that must be prepared from raw files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawData {
    Neither,
    Training,
    Evaluation,
    Both,
}

/// Estimates the memory of a run whose ranks use devices of type `B`, for every phase.
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
    // If the shuffle window holds all rows, all are decoded before the first batch is assembled.
    let first = if loader.is_one_window { reading.without_batches() } else { reading };
    if let (RawData::Evaluation | RawData::Both, Some((shape, _))) = (run.raw, run.evaluation) {
        // The indices of the vocabularies are in memory besides the prepared rows.
        let bytes = prepared(shape) + 2 * vocabulary;
        let parts = first.with(MemoryUse::Preparation, bytes);
        moments.push(parts.at(MemoryPhase::EvaluationPreparation));
    }
    // The memory used for decoding is returned before the first step.
    let first = loader.is_one_window.then_some(first);
    let steps = LoaderMemory { decoding: loader.decoding_in_steps(), ..loader };
    model_moments::<B>(run, first, program.reading(&steps, readers), &mut moments);
    MemoryEstimate { moments }
}

/// Estimates the memory that the ranks of this host need on one device of type `B` while they
/// train: models, ids and the sort of their updates.
#[must_use]
pub fn on_device<B: Backend>(run: &RunShape<'_>) -> MemoryMoment {
    let mut held = MemoryParts(BTreeMap::new());
    for (&of, &bytes) in ranks::<B>(run).iter().flat_map(|rank| &rank.held) {
        held.add(of, bytes);
    }
    listed(held.0, MemoryPhase::Training)
}

/// Appends the phases during which the model is in memory. `first` is the memory of reading before
/// the first step, if that exceeds the memory of reading during the steps.
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
        // Ranks that are threads copy their shares of a batch. Rank 0 also keeps the whole batches
        // of steps that it has announced.
        let (ahead, bytes) = (schedule(run).lookahead() as u64, batch_bytes(run));
        let shares = (1 + ahead) * bytes * world_size / ranks_in_all(run);
        let whole = if run.processes.is_some() { 0 } else { ahead * bytes };
        idle.add(MemoryUse::Batches, shares + whole);
        // Threads move their messages and sum them in place. Processes hold three copies: the sent
        // messages, the received messages, and the sums of the other ranks.
        let copies = if run.processes.is_some() { 3 } else { 1 };
        idle.add(MemoryUse::Exchange, copies * sum(|rank| rank.gradients));
    } else {
        idle.add(MemoryUse::Batches, schedule(run).lookahead() as u64 * batch_bytes(run));
    }
    idle.add(MemoryUse::Trace, world_size * run.traced_steps * ops(run.config) * SPAN_BYTES);
    moments.extend(first.iter().map(|first| first.at(MemoryPhase::FirstRead)));
    moments.push(idle.at(MemoryPhase::Training));
    let saved = ranks.first().map_or(0, |rank| rank.saved_dense);
    let names = run.train.vocabulary * CATEGORY_BYTES;
    if run.weights == WeightSource::Checkpoint {
        // Every rank reads the dense parameters besides its model, and chunks of tables under
        // another tiling. The model's step buffers are still untouched, so they need no memory yet.
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

fn schedule(run: &RunShape<'_>) -> Schedule {
    run.schedule.for_job(run.config, run.plan.world_size())
}

/// Returns the number of processes on this host that read the data.
fn readers(run: &RunShape<'_>) -> u64 {
    run.processes.map_or(1, |processes| processes.len() as u64)
}

/// Returns the number of ranks that share the reading of the data.
fn sharing_ranks(run: &RunShape<'_>) -> u64 {
    run.processes.map_or(1, |_| ranks_in_all(run))
}

fn ranks_in_all(run: &RunShape<'_>) -> u64 {
    u64::from(run.plan.world_size())
}

/// Computes the memory of each rank. If ranks are processes, only those on this host are included.
fn ranks<B: Backend>(run: &RunShape<'_>) -> Vec<RankMemory> {
    let world_size = run.plan.world_size();
    let batch_size = batch_size(run);
    let model = &run.config.model;
    let features = model.features();
    let ids: Vec<f64> =
        features.iter().map(|feature| run.train.ids_per_row_of_column(feature.name)).collect();
    let id_buffers = 1 + usize::from(schedule(run).has(Overlap::Input));
    let traffic = Traffic { batch_size, ids_per_bag: &ids, id_buffers };
    let batch_max = batch_size.div_ceil(world_size as usize);
    let rank = |rank| Model::<B>::memory(run.config, run.plan, rank, batch_max, &traffic);
    match run.processes {
        None => (0..world_size).map(Rank).map(rank).collect(),
        Some(processes) => processes.iter().copied().map(rank).collect(),
    }
}

/// Returns the number of samples of the largest batch that occurs. Longer buffers have pages that
/// are never touched, so they need no memory.
fn batch_size(run: &RunShape<'_>) -> usize {
    let rows = run.train_rows.max(run.evaluation.map_or(0, |(_, rows)| rows)).max(1);
    run.config.training.batch_size.min(usize::try_from(rows).unwrap_or(usize::MAX))
}

fn batch_bytes(run: &RunShape<'_>) -> u64 {
    let (samples, features) = (batch_size(run), run.config.model.features());
    let ids: f64 =
        features.iter().map(|feature| run.train.ids_per_row_of_column(feature.name)).sum();
    let ids = (ids * samples as f64) as usize;
    schema::Batch::bytes(samples, run.train.dense, features.len(), ids) as u64
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
        ranks: sharing_ranks(run),
    }
    .memory()
}

fn evaluation_bytes(run: &RunShape<'_>, shape: &DataShape, rows: u64) -> u64 {
    let training = &run.config.training;
    let rows = rows.min(training.evaluate_samples.unwrap_or(u64::MAX));
    // An evaluation needs memory for scores and labels, and for its own loader.
    let scores = rows * crate::metric::SAMPLE_BYTES;
    let read = LoaderShape {
        data: shape,
        features: &feature_plan(&run.config.model),
        rows,
        batch_size: training.batch_size,
        shuffle_rows: 0,
        epochs: 1,
        ranks: sharing_ranks(run),
    }
    .memory();
    let every = training.evaluate_every.is_some();
    let training = loader(run);
    // If all training rows are decoded once, the memory of their decoders is free again.
    let decoding = if training.is_one_window { 0 } else { read.decoding };
    let read = read.decoded + read.batches + decoding;
    if every {
        return scores + read;
    }
    // The last evaluation reuses the memory of the training loader.
    let free = training.decoded + training.batches + training.decoding_in_steps();
    scores + read.saturating_sub(free)
}

/// Returns the number of allocator arenas that the threads of a run share, see
/// [`device::buffer::limit_arenas`].
#[must_use]
pub fn arenas(threads: usize) -> usize {
    threads.max(2)
}

fn program_bytes(run: &RunShape<'_>) -> u64 {
    // The allocator keeps a tenth of the decoded bytes free, but at most `ARENA_BYTES` per arena.
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

/// Estimates the number of operations of a step: three products and one update per layer, plus the
/// operations that occur once.
fn ops(config: &JobConfig) -> u64 {
    let model = &config.model;
    let cross = match model.interaction {
        schema::Interaction::DcnV2 { layers, .. } => 10 * layers,
        _ => 2,
    };
    let wide = if model.wide { 4 } else { 0 };
    (16 + 6 * (model.bottom.len() + model.top.len()) + cross + wide) as u64
}

/// The bytes needed for each purpose during one phase.
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

    /// Removes the buffers that only a step touches.
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

    /// Removes the batches, because no batch is assembled while all rows are decoded.
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

    /// Adds the allocator's overhead for short-lived buffers, and sorts the parts.
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

/// Lists the purposes that need memory, the largest first.
fn listed(parts: BTreeMap<MemoryUse, u64>, when: MemoryPhase) -> MemoryMoment {
    let mut parts: Vec<MemoryPart> =
        parts.into_iter().map(|(of, bytes)| MemoryPart { of, bytes: Bytes(bytes) }).collect();
    parts.retain(|part| part.bytes.0 > 0);
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    let total = parts.iter().map(|part| part.bytes.0).fold(0, u64::saturating_add);
    MemoryMoment { when, total: Bytes(total), parts }
}
