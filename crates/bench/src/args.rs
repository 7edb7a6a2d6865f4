//! Defines the command line of `rowmill-bench`. Values are used as the user typed them.

use std::path::PathBuf;
use std::time::Duration;

use crate::command::published::mlp_grid::MlpGrid;
use bench::sample::Sampling;
use clap::{Args, Parser, Subcommand, ValueEnum};
use comm::DelayedLink;
use schema::{DataType, IdLaw, Optimizer, Precision};
use setup::args::{Global, OnDevice, Sharding, key_value};

const TRAIN_AFTER: &str = "\
Examples:
  rowmill-bench train --config dlrm-default --threads 2
  rowmill-bench train --config my.toml --batch-size 512 --pooling 32 --distribution zipf:1.05
  rowmill-bench train --config dlrm-default --precision bf16
  rowmill-bench train --config dlrm-mlperf --optimizer rowwise_adagrad --format json
  rowmill-bench train --config dlrm-default --device cuda --tf32 --wait-every 10

Trains on generated batches in memory, rotating through distinct batches worth 65,536 samples.
Steps are timed unrecorded, one by one or --wait-every at a time; other steps are recorded for the breakdown. The limits are
measured in the same run, interleaved with the steps, on as many threads.

  samples_per_s, step_ms            median of the timed steps; …_min and …_max beside them
  gemm_pct_of_peak                  time that all matrix products would need at the peak of their precision,
                                    fma_peak_gflop_per_s or bf16_peak_gflop_per_s, ÷ their time
  rest_pct_of_step                  everything except the matrix products, including gaps
  ops                               per operation: ms, share, GFLOP/s, useful GB/s, % of the roofline
  gemms                             per product and shape (M×K by K×N): ms, GFLOP/s, % of peak
  fma_peak_gflop_per_s              f32 multiply-adds in registers, the better of 256 and 512 bits
  bf16_peak_gflop_per_s             products of bf16 pairs in registers, if the CPU supports them
  gather_limit_gb_per_s             random rows as long as the tables', from an array as large
  read_modify_write_limit_gb_per_s  random rows that are also written back; bytes read and written
  stream_limit_gb_per_s             one sequential pass over that array
  apparent_clock_ghz, foreign_cpu   clock inferred from a chain of known latency; share of the time in
                                    which our threads waited for a core
  rejected_samples, trusted         samples with too low a clock or too much foreign CPU are dropped;
                                    if too few are left, trusted is false and the figures are of all
                                    samples";

const ABLATION_AFTER: &str = "\
Examples:
  rowmill-bench ablation --threads 2
  rowmill-bench ablation --delay 500us --bandwidth 10GB/s --sharding row --format json
  rowmill-bench ablation --delay 0 --rounds 30

Ranks are threads that train on generated batches in memory. The schedules take turns in every round. All times are
medians over the steps of all rounds, each the mean of the ranks.

  step_ms, device_ms, host_ms, host_without_waits_ms
                    time of a step; of computing; of everything else; of that without the waits for exchanges
  exposed_…_ms      time in which the compute thread waits for an exchange
  exchange_ms       exposed time of an exchange under the serial schedule
  beside_ms         computing between start and end of the exchange in the pipelined schedule
  hidden_…_pct      part of the smaller of these two that is no longer exposed, with this overlap alone and with all
  pipelined_over_serial, …_low, …_high
                    mean ratio of the step times of a round, with its 95 % interval";

const PLANS_AFTER: &str = "\
Examples:
  rowmill-bench plans
  rowmill-bench plans --model few-large --plans 20 --rounds 5 --format json

Costs of this machine are measured first. Ranks are two threads that train on generated batches in memory. The plans
of a model take turns in every round.

  predicted_ms, measured_ms   a step; the measured one is the median of the rounds, each a median of steps
  kendall_tau                 rank correlation of both over the plans of a model
  best_slower                 measured step of the plan that is predicted to be fastest, relative to the fastest
  spread                      median range of the rounds of a plan without the fastest and the slowest
  stages                      predicted and measured time by which each stage lengthens a step: the slowest rank's
                              computing, and the exchange on the rank that waits least";

