//! `rowmill predict …` as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use predict::mode::Mode;
use predict::prediction::Draws;

use super::{
    KernelEvaluation, PredictHardware, PredictKernels, PredictLearn, PredictTrainKernels, Sharding,
};

/// Predict the time of a training step from recorded traces.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  rowmill predict evaluate traces/                      how far predictions are off, on your own job
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

A trace becomes a program: what threads and streams do and who waits for whom, without times. Costs
come from samples. The program with its costs is simulated, and the result is a trace again.")]
pub enum Predict {
    /// Collect what everything costs on the host and devices of a recording
    Calibrate(PredictCalibrate),
    /// Predict a step: recorded, never timed, or of any model on any GPU
    Step(PredictStep),
    /// Predict steps of many models, GPUs and batch sizes
    Sweep(PredictSweep),
    /// Predict a step that is written otherwise
    WhatIf(PredictWhatIf),
    /// Predict a step at another batch size from recordings at two
    Resize(PredictResize),
    /// Predict the step of a configuration that was never run
    Model(PredictModel),
    /// Compare a predicted step with measured ones
    Compare(PredictCompare),
    /// Rank what to make faster next by what the step gains
    Next(PredictNext),
    /// Price findings by a simulated step
    Findings(PredictNext),
    /// Edit a recorded step in a browser of this machine
    Serve(PredictServe),
    /// Measure how far predictions are off
    Evaluate(PredictEvaluate),
    /// Print mean and deviation of the host's overheads T1 to T5
    Overheads(PredictOverheads),
    /// Print what is known of GPUs, with sources
    Hardware(PredictHardware),
    /// Predict single kernels on a GPU, without a trace
    Kernels(PredictKernels),
    /// Learn kernel models from measured latencies
    TrainKernels(PredictTrainKernels),
    /// Learn what operations take on a device: measure this CPU, or read a recorded suite
    Learn(PredictLearn),
}

/// How intervals are found.
#[derive(Clone, Copy, Debug, Args)]
pub struct Drawn {
    /// How often a step is drawn for its interval
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
    /// Use a calibration of another host or other devices
    #[arg(long)]
    pub force: bool,
    /// Which of the recorded steps, from 0 on
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub step: usize,
}

/// Collect samples.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict calibrate traces/ --output host.json
  rowmill predict calibrate run-a/ --merge host.json --output shared.json
  rowmill predict calibrate traces/ --unrecorded 14200000 --output host.json

With --unrecorded predictions are of steps that nobody records: what the profiler takes for each event
is found, kept, and left out of the host's times. Without it they are of recorded steps.
Every sample is kept, none trimmed. Of several ranks that were all recorded, the time that a
collective takes is that of its last rank: all others wait.")]
pub struct PredictCalibrate {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Add the samples to those of another calibration (repeatable)
    #[arg(long, value_name = "FILE")]
    pub merge: Vec<PathBuf>,
    /// How long a step takes without the profiler: nanoseconds, or a file of them, one a line
    #[arg(long, value_name = "NS|FILE")]
    pub unrecorded: Option<String>,
    /// Merge calibrations of other hosts or devices too
    #[arg(long)]
    pub force: bool,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Predict a step.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict step traces/ --calibration host.json
  rowmill predict step traces/ --calibration host.json --step 3 --write-trace predicted
  rowmill predict step --model dlrm-mlperf --hardware h100x8 --batch-size 65536
  rowmill predict step --execution-trace et/ --calibration host.json
  rowmill predict step --model my.toml --hardware 4xa100x8 --plan plan.json --by rank

Of a recording: when ranks start their step is taken from it. `low` and `high` are the 5th and the
95th percentile of steps with other samples and another speed of the host.
Of --execution-trace, which PyTorch writes without times: operators call and launch what those of
their names and sizes did in the calibration; kernels wait for those that wrote their tensors. All
ranks start together. Operators that the calibration never saw are named and count as unknown.
Of --model, without a recording: the trainer's operations as kernels of a GPU, one after the other.
Ranks meet at every exchange. `low` and `high` add up what each kernel may be off by.
`measured_pct` of the time rests on measured kernels of that GPU, `outside_pct` does not.")]
pub struct PredictStep {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required_unless_present_any = ["model", "execution_trace"], value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Predict a step that was never timed: PyTorch execution traces instead of traces (repeatable)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["paths", "model", "force"])]
    pub execution_trace: Vec<PathBuf>,
    /// What everything costs: a file of `rowmill predict calibrate`
    #[arg(long, value_name = "FILE", required_unless_present = "model")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub recorded: Recorded,
    #[command(flatten)]
    pub drawn: Drawn,
    /// How the step is played
    #[arg(long, value_enum, default_value_t = PlayedBy::Full, conflicts_with = "model")]
    pub mode: PlayedBy,
    /// Also write the predicted step as traces into this folder, one per rank
    #[arg(long, value_name = "FOLDER")]
    pub write_trace: Option<PathBuf>,
    /// Predict a step of this configuration instead: a TOML file, or a ready-made one
    #[arg(long, value_name = "CONFIG", requires = "hardware")]
    #[arg(conflicts_with_all = ["paths", "calibration", "write_trace"])]
    pub model: Option<String>,
    /// With --model: the device, as in h100, h100x8 or 4xh100x8 (hosts x device x devices a host)
    #[arg(long, value_name = "DEVICE", requires = "model")]
    pub hardware: Option<String>,
    #[command(flatten)]
    pub asked: NeverRunStep,
    #[command(flatten)]
    pub host: PricedHost,
    /// With --model: what a row is
    #[arg(long, value_enum, default_value_t = StepRows::Step, requires = "model")]
    pub by: StepRows,
}

