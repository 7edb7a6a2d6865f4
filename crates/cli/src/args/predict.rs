//! `rowmill predict …` as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use predict::mode::Mode;
use predict::prediction::Draws;

use setup::args::NeverRunStep;

use super::priced::PricedHost;
use super::{
    KernelEvaluation, PredictHardware, PredictKernels, PredictLearn, PredictSweep,
    PredictTrainKernels,
};

/// Predict the time of a training step from recorded traces.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rowmill predict evaluate traces/                      prediction errors on your own job
  rowmill predict calibrate traces/ -o host.json        what operators, launches and waits cost here
  rowmill predict step traces/ --calibration host.json  a step by these costs, with an interval
  rowmill predict step --execution-trace et/ --calibration host.json    a step that was never timed
  rowmill predict step --model dlrm-mlperf --hardware h100x8    any model on any GPU, no traces
  rowmill predict sweep                                 models x GPUs x batch sizes
  rowmill predict what-if traces/ --edits fused.toml    the step with an edit that nobody made yet
  rowmill predict resize b512/ b2048/ --sizes 512,2048 --to 1024
  rowmill predict model dlrm-mlperf --calibration host.json --batch-size 1024
  rowmill predict next traces/                          what to make faster next
  rowmill predict findings traces/                      what findings save, by simulation
  rowmill predict serve traces/                         edit a step in a browser of this machine
  rowmill predict overheads traces/ --svg t1-t5.svg     the host's overheads, by rank
  rowmill predict kernels --hardware a100 'linear 2048 1024 1024'

A trace becomes a program: the work of threads and streams and its dependencies, without times. Costs
come from samples. Simulating the program with its costs gives a trace again.")]
pub enum Predict {
    /// Collect the costs of a recording's host and devices
    Calibrate(PredictCalibrate),
    /// Predict a step: recorded, never timed, or of any model on any GPU
    Step(PredictStep),
    /// Predict steps of many models, GPUs and batch sizes
    Sweep(PredictSweep),
    /// Predict a step after edits
    WhatIf(PredictWhatIf),
    /// Predict a step at another batch size from recordings at two
    Resize(PredictResize),
    /// Predict the step of a configuration that was never run
    Model(PredictModel),
    /// Compare a predicted step with measured ones
    Compare(PredictCompare),
    /// Rank what to speed up next, by the gain of the step
    Next(PredictNext),
    /// Price findings by a simulated step
    Findings(PredictNext),
    /// Edit a recorded step in a browser of this machine
    Serve(PredictServe),
    /// Measure prediction errors
    Evaluate(PredictEvaluate),
    /// Print mean and deviation of the host's overheads T1 to T5
    Overheads(PredictOverheads),
    /// Print hardware data of GPUs, with sources
    Hardware(PredictHardware),
    /// Predict single kernels on a GPU, without a trace
    Kernels(PredictKernels),
    /// Learn kernel models from measured latencies
    TrainKernels(PredictTrainKernels),
    /// Learn the cost of operations: measure this CPU, or read a recorded suite
    Learn(PredictLearn),
}