const SHARDING_AFTER: &str = "\
Examples:
  rowmill-bench sharding --set model.rows_cap=1000000
  rowmill-bench sharding --config my.toml --rounds 30 --format json

Plans of --sharding auto, table, row, column and mixed take turns in every round. Ranks are threads that train on
generated batches in memory.

  rules             median step of each plan, and the steps of the rounds, each a median of steps
  best_over_auto, …_low, …_high
                    step of the best rule ÷ that of auto: mean over rounds with its 95 % interval";

const EMBEDDING_AFTER: &str = "\
Examples:
  rowmill-bench embedding --threads 2
  rowmill-bench embedding --tables 8 --rows 1000000 --dim 64 --pooling 32 --distribution zipf:1.05
  rowmill-bench embedding --tables 1000 --rows 1000 --pooling 1 --format json

  forward_gb_per_s, backward_gb_per_s  useful bytes: ids (8 each), the rows looked up, pooled vectors;
                                       backward: ids, gradients, each distinct row and its state read
                                       and written
  forward_pct_of_gather_limit, backward_pct_of_read_modify_write_limit
                                       share of random access to rows as long in an array as large, on as
                                       many threads, measured in turns
  forward_rows_per_s, backward_rows_per_s
                                       ids per second
  per_table_overhead_ns                one bag of one id in every table against as many bags in one
                                       table, per table; …_backward_ns for the backward
  apparent_clock_ghz, foreign_cpu, rejected_samples, trusted
                                       as in rowmill-bench train";

const GEMM_AFTER: &str = "\
Examples:
  rowmill-bench gemm --threads 2
  rowmill-bench gemm --shape 2048x512x512 2048x13x512 --precision bf16 --format json

A shape is M×K×N of the forward product Y[M, N] = X[M, K] Wᵀ; the gradients have the same FLOPs.
  forward_…, backward_input_…, backward_weight_…
                                       gflop_per_s, and pct_of_peak: share of multiply-adds of the
                                       precision in registers on as many threads, measured in turns
  apparent_clock_ghz, foreign_cpu, rejected_samples, trusted
                                       as in rowmill-bench train";

const INTERACTION_AFTER: &str = "\
Examples:
  rowmill-bench interaction --threads 2
  rowmill-bench interaction --features 26 --dim 32 --format json

  …_pct_of_roofline    least time for the FLOPs or bytes ÷ time taken; above 100 where caches serve
                       what the limit reads from memory
  apparent_clock_ghz, foreign_cpu, rejected_samples, trusted
                       as in rowmill-bench train";

const DATA_AFTER: &str = "\
Examples:
  rowmill-bench data --threads 2
  rowmill-bench data --file train.txt --repeats 3 --format json

Generates Criteo text once, in TMPDIR, and removes it. Each measurement is a process of its own.
  scan_mb_per_s     text to columns of integers in memory
  convert_mb_per_s  text to a prepared folder, as rowmill data convert does
  parquet_mb_per_s  Parquet to a prepared folder; bytes are those of the same rows as text
  …_rows_per_s, …_peak_bytes
                    rows per second; peak memory of the process, files excluded
  apparent_clock_ghz, foreign_cpu, rejected_samples, trusted
                    as in rowmill-bench train";

