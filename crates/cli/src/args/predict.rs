//! Options of the commands `rowmill predict …`, as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use setup::args::NeverRunStep;

use super::priced::{PricedHost, PricedKernels};
use super::{KernelEvaluation, PredictKernels, PredictLearn, PredictSweep};

/// The verbs of `rowmill predict`.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rowmill predict evaluate traces/                      prediction errors on your own job
  rowmill predict calibrate traces/ -o host.json        what operators, launches and waits cost here
  rowmill predict step traces/ --calibration host.json  a step by these costs, with an interval
  rowmill predict step --execution-trace et/ --calibration host.json    a step that was never timed
  rowmill predict step --model dlrm-mlperf --calibration host.json      a step that was never run
  rowmill predict step --model dlrm-mlperf --hardware h100x8    any model on any GPU, no traces
  rowmill predict sweep                                 models x GPUs x batch sizes
  rowmill predict what-if traces/ --edits fused.toml    the step with an edit that nobody made yet
  rowmill predict resize b512/ b2048/ --sizes 512,2048 --to 1024
  rowmill predict next traces/                          what to make faster next
  rowmill predict next traces/ --by finding             what findings save, by simulation
  rowmill predict serve traces/                         edit a step in a browser of this machine
  rowmill predict calibrate traces/ --overheads         the host's overheads, by rank
  rowmill predict kernels --hardware a100 'linear 2048 1024 1024'

A trace becomes a program: the work of threads and streams and its dependencies, without times. Costs
come from samples. Simulating the program with its costs gives a trace again.")]
pub enum Predict {
    /// Collect the costs of a recording's host and devices, or print the host's overheads
    Calibrate(PredictCalibrate),
    /// Predict a step: a recorded one, one that was never timed, or one of any model on any GPU
    Step(PredictStep),
    /// Predict steps of many models, GPUs and batch sizes
    Sweep(PredictSweep),
    /// Predict a step after edits
    WhatIf(PredictWhatIf),
    /// Predict a step at another batch size from recordings at two batch sizes
    Resize(PredictResize),
    /// Rank operators and kernels to speed up next, or findings, by the gain of the step
    Next(PredictNext),
    /// Edit a recorded step in a browser of this machine
    Serve(PredictServe),
    /// Measure the errors of predictions on your recordings
    Evaluate(PredictEvaluate),
    /// Predict single kernels on a GPU without a trace, or list GPUs with their hardware data
    Kernels(PredictKernels),
    /// Learn from measurements: the operations of this CPU, a recorded suite, or kernel models
    Learn(PredictLearn),
    /// The former name of `step --model`
    #[command(hide = true, disable_help_flag = true)]
    Model(FormerWords),
    /// The former name of `evaluate --measured`
    #[command(hide = true, disable_help_flag = true)]
    Compare(FormerWords),
    /// The former name of `next --by finding`
    #[command(hide = true, disable_help_flag = true)]
    Findings(FormerWords),
    /// The former name of `calibrate --overheads`
    #[command(hide = true, disable_help_flag = true)]
    Overheads(FormerWords),
    /// The former name of `kernels --list-hardware`
    #[command(hide = true, disable_help_flag = true)]
    Hardware(FormerWords),
    /// The former name of `learn --kernels`
    #[command(hide = true, disable_help_flag = true)]
    TrainKernels(FormerWords),
}

