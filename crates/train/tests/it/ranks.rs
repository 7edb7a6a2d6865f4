//! Trains a model on given batches, with one thread per rank, and assembles the tables from their
//! tiles.

use std::path::PathBuf;

use device::backend::{Cuda, TileRoom, TileRows};
use device::cuda::{BlockOrder, Checks, Driver, Emulation, H100_SHARED_BYTES};
use device::{Backend, Cpu, Weights, WeightsView};
use schema::model::ModelConfig;
use schema::optimizer::LearningRateSchedule;
use schema::source::DataFormat;
use schema::training::TrainingConfig;
use schema::{
    Batch, DataConfig, JobConfig, Optimizer, OptimizerConfig, Optimizers, Rank, Schedule,
    ShardingPlan, SplitRowRule,
};
use train::context::DeviceQueue;
use train::model::RankParameters;
use train::parameter::{DenseParameter, TileState};
use train::profile::Profiler;
use train::{Model, RankContext, RunStep, SampleShare};

/// A configuration, a sharding plan and the batches to train on.
pub struct Job<'a> {
    pub config: &'a JobConfig,
    pub plan: &'a ShardingPlan,
    pub batches: &'a [Batch],
    pub threads: usize,
    pub parameters: &'a (dyn Fn(Rank) -> RankParameters + Sync),
}

/// The results of a training run in memory.
#[derive(Debug, PartialEq)]
pub struct Trained {
    /// Mean loss of each step.
    pub losses: Vec<f64>,
    /// Dense parameters of rank 0.
    pub dense: Vec<DenseParameter>,
    /// Whole tables, each with shape `[rows, dim]`.
    pub tables: Vec<Vec<f32>>,
}

/// Copies the tiles of a model.
pub fn tiles_of(model: &Model<Cpu>) -> Vec<TileState> {
    tiles_on(DeviceQueue { device: &Cpu::new(1), queue: &() }, model)
}

/// Copies all tiles that a rank holds, replicated tables included.
fn tiles_on<B: Backend>(device_queue: DeviceQueue<'_, B>, model: &Model<B>) -> Vec<TileState> {
    let mut room = TileRoom::default();
    let copy = |(number, tile): (usize, &schema::Tile)| {
        let rows = TileRows { tile: number, rows: 0..tile.row_count() };
        let view = model.tile(device_queue, rows, &mut room).unwrap();
        let weight = match view.weight {
            WeightsView::F32(values) => Weights::F32(values.into()),
            WeightsView::F16(values) => Weights::F16(values.into()),
            WeightsView::Bf16(values) => Weights::Bf16(values.into()),
        };
        TileState { tile: view.tile, weight, state: view.state.into() }
    };
    model.held_tiles().iter().enumerate().map(copy).collect()
}

/// Copies all parameters that a rank trains.
pub fn parameters_of(model: &Model<Cpu>) -> RankParameters {
    let dense =
        model.dense().to_parameters(DeviceQueue { device: &Cpu::new(1), queue: &() }).unwrap();
    RankParameters { dense, tiles: tiles_of(model) }
}

/// Returns a driver that emulates GPU kernels. Without a C++ compiler it prints that the test is
/// skipped and returns `None`. If `ROWMILL_GPU` is the number of a GPU, returns the driver of that
/// GPU with the compiled kernels of `ROWMILL_KERNELS`.
pub fn emulated() -> Option<Driver> {
    if let Ok(ordinal) = std::env::var("ROWMILL_GPU") {
        let options = crate::stub::stub_library::options_of_environment();
        return Some(Driver::cuda(ordinal.parse().unwrap(), options).unwrap());
    }
    if !testkit::compiler::has_cxx("GPU kernels, emulated") {
        return None;
    }
    let compiler = testkit::compiler::cxx();
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let (order, checks, replaced) = (BlockOrder::Shuffled(1), Checks::Few, Vec::new());
    let shared_limit = H100_SHARED_BYTES;
    Some(Driver::emulated(Emulation { compiler, cache, order, checks, shared_limit, replaced }))
}

/// Trains on all batches. Each batch is split over the ranks as evenly as possible, so small
/// batches leave some ranks without samples.
pub fn train(job: &Job<'_>) -> Trained {
    train_on(job, &Cpu::new)
}