/// Measures rowmill on this machine, beside the limits of the machine.
#[derive(Debug, Parser)]
#[command(name = "rowmill-bench", version, propagate_version = true, max_term_width = 100)]
pub struct BenchCli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// The measurements of `rowmill-bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time training steps: samples per second, time by operation, share of this machine's limits
    #[command(after_help = TRAIN_AFTER)]
    Train(BenchTrain),
    /// Time steps of several ranks over a simulated slow link, with each overlap alone and with all
    #[command(after_help = ABLATION_AFTER)]
    Ablation(BenchAblation),
    /// Compare lookups and row updates with plain random access, and measure the overhead per table
    #[command(after_help = EMBEDDING_AFTER)]
    Embedding(BenchEmbedding),
    /// Compare the predicted steps of many sharding plans with their steps on two ranks over a
    /// simulated slow link
    #[command(after_help = PLANS_AFTER)]
    Plans(BenchPlans),
    /// Compare the step under --sharding auto with those under the ready-made rules
    #[command(after_help = SHARDING_AFTER)]
    Sharding(BenchSharding),
    /// Compare the three matrix products of linear layers with multiply-adds in registers
    #[command(after_help = GEMM_AFTER)]
    Gemm(BenchGemm),
    /// Time the dot interaction and its gradient
    #[command(after_help = INTERACTION_AFTER)]
    Interaction(BenchInteraction),
    /// Time the conversion of Criteo text to columns and to a prepared folder, and of Parquet to
    /// another
    #[command(after_help = DATA_AFTER)]
    Data(BenchData),
    /// Time reading and breaking down a trace: bytes per second, memory, critical path
    #[command(after_help = "\
Examples:
  rowmill-bench trace
  rowmill-bench trace trace.json.gz --megabytes 3000 --format json

The events of PATH are repeated, shifted in time, until the text reaches --megabytes.")]
    Trace(BenchTrace),
    /// Time calibration, simulation, edits and draws of a recorded job, relative to reading its
    /// traces
    Predict(BenchPredict),
    /// Print the errors of published methods that predict steps and kernels
    Published(BenchPublished),
}

/// Options of `rowmill-bench train`.
#[derive(Debug, Args)]
pub struct BenchTrain {
    /// A TOML file, or the name of a ready-made configuration (rowmill train --list)
    #[arg(long, value_name = "CONFIG", default_value = "dlrm-default")]
    pub config: String,
    /// Change a key of the configuration, such as optimizer.dense.kind=adagrad
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    #[command(flatten)]
    pub device: OnDevice,
    /// Samples per step [default: the configuration's]
    #[arg(long, value_name = "B")]
    pub batch_size: Option<usize>,
    /// Matrix products in f32 or bf16 [default: the configuration's]
    #[arg(long, value_name = "TYPE", value_parser = precision)]
    pub precision: Option<Precision>,
    /// Number of ids per bag of pooled features; sequences are always full
    #[arg(long, value_name = "L", default_value_t = 1, value_parser = at_least_one)]
    pub pooling: usize,
    /// Optimizer of the tables, such as sgd or rowwise_adagrad [default: the configuration's]
    #[arg(long, value_name = "RULE")]
    pub optimizer: Option<String>,
    /// How often each row is looked up: uniform, zipf:EXPONENT, or reuse:FILE[#SECTION] with
    /// locality statistics of dlrm_datasets [default: the configuration's [synthetic], else
    /// uniform]
    #[arg(long, value_name = "LAW", value_parser = str::parse::<IdLaw>)]
    pub distribution: Option<IdLaw>,
    /// Limit the number of rows of every table
    #[arg(long, value_name = "ROWS")]
    pub rows_cap: Option<u64>,
    /// Number of samples per round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub steps: u64,
    /// Number of steps per sample. The host waits for the device only after the last of them, so it
    /// may run ahead of a GPU; on the CPU this makes no difference
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub wait_every: usize,
    /// Record as many steps as are timed, and write the accepted ones to this folder, for `rowmill
    /// trace` and `rowmill predict calibrate`
    #[arg(long, value_name = "FOLDER")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub sampling: Sampling,
}

/// Options of `rowmill-bench ablation`.
#[derive(Debug, Args)]
pub struct BenchAblation {
    #[command(flatten)]
    pub training: RankedTraining,
    /// How tables are split over ranks
    #[arg(long, value_enum, default_value_t = Sharding::Table)]
    pub sharding: Sharding,
    #[command(flatten)]
    pub timed: TimedRounds,
}