/// All arguments of a command under its former name. The error of such a command names its present
/// name.
#[derive(Debug, Args)]
pub struct FormerWords {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// The random draws from which an interval is computed.
#[derive(Clone, Copy, Debug, Args)]
pub struct DrawOptions {
    /// Number of random draws for the interval
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub draws: u32,
    /// Seed of the random draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Selects the recorded step to predict, and whether a calibration of another machine may be used.
#[derive(Clone, Copy, Debug, Args)]
pub struct StepSelection {
    /// Allow a calibration of another host or of other devices
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
  rowmill predict calibrate traces/ --overheads
  rowmill predict calibrate model-a.json model-b.json --overheads --svg overheads.svg

With --unrecorded, predictions are for steps without the profiler: its cost per event is estimated,
stored, and subtracted from host times. Without it, they are for recorded steps.
Every sample is kept, none trimmed. If all ranks were recorded, a collective takes the time of its
last rank: all others wait.

--overheads prints a table instead: T1 between operators, T2 before an operator's first launch, T3
after its last, T4 in a runtime call, T5 between launches; host_only is an operator without calls.
Every PATH is a workload of its own. Overheads whose means differ between ranks, or between sizes of
an operator's tensors, by more than 3 standard errors are listed.")]
pub struct PredictCalibrate {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Add the samples to those of another calibration (repeatable)
    #[arg(long, value_name = "FILE")]
    pub merge: Vec<PathBuf>,
    /// Time of a step without the profiler: nanoseconds, or a file with a time per line
    #[arg(long, value_name = "NS|FILE")]
    pub unrecorded: Option<String>,
    /// Also merge calibrations of other hosts or other devices
    #[arg(long)]
    pub force: bool,
    /// Print mean and deviation of the host's overheads T1 to T5 instead of writing a calibration
    #[arg(long, conflicts_with_all = ["merge", "unrecorded", "force", "host_only"])]
    pub overheads: bool,
    /// Write only the overheads of the host, as `predict step --overheads` takes them: without
    /// sizes and kernels, and without initialization and waits for data
    #[arg(long)]
    pub host_only: bool,
    /// With --overheads: number of operators to print per kind, by total time
    #[arg(long, value_name = "N", default_value_t = 10, requires = "overheads")]
    pub top: usize,
    /// With --overheads: draw the mean and deviation of each kind
    #[arg(long, value_name = "FILE", requires = "overheads")]
    pub svg: Option<PathBuf>,
    /// The calibration to write, required without --overheads; with it, the table to write
    /// [default: stdout]
    #[arg(short, long, value_name = "FILE", required_unless_present = "overheads")]
    pub output: Option<PathBuf>,
}

/// Options of `rowmill predict step`, which predicts the time of one training step.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict step traces/ --calibration host.json
  rowmill predict step traces/ --calibration host.json --step 3 --write-trace predicted
  rowmill predict step --model dlrm-mlperf --hardware h100x8 --batch-size 65536
  rowmill predict step --model dlrm-dcnv2 --hardware 16xdgx-h100 --precision bf16
  rowmill predict step --execution-trace et/ --calibration host.json
  rowmill predict step --model my.toml --hardware 4xa100x8 --plan plan.json --by rank
  rowmill predict step --model my.toml --hardware a100 --calibration host.json
  rowmill predict step --execution-trace et/ --hardware v100-sxm2x8
  rowmill predict step --execution-trace et/ --hardware h100 --overheads a100-dlrm
  rowmill predict step --overheads list
  rowmill predict step --model dlrm-default --calibration host.json --batch-size 4096 --pooling 8

`busy` is the time in which any work runs on the device, `idle` the share without between its first
and its last work.
From a recording: ranks start when they did in it. `low` and `high` are the 5th and 95th percentile
of steps drawn with other samples and another host speed.
From --execution-trace, which has no times: operators call and launch what operators of the same
name and sizes did in the calibration; kernels wait for those that wrote their tensors. All ranks
start together. Operators missing from the calibration are named and count as unknown.
From --execution-trace with --hardware: the kernels that names and tensors of operators imply, priced
by kernel models and formulas. A trace recorded on a CPU works, as if its tensors were on the GPU.
The host's times come from --calibration, else from --overheads, else from the shipped overheads of
the nearest GPU (--overheads list prints them). `host` is the step if kernels took no time, `device`
if the host took none, `binds` the longer of the two, and `kernel only` the sum of all kernels.
From --model with --hardware, without a recording: the trainer's operations run as GPU kernels, one
by one. Ranks meet at every exchange. `low` and `high` add up the errors of the kernels.
`measured_pct` of the time is backed by measured kernels of that GPU, `outside_pct` is not. JSON adds
`domain` (what the rest is backed by) and `bytes_by_kind`. A step takes no less than the host's time
for PyTorch's operators, from --calibration, --overheads or the shipped overheads of the nearest GPU.
From --model with --calibration alone: a step of rowmill's own trainer on the calibrated host.
Kernels of unrecorded sizes are scaled from the nearest ones by FLOPs and bytes, and count as
modeled. Ids follow [synthetic], else are uniform; calibrate on a single rank that uses all threads
(rowmill train --trace records steps).")]
#[command(group = clap::ArgGroup::new("never_timed").args(["model", "execution_trace"]))]
#[command(group = clap::ArgGroup::new("costs").args(["calibration", "hardware", "overheads"])
    .required(true).multiple(true))]
pub struct PredictStep {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required_unless_present_any = ["model", "execution_trace", "overheads"])]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Predict a step that was never timed: read PyTorch execution traces instead of traces
    /// (repeatable)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["paths", "model", "force"])]
    pub execution_trace: Vec<PathBuf>,
    /// A file of `rowmill predict calibrate`, from which costs are taken; with --hardware, only the
    /// costs of the host
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// With --hardware: the host's overheads, by the name of shipped ones or a file of `rowmill
    /// predict calibrate`; `list` prints the shipped ones [default: of the nearest GPU]
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "calibration")]
    pub overheads: Option<String>,
    #[command(flatten)]
    pub selection: StepSelection,
    #[command(flatten)]
    pub draws: DrawOptions,
    /// Also write the predicted step as traces into this folder, one per rank
    #[arg(long, value_name = "FOLDER")]
    pub write_trace: Option<PathBuf>,
    /// Predict a step of this configuration instead of a recorded step: a TOML file, or a
    /// ready-made configuration (see rowmill train --list)
    #[arg(long, value_name = "CONFIG", conflicts_with = "paths")]
    pub model: Option<String>,
    /// With --model or --execution-trace: the device, as in h100, h100x8 or 4xh100x8 (hosts x
    /// device x devices per host); a ready-made host (dgx-1, dgx-2, zionex, dgx-a100, dgx-h100); a
    /// TOML file with a topology; or a folder of `rowmill predict learn`
    #[arg(long, value_name = "DEVICE", requires = "never_timed")]
    pub hardware: Option<String>,
    #[command(flatten)]
    pub workload: NeverRunStep,
    #[command(flatten)]
    pub host: PricedHost,
    #[command(flatten)]
    pub kernels: PricedKernels,
    /// With --model and --hardware: what each row describes
    #[arg(long, value_enum, default_value_t = StepRows::Step, requires = "model")]
    pub by: StepRows,
}