/// Trains like [`train`], but with the kernels of a GPU.
pub fn train_emulated(job: &Job<'_>, driver: &Driver) -> Trained {
    train_on(job, &|threads| Cuda::new(driver.clone(), threads).unwrap())
}

/// The parameters and losses of one rank after the last batch.
struct Rankful {
    sums: Vec<f64>,
    dense: Vec<DenseParameter>,
    tiles: Vec<TileState>,
}

fn train_on<B: Backend>(job: &Job<'_>, open: &(impl Fn(usize) -> B + Sync)) -> Trained {
    let ends = comm::world(job.plan.world_size());
    let ranks: Vec<Rankful> = std::thread::scope(|scope| {
        let run = |comm| scope.spawn(move || train_rank(job, open(job.threads), comm));
        let ranks: Vec<_> = ends.into_iter().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let mut losses = vec![0.0; job.batches.len()];
    let tables = &job.config.model.tables;
    let mut whole: Vec<_> =
        // NaN reveals rows that no tile covers.
        tables.iter().map(|table| vec![f32::NAN; table.rows as usize * table.dim]).collect();
    for Rankful { sums, tiles, .. } in &ranks {
        for (loss, (sum, batch)) in losses.iter_mut().zip(sums.iter().zip(job.batches)) {
            *loss += sum / batch.size as f64;
        }
        for state in tiles {
            let weight = state.weight.view().to_f32();
            let (tile, dim) = (&state.tile, tables[state.tile.table.index()].dim);
            for (row, values) in tile.rows.clone().zip(weight.chunks_exact(tile.dim())) {
                let start = row as usize * dim + tile.columns.start;
                whole[tile.table.index()][start..start + tile.dim()].copy_from_slice(values);
            }
        }
    }
    let dense = ranks.into_iter().next().unwrap().dense;
    Trained { losses, dense, tables: whole }
}

fn train_rank<B: Backend>(job: &Job<'_>, device: B, comm: comm::Communicator) -> Rankful {
    let (rank, size) = (comm.rank(), comm.world_size());
    let mut context = RankContext::new(device, comm, Profiler::off()).unwrap();
    context.comm.open_lanes(Schedule::SERIAL, job.plan).unwrap();
    let batch_max = job.config.training.batch_size;
    let parameters = (job.parameters)(rank);
    let device_queue = context.device_queue();
    let mut model =
        Model::restored(device_queue, job.config, job.plan, rank, batch_max, parameters).unwrap();
    let mut sums = Vec::new();
    for (number, batch) in (0..).zip(job.batches) {
        let cut = |rank: usize| batch.size * rank / size;
        let own = batch.slice(cut(rank.index())..cut(rank.index() + 1));
        let share =
            SampleShare { batch: &own, first_sample: cut(rank.index()), global_size: batch.size };
        sums.push(model.train(&mut context, share, RunStep { number, factor: 1.0 }).unwrap());
    }
    let dense = model.dense().to_parameters(context.device_queue()).unwrap();
    Rankful { sums, dense, tiles: tiles_on(context.device_queue(), &model) }
}

/// Creates a job configuration for `model`. The data section of the configuration is not used.
pub fn job(
    model: ModelConfig,
    (sparse, dense): (Optimizer, Optimizer),
    learning_rate: f64,
    batch_size: usize,
) -> JobConfig {
    let optimizer = |kind| OptimizerConfig::new(kind, learning_rate);
    JobConfig {
        model,
        optimizer: Optimizers {
            row_scope: SplitRowRule::default(),
            sparse: optimizer(sparse),
            dense: optimizer(dense),
        },
        schedule: LearningRateSchedule::default(),
        training: TrainingConfig {
            batch_size,
            epochs: 1,
            steps: None,
            seed: 0,
            precision: schema::Precision::F32,
            shuffle_rows: 0,
            drop_last: false,
            log_every: 1,
            evaluate_every: None,
            evaluate_samples: None,
            checkpoint_every: None,
            keep_checkpoints: 1,
            keep_best: None,
            patience: None,
            baselines: false,
            auc_by: None,
        },
        synthetic: schema::SyntheticConfig::default(),
        plan: schema::Constraints::default(),
        storage: None,
        data: DataConfig::new(DataFormat::Criteo),
    }
}