/// How intervals are found.
#[derive(Clone, Copy, Debug, Args)]
pub struct Drawn {
    /// Number of draws for the interval
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub draws: u32,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl From<Drawn> for Draws {
    fn from(drawn: Drawn) -> Self {
        Self { count: drawn.draws, seed: drawn.seed }
    }
}

/// Which recorded step is priced, and by whose calibration.
#[derive(Clone, Copy, Debug, Args)]
pub struct Recorded {
    /// Allow a calibration of another host or devices
    #[arg(long)]
    pub force: bool,
    /// Index of the recorded step, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub step: usize,
}

/// Options of `rowmill predict calibrate`, which collects samples of costs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict calibrate traces/ --output host.json
  rowmill predict calibrate run-a/ --merge host.json --output shared.json
  rowmill predict calibrate traces/ --unrecorded 14200000 --output host.json

With --unrecorded, predictions are for steps without the profiler: its cost per event is estimated,
stored, and subtracted from host times. Without it, they are for recorded steps.
Every sample is kept, none trimmed. If all ranks were recorded, a collective takes the time of its
last rank: all others wait.")]
pub struct PredictCalibrate {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Add the samples to those of another calibration (repeatable)
    #[arg(long, value_name = "FILE")]
    pub merge: Vec<PathBuf>,
    /// Time of a step without the profiler: nanoseconds, or a file with one per line
    #[arg(long, value_name = "NS|FILE")]
    pub unrecorded: Option<String>,
    /// Also merge calibrations of other hosts or devices
    #[arg(long)]
    pub force: bool,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Options of `rowmill predict step`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict step traces/ --calibration host.json
  rowmill predict step traces/ --calibration host.json --step 3 --write-trace predicted
  rowmill predict step --model dlrm-mlperf --hardware h100x8 --batch-size 65536
  rowmill predict step --execution-trace et/ --calibration host.json
  rowmill predict step --model my.toml --hardware 4xa100x8 --plan plan.json --by rank
  rowmill predict step --model my.toml --hardware a100 --calibration host.json
  rowmill predict step --execution-trace et/ --hardware v100-sxm2

From a recording: ranks start when they did in it. `low` and `high` are the 5th and 95th percentile
of steps drawn with other samples and another host speed.
From --execution-trace, which has no times: operators call and launch what operators of the same
name and sizes did in the calibration; kernels wait for those that wrote their tensors. All ranks
start together. Operators missing from the calibration are named and count as unknown.
From --execution-trace with --hardware instead of a calibration: the kernels that names and tensors
of operators imply, priced by kernel models and formulas. Exchanges and host time are left out.
From --model, without a recording: the trainer's operations run as GPU kernels, one by one. Ranks
meet at every exchange. `low` and `high` add up the errors of the kernels.
`measured_pct` of the time is backed by measured kernels of that GPU, `outside_pct` is not. JSON adds
`domain` (what the rest is backed by) and `bytes_by_kind`. With --calibration, a step takes no less
than its launches on that host: its recorded host time divided by the kernels that it launched.")]
#[command(group = clap::ArgGroup::new("never_timed").args(["model", "execution_trace"]))]
pub struct PredictStep {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required_unless_present_any = ["model", "execution_trace"], value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Predict a step that was never timed: PyTorch execution traces instead of traces (repeatable)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["paths", "model", "force"])]
    pub execution_trace: Vec<PathBuf>,
    /// Costs: a file of `rowmill predict calibrate`; with --model, those of the host alone
    #[arg(long, value_name = "FILE", required_unless_present = "hardware")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub recorded: Recorded,
    #[command(flatten)]
    pub drawn: Drawn,
    /// How the step is simulated
    #[arg(long, value_enum, default_value_t = PlayedBy::Full, conflicts_with = "model")]
    pub mode: PlayedBy,
    /// Also write the predicted step as traces into this folder, one per rank
    #[arg(long, value_name = "FOLDER")]
    pub write_trace: Option<PathBuf>,
    /// Predict a step of this configuration instead: a TOML file, or a ready-made one
    #[arg(long, value_name = "CONFIG", requires = "hardware")]
    #[arg(conflicts_with_all = ["paths", "write_trace"])]
    pub model: Option<String>,
    /// With --model or --execution-trace: the device, as in h100, h100x8 or 4xh100x8 (hosts x
    /// device x devices per host), or a folder of `rowmill predict learn`
    #[arg(long, value_name = "DEVICE", requires = "never_timed")]
    pub hardware: Option<String>,
    #[command(flatten)]
    pub asked: NeverRunStep,
    #[command(flatten)]
    pub host: PricedHost,
    /// With --model: one row per …
    #[arg(long, value_enum, default_value_t = StepRows::Step, requires = "model")]
    pub by: StepRows,
}

/// How a step is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlayedBy {
    /// Threads, streams, waits and costs by sizes.
    Full,
    /// The code published with arXiv:2201.07821, for comparison: two streams, one T1, 4 us a call.
    Published,
    /// Algorithm 1 of arXiv:2201.07821, for comparison: no waits, one T1, calls of 10 us.
    Seed,
}

impl From<PlayedBy> for Mode {
    fn from(mode: PlayedBy) -> Self {
        match mode {
            PlayedBy::Full => Self::Full,
            PlayedBy::Published => Self::Published,
            PlayedBy::Seed => Self::Algorithm1,
        }
    }
}

/// What a row of a predicted step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StepRows {
    /// One row for the whole step
    Step,
    /// A stage, on its slowest rank.
    Stage,
    /// A rank, with its stages.
    Rank,
    /// An operation of the dense layers.
    Op,
    /// What memory is for, on the rank that takes most.
    Memory,
}