/// The subject of a row of a predicted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StepRows {
    /// One row for the whole step
    Step,
    /// One row per stage, on its slowest rank
    Stage,
    /// One row per rank, with its stages
    Rank,
    /// One row per operation of the dense layers
    Op,
    /// One row per purpose of memory, on the rank that needs the most
    Memory,
}

/// Options of `rowmill predict what-if`, which predicts a recorded step after edits.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict what-if traces/ --edits fused.toml
  rowmill predict what-if traces/ --edits fused.toml --edits graph.toml --calibration host.json
  rowmill predict what-if traces/ --edits fused.toml --measured after/
  rowmill predict what-if --execution-trace et/ --hardware h100 --edits fused.toml

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
  scale-host   operators, factor         host time of operators, whose kernels stay
  replace      operators, with           by copies of the first operator of another name
  reorder      operators, after          called after the nearest of another name
  thread       operators [join]          called by a thread of their own, until join
  drop-exchange  operators [occurrence]  a collective that no rank calls any more
  move-table   kernels, from, to, share  a share of lookups on another rank
  scale-ranks  to                        more ranks, or fewer, of the same work each
  resize       from, to                  another batch size, of execution traces

With --execution-trace, remove, fuse, replace, resize and parallelise change operators and tensors
before all other edits. Dependencies follow the tensors, so that fuse needs no factor and
parallelise no join, and kernel models price the changed operators.
Both steps are predicted, with and without edits; kernels that slow each other down are not modeled.")]
pub struct PredictWhatIf {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required_unless_present = "execution_trace", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Edit a step that was never timed: PyTorch execution traces instead of traces (repeatable)
    #[arg(long, value_name = "PATH", requires = "hardware")]
    #[arg(conflicts_with_all = ["paths", "force", "page"])]
    pub execution_trace: Vec<PathBuf>,
    /// With --execution-trace: the device, as of `rowmill predict step`
    #[arg(long, value_name = "DEVICE", requires = "execution_trace")]
    pub hardware: Option<String>,
    /// With --execution-trace: the host's overheads, as of `rowmill predict step`
    #[arg(long, value_name = "NAME|FILE", requires = "execution_trace")]
    #[arg(conflicts_with = "calibration")]
    pub overheads: Option<String>,
    /// A TOML file with edits (repeatable; each file is predicted separately)
    #[arg(long, value_name = "FILE", required = true)]
    pub edits: Vec<PathBuf>,
    /// A calibration, from which costs are taken [default: the costs of the recording]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub selection: StepSelection,
    #[command(flatten)]
    pub draws: DrawOptions,
    /// Traces recorded after the edits were really made; prints the prediction error
    #[arg(long, value_name = "PATH")]
    pub measured: Vec<PathBuf>,
    /// Also write a page about the last prediction: timelines side by side, execution graph, errors
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
}