/// How a step is played.
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
            PlayedBy::Seed => Self::Seed,
        }
    }
}

/// What prices kernels and launches.
#[derive(Debug, Args)]
pub struct PricedHost {
    /// Without a recording: microseconds of the host for each launch; a step takes no less
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = microseconds)]
    pub launch_us: f64,
    /// Without a recording: kernel models to use instead of those that come with rowmill
    #[arg(long, value_name = "FOLDER")]
    pub models: Option<PathBuf>,
}

/// What a row of a predicted step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StepRows {
    /// The whole step.
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

/// Predict steps of many models, devices and batch sizes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict sweep
  rowmill predict sweep --model my.toml --hardware a100,h100x8 --batch-size 2048,8192 --pooling 1,20
  rowmill predict sweep --format csv --output sweep.csv

Without arguments: the models of arXiv:2201.07821, its devices and later ones. `is_best` marks steps
that fit and that no other step of the model beats in both samples per second and memory.")]
pub struct PredictSweep {
    /// Configurations: TOML files, or ready-made ones
    #[arg(long, value_name = "CONFIG", value_delimiter = ',')]
    #[arg(default_values = ["dlrm-default", "dlrm-mlperf", "dlrm-ddp"])]
    pub model: Vec<String>,
    /// Devices, as `predict step` takes them
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    #[arg(default_values = ["v100", "titan-xp", "p100", "t4", "a100", "h100"])]
    pub hardware: Vec<String>,
    /// Samples of a step, of all ranks
    #[arg(long, value_name = "B", value_delimiter = ',')]
    #[arg(default_values_t = [512, 1024, 2048, 4096])]
    pub batch_size: Vec<usize>,
    /// Ids of every bag
    #[arg(long, value_name = "L", value_delimiter = ',', default_values_t = [1])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pooling: Vec<u32>,
    /// Change a key of every configuration
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::key_value)]
    pub set: Vec<(String, String)>,
    /// How tables are split over ranks
    #[arg(long, value_enum, default_value_t = Sharding::Table)]
    pub sharding: Sharding,
    #[command(flatten)]
    pub host: PricedHost,
    /// Write here instead of to stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Predict an edited step.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict what-if traces/ --edits fused.toml
  rowmill predict what-if traces/ --edits fused.toml --edits graph.toml --calibration host.json
  rowmill predict what-if traces/ --edits fused.toml --measured after/

A file of edits, made in their order; `*` in a name stands for any text:
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
    /// The edits to make, a TOML file (repeatable: each file is predicted by itself)
    #[arg(long, value_name = "FILE", required = true)]
    pub edits: Vec<PathBuf>,
    /// What everything costs [default: as in the recording itself]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub recorded: Recorded,
    #[command(flatten)]
    pub drawn: Drawn,
    /// Traces recorded after the edits were really made: prints how far off the prediction was
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
  rowmill bench train --config dlrm-default --batch-size 1024 --trace made
  rowmill predict compare said --measured made

Steps of every rank first, then device work by name, what is off the most by itself first: a mean of
the predicted steps against a mean of the measured ones.")]
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

next: gradient_ns is dT/dw, what the slowest step would gain at the rate at which it shrinks at first
with all of a name; saving_ns what it would gain if all of them took no time.
findings: those whose remedy a program knows are priced by a simulation of one step, the others keep
the price of the recording; `source` says which.")]
pub struct PredictNext {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// What everything costs [default: as in the recording itself]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    #[command(flatten)]
    pub recorded: Recorded,
    /// Rows to print, the most telling first; 0 for all
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
priced again. Only this machine is answered, and only who knows the address.")]
pub struct PredictServe {
    #[command(flatten)]
    pub of: PredictNext,
    /// Port on the loopback [default: a free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
}

/// Predict another size.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict resize b512/ b2048/ --sizes 512,2048 --to 1024
  rowmill predict resize b512/ b2048/ --sizes 512,2048 --to 1024 --to 4096 --measured b4096/

Both recordings must do the same in the same order, with record_shapes. Sizes of tensors that differ
between them lie on a line; kernels take what those of the nearest sizes took, scaled.")]
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
    /// Traces recorded at the last size of --to: prints how far off its prediction was
    #[arg(long, value_name = "PATH")]
    pub measured: Vec<PathBuf>,
}