/// Predict an edited step.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict what-if traces/ --edits fused.toml
  rowmill predict what-if traces/ --edits fused.toml --edits graph.toml --calibration host.json
  rowmill predict what-if traces/ --edits fused.toml --measured after/

A file of edits, applied in order; `*` in a name matches any text:
  [[edit]]
  kind = \"fuse\"                      # runs of operators become one, with the work of all
  operators = \"aten::embedding_bag\"

  kind         with
  remove       operators                 with all they launch
  close-gap    before                    no time between operators before these
  insert       operator, after           once more, after each operator of the other name
  fuse         operators [factor]        factor of the kernels' summed time
  parallelise  operators, join           kernels on streams of their own, until join's kernels
  graph        from, to                  one launch for all between
  pin-copies                             no waiting for copies to the device
  scale        kernels, factor           kernels by their own names
  replace      operators, with           by copies of the first operator of another name
  reorder      operators, after          called after the nearest of another name
  thread       operators [join]          called by a thread of their own, until join
  drop-exchange  operators [occurrence]  a collective that no rank calls any more
  move-table   kernels, from, to, share  a share of lookups on another rank
  scale-ranks  to                        more ranks, or fewer, of the same work each

Both steps are predicted, with and without edits; kernels that slow each other down are not modelled.")]
pub struct PredictWhatIf {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// The edits to make, a TOML file (repeatable; each is predicted separately)
    #[arg(long, value_name = "FILE", required = true)]
    pub edits: Vec<PathBuf>,
    /// Costs: a calibration [default: the recording's own]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub recorded: Recorded,
    #[command(flatten)]
    pub drawn: Drawn,
    /// Traces recorded with the edits really made: prints the prediction error
    #[arg(long, value_name = "PATH")]
    pub measured: Vec<PathBuf>,
    /// Also write a page of the last prediction: timelines side by side, execution graph, errors
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
}

/// Compare prediction and measurement.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict model dlrm-default --calibration host.json --batch-size 1024 --write-trace said
  rowmill train dlrm-default --synthetic 100000 --set batch_size=1024 --trace made
  rowmill predict compare said --measured made

Prints the step of every rank, then device work by name, largest error first: the mean of
the predicted steps against the mean of the measured ones.")]
pub struct PredictCompare {
    /// Predicted traces, as --write-trace writes them
    #[arg(required = true, value_name = "PATH")]
    pub predicted: Vec<PathBuf>,
    /// Measured traces
    #[arg(long, required = true, value_name = "PATH")]
    pub measured: Vec<PathBuf>,
    /// Kinds of device work to print; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
}

/// Rank what decides a step.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict next traces/
  rowmill predict findings traces/ --format csv