/// Options of `rowmill predict next`, which ranks what to speed up next.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict next traces/
  rowmill predict next traces/ --by finding --format csv

By operation: gradient_ns is dT/dw, the gain of the slowest step if a name's work went to zero at
the initial rate; saving_ns is its real gain if that work took no time.
By finding: findings whose remedy can be simulated are priced by simulating one step, the others keep
the price of the recording; `source` says which.")]
pub struct PredictNext {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// What each row describes
    #[arg(long, value_enum, default_value_t = NextRows::Operation)]
    pub by: NextRows,
    /// A calibration, from which costs are taken [default: the costs of the recording]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub selection: StepSelection,
    /// Rows to print, most important first; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
}

/// The subject that `rowmill predict next` ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NextRows {
    /// One row per operator, kernel or transfer, by name
    Operation,
    /// One row per finding of `rowmill trace findings`
    Finding,
}

/// Options of `rowmill predict serve`, which serves a page to edit a recorded step.
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
    /// A calibration, from which costs are taken [default: the costs of the recording]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub selection: StepSelection,
    /// Port on the loopback address [default: a free port]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
}

/// Options of `rowmill predict resize`, which predicts a step at another batch size.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict resize b512/ b2048/ --sizes 512,2048 --to 1024
  rowmill predict resize b512/ b2048/ --sizes 512,2048 --to 1024 --to 4096 --measured b4096/

Both recordings must run the same work in the same order, with record_shapes. The time of
each operator and kernel lies on a line through its two recorded times, over the work that its tensor
sizes imply. A recorded size is predicted as it was recorded.")]
pub struct PredictResize {
    /// Traces recorded at the first batch size
    #[arg(value_name = "SMALL")]
    pub small: PathBuf,
    /// Traces recorded at the second batch size
    #[arg(value_name = "LARGE")]
    pub large: PathBuf,
    /// The batch sizes of the two recordings, such as 512,2048
    #[arg(long, value_name = "N,N", value_parser = two_sizes)]
    pub sizes: (u64, u64),
    /// The batch size to predict (repeatable)
    #[arg(long, value_name = "N", required = true)]
    pub to: Vec<u64>,
    #[command(flatten)]
    pub draws: DrawOptions,
    /// Traces recorded at the last batch size of --to; prints the prediction error
    #[arg(long, value_name = "PATH")]
    pub measured: Vec<PathBuf>,
}