/// Predict what was never run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill bench train --config dlrm-default --trace run   record steps to calibrate on
  rowmill predict calibrate run --output host.json
  rowmill predict model dlrm-default --calibration host.json --batch-size 4096 --pooling 8
  rowmill predict model dlrm-default --calibration host.json --set optimizer.sparse.kind=adam

The steps of rowmill's own trainer, written down from the configuration alone. Kernels of sizes that
nobody recorded take what the nearest ones took, scaled by FLOPs and bytes, and count as modelled.
Ids follow [synthetic], or are used alike; the calibration is one of a single rank on all threads.")]
pub struct PredictModel {
    /// A TOML file, or the name of a ready-made configuration (rowmill train --list)
    #[arg(value_name = "CONFIG")]
    pub config: String,
    #[command(flatten)]
    pub step: NeverRunStep,
    /// What everything costs: a file of `rowmill predict calibrate`
    #[arg(long, value_name = "FILE")]
    pub calibration: PathBuf,
    #[command(flatten)]
    pub drawn: Drawn,
    /// Also write the predicted step as traces into this folder, one per rank
    #[arg(long, value_name = "FOLDER")]
    pub write_trace: Option<PathBuf>,
}

/// What of a step does not follow from the configuration.
#[derive(Debug, Args)]
pub struct NeverRunStep {
    /// Change a key of the configuration, such as optimizer.dense.kind=adagrad
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = super::key_value)]
    pub set: Vec<(String, String)>,
    /// Samples of a step, of all ranks [default: the configuration's]
    #[arg(long, value_name = "B")]
    pub batch_size: Option<usize>,
    /// Ids of every bag
    #[arg(long, value_name = "L", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pooling: u32,
    /// Ranks, which share the samples [default: 1, or those of the hardware]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ranks: Option<u32>,
    /// How tables are split over ranks
    #[arg(long, value_enum, default_value_t = Sharding::Table)]
    pub sharding: Sharding,
    /// A sharding plan, as rowmill train takes it
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["sharding", "ranks"])]
    pub plan: Option<PathBuf>,
}

impl NeverRunStep {
    /// Whether anything was asked for.
    pub fn is_asked(&self) -> bool {
        let is_sized = self.batch_size.is_some() || self.ranks.is_some() || self.pooling != 1;
        let is_split = self.plan.is_some() || self.sharding != Sharding::Table;
        is_sized || is_split || !self.set.is_empty()
    }
}

/// Measure errors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict evaluate traces/
  rowmill predict evaluate traces/ --calibrate-ranks 2 --format json
  rowmill predict evaluate traces/ --execution et/
  rowmill predict evaluate --kernels neusight/*.csv.gz
  rowmill predict evaluate --kernels --leave-out neusight/*.csv.gz

Tests, as far as the recording allows them:
  replay       one step: own host segments and kernels, but all that starts, waits or transfers from
               a few constants of the first ranks
  leave out    one step of several ranks: each rank by what the others cost
  later steps  several steps: the first half predicts the mean of the rest
  launched     with --execution: device time of the step from execution traces alone, by kernel
               models, and by what one other rank launched (median and worst of those)
Beside the predictions stand those of the published ways to predict: `published` and `seed`.")]
pub struct PredictEvaluate {
    /// Traces: files, archives, folders, or `-` for standard input; tables with --kernels
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Derive the constants of the replay from the first N ranks [default: half of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub calibrate_ranks: Option<u32>,
    /// PyTorch execution traces of the same ranks: how far off the device time is that they launch
    #[arg(long, value_name = "PATH", conflicts_with = "kernels")]
    pub execution: Vec<PathBuf>,
    /// With --execution: the device [default: the recording's]
    #[arg(long, value_name = "DEVICE", requires = "execution")]
    pub hardware: Option<String>,
    #[command(flatten)]
    pub kernels: KernelEvaluation,
}

/// Print overheads.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill predict overheads traces/
  rowmill predict overheads model-a.json model-b.json --svg overheads.svg
  rowmill predict overheads traces/ --top 0 --format csv

T1 between operators, T2 before an operator's first launch, T3 after its last, T4 in a runtime call,
T5 between launches; host_only is an operator without calls. Overheads whose means differ between
ranks, or between sizes of an operator's tensors, by more than 3 standard errors are named.")]
pub struct PredictOverheads {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Operators of each kind, by total time
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Draw mean and deviation of every kind
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write here instead of to stdout
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

fn microseconds(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok();
    let value = value.filter(|value| (0.0..=1e6).contains(value));
    value.ok_or_else(|| "expected microseconds from 0 to 1000000".to_owned())
}

fn two_sizes(text: &str) -> Result<(u64, u64), String> {
    let number = |part: &str| part.trim().parse::<u64>().ok();
    let both = text.split_once(',').and_then(|(a, b)| Some((number(a)?, number(b)?)));
    both.ok_or_else(|| "expected two whole numbers such as 512,2048".to_owned())
}