/// The training whose step is measured on several ranks.
#[derive(Debug, Args)]
pub struct RankedTraining {
    /// A TOML file, or the name of a ready-made configuration (rowmill train --list)
    #[arg(long, value_name = "CONFIG", default_value = "dlrm-ddp")]
    pub config: String,
    /// Change a key of the configuration, such as batch_size=4096
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// Number of ids per bag of pooled features; sequences are always full
    #[arg(long, value_name = "L", default_value_t = 1, value_parser = at_least_one)]
    pub pooling: usize,
    /// Number of ranks, which share the threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub ranks: u32,
}

impl RankedTraining {
    /// Returns the number of threads of each rank if all of them share `threads`.
    pub fn threads_per_rank(&self, threads: usize) -> usize {
        (threads / self.ranks as usize).max(1)
    }
}

/// The rounds of a measurement, and the simulated link between its ranks.
#[derive(Debug, Args)]
pub struct TimedRounds {
    /// Time that a message takes besides its transfer, such as 2ms or 50us. With 0, messages pass
    /// directly between the ranks, and --bandwidth has no effect
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = time)]
    pub delay: Duration,
    /// Bytes per second that a rank can send, such as 1GB/s or 800MB/s
    #[arg(long, value_name = "RATE", default_value = "1GB/s", value_parser = bytes_per_second)]
    pub bandwidth: f64,
    /// Number of rounds, each with all schedules or plans in another order
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    pub rounds: u64,
    /// Number of timed steps of each schedule or plan per round
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub steps: u64,
}

impl TimedRounds {
    /// Returns the simulated link, or `None` if messages pass directly between ranks.
    pub fn link(&self) -> Option<DelayedLink> {
        let link = DelayedLink { latency: self.delay, bandwidth: self.bandwidth };
        (!self.delay.is_zero()).then_some(link)
    }
}

/// Options of `rowmill-bench plans`.
#[derive(Debug, Args)]
#[command(
    mut_arg("delay", |arg| arg.default_value("200us")),
    mut_arg("bandwidth", |arg| arg.default_value("250MB/s")),
    mut_arg("rounds", |arg| arg.default_value("5")),
    mut_arg("steps", |arg| arg.default_value("9"))
)]
pub struct BenchPlans {
    /// Models to measure: many-small, few-large or dlrm-criteo-kaggle [default: all]
    #[arg(long, value_name = "MODEL", num_args = 1.., value_parser = ["many-small", "few-large", "dlrm-criteo-kaggle"])]
    pub model: Vec<String>,
    /// Samples per step [default: 2048, few-large 1024]
    #[arg(long, value_name = "B", value_parser = at_least_one)]
    pub batch_size: Option<usize>,
    /// Number of plans of each model
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub plans: usize,
    #[command(flatten)]
    pub timed: TimedRounds,
}

/// Options of `rowmill-bench sharding`.
#[derive(Debug, Args)]
#[command(
    mut_arg("config", |arg| arg.default_value("dlrm-criteo-kaggle")),
    mut_arg("delay", |arg| arg.default_value("0")),
    mut_arg("rounds", |arg| arg.default_value("30")),
    mut_arg("steps", |arg| arg.default_value("9"))
)]
pub struct BenchSharding {
    #[command(flatten)]
    pub training: RankedTraining,
    #[command(flatten)]
    pub timed: TimedRounds,
}