next: gradient_ns is dT/dw, the gain of the slowest step if a name's work went to zero at the initial
rate; saving_ns is its real gain if that work took no time.
findings: those whose remedy can be simulated are priced by simulating one step, the others keep the
price of the recording; `source` says which.")]
pub struct PredictNext {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Costs: a calibration [default: the recording's own]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub recorded: Recorded,
    /// Rows to print, most important first; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
}

/// Edit a step in a browser.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict serve traces/
  rowmill predict serve traces/ --calibration host.json --port 8080

The page draws the recorded step above the predicted one, and the execution graph. Choose a node to
remove its operators, fuse them, resize their work, or move them to a stream or a thread; the step is
priced again. Only browsers on this machine that know the address are served.")]
pub struct PredictServe {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Costs: a calibration [default: the recording's own]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub recorded: Recorded,
    /// Loopback port [default: a free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
}

/// Options of `rowmill predict resize`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict resize b512/ b2048/ --sizes 512,2048 --to 1024
  rowmill predict resize b512/ b2048/ --sizes 512,2048 --to 1024 --to 4096 --measured b4096/

Both recordings must run the same work in the same order, with record_shapes. Tensor sizes that differ
follow a line through both; kernel times are scaled from the nearest sizes.")]
pub struct PredictResize {
    /// Traces of the first size
    #[arg(value_name = "SMALL")]
    pub small: PathBuf,
    /// Traces of the second size
    #[arg(value_name = "LARGE")]
    pub large: PathBuf,
    /// The sizes of the two, such as 512,2048
    #[arg(long, value_name = "N,N", value_parser = two_sizes)]
    pub sizes: (u64, u64),
    /// The size to predict (repeatable)
    #[arg(long, value_name = "N", required = true)]
    pub to: Vec<u64>,
    #[command(flatten)]
    pub drawn: Drawn,
    /// Traces recorded at the last size of --to: prints the prediction error
    #[arg(long, value_name = "PATH")]
    pub measured: Vec<PathBuf>,
}

/// Predict what was never run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill train dlrm-default --synthetic 100000 --trace run   record steps to calibrate on
  rowmill predict calibrate run --output host.json
  rowmill predict model dlrm-default --calibration host.json --batch-size 4096 --pooling 8
  rowmill predict model dlrm-default --calibration host.json --set optimizer.sparse.kind=adam

Predicts steps of rowmill's own trainer from the configuration alone. Kernels of unrecorded sizes
are scaled from the nearest ones by FLOPs and bytes, and count as modelled.
Ids follow [synthetic], else are uniform; calibrate on a single rank that uses all threads.")]
pub struct PredictModel {
    /// A TOML file, or the name of a ready-made configuration (rowmill train --list)
    #[arg(value_name = "CONFIG")]
    pub config: String,
    #[command(flatten)]
    pub step: NeverRunStep,
    /// Costs: a file of `rowmill predict calibrate`
    #[arg(long, value_name = "FILE")]
    pub calibration: PathBuf,
    #[command(flatten)]
    pub drawn: Drawn,
    /// Also write the predicted step as traces into this folder, one per rank
    #[arg(long, value_name = "FOLDER")]
    pub write_trace: Option<PathBuf>,
}

/// Options of `rowmill predict evaluate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict evaluate traces/
  rowmill predict evaluate traces/ --calibrate-ranks 2 --format json
  rowmill predict evaluate traces/ --execution et/
  rowmill predict evaluate --kernels neusight/*.csv.gz
  rowmill predict evaluate --kernels --leave-out neusight/*.csv.gz
  rowmill predict evaluate --kernels --published neusight/linear_*.csv.gz
  rowmill predict evaluate --kernels suite/    Table IV of arXiv:2201.07821 for the GPU of a suite

Tests, as far as the recording allows them:
  replay       one step: its own host segments and kernels; starts, waits and transfers from a few
               constants of the first ranks
  leave out    one step of several ranks: each priced by the costs of the others
  later steps  several steps: the first half predicts the mean of the rest
  launched     with --execution: device time of the step from execution traces alone, by kernel
               models, and by the kernels of one other rank (median and worst)
For comparison, the published methods are printed too: `published` and `seed`.")]
pub struct PredictEvaluate {
    /// Traces: files, archives, folders, or `-` for standard input; tables with --kernels
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Derive the constants of the replay from the first N ranks [default: half of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub calibrate_ranks: Option<u32>,
    /// PyTorch execution traces of the same ranks: prints the error of their device time
    #[arg(long, value_name = "PATH", conflicts_with = "kernels")]
    pub execution: Vec<PathBuf>,
    /// With --execution: the device [default: the recording's]
    #[arg(long, value_name = "DEVICE", requires = "execution")]
    pub hardware: Option<String>,
    #[command(flatten)]
    pub kernels: KernelEvaluation,
}

/// Options of `rowmill predict overheads`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict overheads traces/
  rowmill predict overheads model-a.json model-b.json --svg overheads.svg
  rowmill predict overheads traces/ --top 0 --format csv

T1 between operators, T2 before an operator's first launch, T3 after its last, T4 in a runtime call,
T5 between launches; host_only is an operator without calls. Overheads whose means differ between
ranks, or between sizes of an operator's tensors, by more than 3 standard errors are listed.")]
pub struct PredictOverheads {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Operators to print per kind, by total time
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Draw the mean and deviation of each kind
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl Predict {
    /// Whether it prints rows, which have more formats than a report.
    pub fn has_rows(&self) -> bool {
        matches!(
            self,
            Self::Step(_)
                | Self::Sweep(_)
                | Self::WhatIf(_)
                | Self::Resize(_)
                | Self::Model(_)
                | Self::Overheads(_)
                | Self::Next(_)
                | Self::Compare(_)
                | Self::Findings(_)
                | Self::Hardware(_)
                | Self::Kernels(_)
        )
    }
}

fn two_sizes(text: &str) -> Result<(u64, u64), String> {
    let number = |part: &str| part.trim().parse::<u64>().ok();
    let both = text.split_once(',').and_then(|(a, b)| Some((number(a)?, number(b)?)));
    both.ok_or_else(|| "expected two whole numbers such as 512,2048".to_owned())
}