/// Options of `rowmill predict evaluate`, which measures prediction errors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict evaluate traces/
  rowmill predict evaluate traces/ --calibrate-ranks 2 --format json
  rowmill predict evaluate traces/ --execution et/
  rowmill predict evaluate predicted/ --measured recorded/
  rowmill predict evaluate --kernels neusight/*.csv.gz
  rowmill predict evaluate --kernels --leave-out neusight/*.csv.gz
  rowmill predict evaluate --published
  rowmill predict evaluate --tables suite/ --svg errors.svg

Tests, as far as the recording allows them:
  replay       one step: its own host segments and kernels; starts, waits and transfers from a few
               constants of the first ranks
  leave out    one step of several ranks: each priced by the costs of the others
  later steps  several steps: the first half predicts the mean of the rest
  launched     with --execution: device time of the step from execution traces alone, by kernel
               models, and by the kernels of one other rank (median and worst)
  on a device  with --execution: the step from execution traces with kernels by models, and the
               host of each rank's own calibration and of each of the shipped overheads
With --measured, a table instead: the step of every rank, then device work by name, largest error
first; the mean of the predicted steps against the mean of the measured ones.
With --published: steps that vendors published, on single GPUs, hosts and a cluster, predicted from
models, plans and kernels alone. No constant is fitted to them.
With --tables: Table V and Figures 9 and 10 of arXiv:2201.07821 over recorded suites. A job is a
folder with a timeline (*kineto*), its execution trace (execution.* or *_et.*) and, if measured, the
time of steps without the profiler (times.json of bench/collect).")]
pub struct PredictEvaluate {
    /// Traces: files, archives, folders, or `-` for standard input. With --kernels, tables of
    /// latencies; with --measured, predicted traces (predict step --write-trace)
    #[arg(required_unless_present = "published", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Predict training steps whose times vendors published, and print the errors
    #[arg(long, conflicts_with_all = ["paths", "calibrate_ranks", "execution", "measured"])]
    #[arg(conflicts_with = "kernels")]
    pub published: bool,
    /// Predict the steps of recorded suites, and print the errors beside those of baselines; the
    /// paths are folders
    #[arg(long, conflicts_with_all = ["published", "calibrate_ranks", "execution", "measured"])]
    #[arg(conflicts_with = "kernels")]
    pub tables: bool,
    /// With --tables: draw the errors of every job
    #[arg(long, value_name = "FILE", requires = "tables")]
    pub svg: Option<PathBuf>,
    /// Derive the constants of the replay from the first N ranks [default: half of the ranks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub calibrate_ranks: Option<u32>,
    /// PyTorch execution traces of the same ranks; prints the error of their device time
    #[arg(long, value_name = "PATH", conflicts_with = "kernels")]
    pub execution: Vec<PathBuf>,
    /// With --execution: the device [default: the device of the recording]
    #[arg(long, value_name = "DEVICE", requires = "execution")]
    pub hardware: Option<String>,
    /// Measured traces to compare with; the paths are predicted traces (repeatable)
    #[arg(long, value_name = "PATH")]
    #[arg(conflicts_with_all = ["calibrate_ranks", "execution", "kernels"])]
    pub measured: Vec<PathBuf>,
    /// With --measured: number of kinds of device work to print; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20, requires = "measured")]
    pub top: usize,
    #[command(flatten)]
    pub kernels: KernelEvaluation,
}

impl Predict {
    /// Whether the command prints rows, which have more output formats than a report.
    pub fn has_rows(&self) -> bool {
        match self {
            Self::Calibrate(args) => args.overheads,
            Self::Evaluate(args) => !args.measured.is_empty(),
            Self::Serve(_) | Self::Learn(_) => false,
            _ => true,
        }
    }
}

fn two_sizes(text: &str) -> Result<(u64, u64), String> {
    let number = |part: &str| part.trim().parse::<u64>().ok();
    let both = text.split_once(',').and_then(|(a, b)| Some((number(a)?, number(b)?)));
    both.ok_or_else(|| "expected two whole numbers such as 512,2048".to_owned())
}