/// Options of `rowmill-bench embedding`.
#[derive(Clone, Debug, Args)]
pub struct BenchEmbedding {
    /// Number of tables, each with its own feature
    #[arg(long, value_name = "T", default_value_t = 8, value_parser = at_least_one)]
    pub tables: usize,
    /// Number of rows of each table
    #[arg(long, value_name = "R", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub rows: u64,
    /// Number of elements of a row
    #[arg(long, value_name = "D", default_value_t = 64, value_parser = at_least_one)]
    pub dim: usize,
    /// Number of ids per bag
    #[arg(long, value_name = "L", default_value_t = 32, value_parser = at_least_one)]
    pub pooling: usize,
    /// Number of samples per call
    #[arg(long, value_name = "B", default_value_t = 2048, value_parser = at_least_one)]
    pub batch_size: usize,
    /// Data type of the rows: f32, f16 or bf16
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = data_type)]
    pub data_type: DataType,
    /// Optimizer of the tables, such as sgd or rowwise_adagrad
    #[arg(long, value_name = "RULE", default_value = "sgd", value_parser = optimizer)]
    pub optimizer: Optimizer,
    /// How often each row is looked up: uniform, zipf:EXPONENT, or reuse:FILE[#SECTION] with
    /// locality statistics of dlrm_datasets
    #[arg(long, value_name = "LAW", default_value = "uniform", value_parser = str::parse::<IdLaw>)]
    pub distribution: IdLaw,
    /// Number of calls of each pass per round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub calls: u64,
    #[command(flatten)]
    pub sampling: Sampling,
}

/// Options of `rowmill-bench gemm`.
#[derive(Clone, Debug, Args)]
pub struct BenchGemm {
    /// Shapes of the forward product, as MxKxN
    #[arg(long, value_name = "MxKxN", num_args = 1.., value_delimiter = ',', value_parser = gemm_shape,
          default_value = "2048x512x512,2048x1024x1024,2048x479x1024,2048x13x512")]
    pub shape: Vec<GemmShape>,
    /// Precision of the products: f32 or bf16
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = precision)]
    pub precision: Precision,
    /// Number of calls of each product per round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub calls: u64,
    #[command(flatten)]
    pub sampling: Sampling,
}

/// Shape of the product `Y[M, N] = X[M, K] Wᵀ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmShape {
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

/// Options of `rowmill-bench interaction`.
#[derive(Clone, Debug, Args)]
pub struct BenchInteraction {
    /// Number of pooled vectors per sample, besides the dense one
    #[arg(long, value_name = "F", default_value_t = 8, value_parser = at_least_one)]
    pub features: usize,
    /// Number of elements of a vector
    #[arg(long, value_name = "D", default_value_t = 64, value_parser = at_least_one)]
    pub dim: usize,
    /// Number of samples per call
    #[arg(long, value_name = "B", default_value_t = 2048, value_parser = at_least_one)]
    pub batch_size: usize,
    /// Number of calls of each pass per round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub calls: u64,
    #[command(flatten)]
    pub sampling: Sampling,
}

/// Options of `rowmill-bench data`.
#[derive(Clone, Debug, Args)]
pub struct BenchData {
    /// Plain text in Criteo's layout [default: generated]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Approximate size of the generated text, in millions of bytes
    #[arg(long, value_name = "N", default_value_t = 250, conflicts_with = "file", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub megabytes: u64,
    #[command(flatten)]
    pub sampling: Sampling,
    /// Run one stage on --file once, print its time and memory, and stop; used for one measurement
    /// in a separate process
    #[arg(long, hide = true, value_enum, requires_all = ["file", "out"])]
    pub once: Option<BenchStage>,
    /// Folder for the output of --once
    #[arg(long, hide = true, value_name = "FOLDER", requires = "once")]
    pub out: Option<PathBuf>,
}

/// One stage of data preparation, which is measured separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchStage {
    /// Convert text to columns of integers
    Scan,
    /// Convert text to a prepared folder
    Convert,
    /// Convert the Parquet files of a prepared folder to another folder
    Parquet,
}

impl BenchStage {
    /// Returns the name of the stage on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::Convert => "convert",
            Self::Parquet => "parquet",
        }
    }
}

fn data_type(text: &str) -> Result<DataType, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

fn precision(text: &str) -> Result<Precision, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

fn optimizer(text: &str) -> Result<Optimizer, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

fn gemm_shape(text: &str) -> Result<GemmShape, String> {
    let sizes: Vec<usize> = text.split('x').filter_map(|size| at_least_one(size).ok()).collect();
    match sizes[..] {
        [m, k, n] if text.split('x').count() == 3 => Ok(GemmShape { m, k, n }),
        _ => Err("expected MxKxN, such as 2048x512x512".to_owned()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let seconds = if text == "0" { Some(0.0) } else { measured(text, &units) };
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "expected a time, such as 2ms, 50us or 0".to_owned())
}

fn bytes_per_second(text: &str) -> Result<f64, String> {
    let rate = measured(text, &[("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9)]);
    let rate = rate.filter(|rate| rate.is_finite() && *rate >= 1.0);
    rate.ok_or_else(|| "expected bytes per second, such as 1GB/s or 800MB/s".to_owned())
}

/// Parses a number that is followed by one of the units.
fn measured(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let parse =
        |(unit, size): &(&str, f64)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * size);
    units.iter().find_map(parse)
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "expected a number of at least 1".to_owned())
}

/// Options of `rowmill-bench trace`.
#[derive(Debug, Args)]
pub struct BenchTrace {
    /// The trace whose events are repeated [default: a generated one with typical events]
    pub path: Option<PathBuf>,
    /// Size of the text, in millions of bytes
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub megabytes: u64,
    /// Number of measurements of each kind, of which the median is reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub repeats: u64,
    /// Read this file once, print its time and memory, and stop; used for one measurement in a
    /// separate process
    #[arg(long, hide = true, value_name = "FILE")]
    pub once: Option<PathBuf>,
}

/// Options of `rowmill-bench predict`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill-bench predict traces/
  rowmill-bench predict traces/ --repeats 21 --format json
  rowmill-bench predict

Everything runs on one thread; figures are medians. Each has a bar, met or MISSED; three are shares
of the time to read the same traces:
  calibrate    from read traces to samples: sizes of tensors, who waits for whom, programs, samples
  build        from read traces to a priced program and its relaxed graph; relax is the last part
  edit         one kernel of the step takes half as long; only what follows is recomputed
  draws        1,000 steps with other samples
  findings     every finding with a saving, priced by the simulated step
Without traces, what a search over sharding plans computes:
  whole        a step of 1,000 tables on 128 ranks (16xh100x8), priced from its configuration
  move         the same step after a table has moved to another rank
  price        one kernel of each kind on a measured GPU, all of different sizes")]
pub struct BenchPredict {
    /// Traces of a job: files, archives, folders [default: none; moves of tables are measured
    /// instead]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Number of measurements of each kind
    #[arg(long, value_name = "N", default_value_t = 11)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
}

/// Options of `rowmill-bench published`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill-bench published traces/
  rowmill-bench published --kernels neusight/linear_*.csv.gz
  rowmill-bench published --kernels suite/     Table IV of arXiv:2201.07821 for the GPU of a suite

From traces of several ranks: each rank is predicted from the costs of the others, by the simulation
of rowmill with one T1 for all operators (one_mean) or with trimmed samples (trimmed), by the code
published with arXiv:2201.07821 (published_code), and by its Algorithm 1 (published).
From tables of latencies: trains the MLPs of arXiv:2201.07821 and prints their errors beside those of
rowmill's kernel models.")]
pub struct BenchPublished {
    /// Traces of a job: files, archives, folders; with --kernels, tables of latencies or a suite
    /// that bench/collect recorded on a GPU
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Evaluate published models of kernels instead of published simulations of steps
    #[arg(long)]
    pub kernels: bool,
    /// With --kernels: kernel models to use instead of the built-in ones
    #[arg(long, value_name = "FOLDER", requires = "kernels")]
    pub models: Option<PathBuf>,
    /// With --kernels: settings of the MLPs to try. `small` takes minutes to an hour; `whole` is
    /// Table II of the paper and takes weeks on a CPU
    #[arg(long, value_enum, default_value_t = MlpGrid::Small, requires = "kernels")]
    pub grid: MlpGrid,
}
