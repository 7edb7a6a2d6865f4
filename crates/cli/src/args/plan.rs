//! Options of `rowmill plan`, which searches for sharding plans.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use setup::args::{NeverRunStep, key_value, rank_count};

use super::priced::{PricedHost, PricedKernels};

/// Options of `rowmill plan`, which searches for the sharding plan with the fastest predicted step.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  rowmill plan --model dlrm-dcnv2 --hardware 16xh100x8 --output plan.json
  rowmill plan --model job.toml --hardware a100x8 --explain user --svg plan.svg
  rowmill plan --model job.toml --hardware cluster.toml --torchrec plan-torchrec.json
  rowmill train job.toml --plan plan.json

The search starts from the plans of greedy rules and improves the predicted step: it moves, swaps,
splits, merges and replicates tables. Memory is a hard limit. The table has one row per rank, whose
busy and wait add up to the step; a plan is written with --output. A step takes no less than the
host's time for PyTorch's operators, by the shipped overheads of the nearest GPU or --launch-us.
[plan] in the configuration constrains layouts, pins tables and reserves memory; see rowmill explain
config plan. The same --seed and --effort give the same plan."
)]
pub struct PlanArgs {
    #[command(subcommand)]
    pub verb: Option<PlanVerb>,
    #[command(flatten)]
    pub search: PlanSearch,
}

/// The verbs of `rowmill plan` besides the search itself.
#[derive(Debug, Subcommand)]
pub enum PlanVerb {
    /// Compare the predicted stages of a run with the measured ones, and suggest a better plan
    Check(PlanCheckArgs),
    /// Convert a plan to the form of TorchRec's planner, or back
    Convert(PlanConvert),
    /// Simulate a step with the launches of the host, with and without techniques
    Simulate(PlanSimulate),
}

/// Options of the search for a plan.
#[derive(Debug, Args)]
pub struct PlanSearch {
    /// The configuration whose tables are placed: a TOML file, or a ready-made configuration
    #[arg(long, value_name = "CONFIG", required = true)]
    pub model: Option<String>,
    /// The devices, as in h100x8 or 16xh100x8 (hosts x device x devices per host); a ready-made
    /// host; or a TOML file with a topology
    #[arg(long, value_name = "DEVICE", required = true)]
    pub hardware: Option<String>,
    /// Change a key of the configuration, such as training.batch_size=4096
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// Samples per step, over all ranks [default: the configuration's]
    #[arg(long, value_name = "B")]
    pub batch_size: Option<usize>,
    /// Number of ids per bag of features without a size in [synthetic] [default: 1]
    #[arg(long, value_name = "L")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pooling: Option<u32>,
    /// Measured statistics of the features, which replace [synthetic]; rowmill data stats
    /// --feature-stats writes them [default: plan.stats of the configuration]
    #[arg(long, value_name = "FILE.json")]
    pub stats: Option<String>,
    /// The cost that the search minimizes; plans are always shown with their predicted step
    #[arg(long, value_enum, default_value_t = CostChoice::CriticalPath)]
    pub cost: CostChoice,
    /// Number of plans that the search prices, besides those from which it starts [default: by the
    /// number of tables]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub effort: Option<u64>,
    /// Seed of the restarts of the search
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Explain why a table lies where it lies, and what its next best layouts would cost
    /// (repeatable)
    #[arg(long, value_name = "TABLE", conflicts_with = "by")]
    pub explain: Vec<String>,
    /// What each row describes
    #[arg(long, value_enum, default_value_t = PlanRows::Rank)]
    pub by: PlanRows,
    /// Write the plan to this file, which rowmill train --plan reads
    #[arg(short, long, value_name = "FILE.json")]
    pub output: Option<PathBuf>,
    /// Also write the plan in the form of TorchRec's planner. The search then uses only layouts
    /// that TorchRec has
    #[arg(long, value_name = "FILE.json")]
    pub torchrec: Option<PathBuf>,
    /// Also draw time and memory of each rank
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    #[command(flatten)]
    pub host: PricedHost,
    #[command(flatten)]
    pub kernels: PricedKernels,
}

/// The cost that a search minimizes, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CostChoice {
    /// The predicted step: the critical path over stages and ranks
    CriticalPath,
    /// Neo's: message volume and tables x batch x pooling x dimension
    Neo,
    /// TorchRec's planner: the sum of stage estimates per rank
    Torchrec,
}

/// What a row of the table of a plan describes, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlanRows {
    /// One row per rank: its tables, bytes and time by stage
    Rank,
    /// One row per table: its layout and ranks
    Table,
    /// One row per search rule and per value of --sharding: the predicted step of its plan
    Rule,
}

/// Options of `rowmill plan check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill plan check run
  rowmill plan check run --output better.json
  rowmill train job.toml --plan better.json

The run must have trained on several ranks of CPUs. Predicted times are those of --sharding auto:
guesses about a typical core. The table shows how far the measured times of each rank are from them.
The search for a better plan multiplies the prices of each stage by the measured ratios.")]
pub struct PlanCheckArgs {
    /// The folder of the run
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Write the better plan to this file, if there is one
    #[arg(short, long, value_name = "FILE.json")]
    pub output: Option<PathBuf>,
}

/// Options of `rowmill plan convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill plan convert plan.json --model job.toml --to torchrec --ranks-per-host 8 \
    --output plan-torchrec.json
  rowmill plan convert plan-torchrec.json --model job.toml --to rowmill --ranks 16 \
    --output plan.json")]
pub struct PlanConvert {
    /// The plan to convert
    #[arg(value_name = "FILE.json")]
    pub plan: PathBuf,
    /// The configuration whose tables the plan places
    #[arg(long, value_name = "CONFIG")]
    pub model: String,
    /// Change a key of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// The form of the new file
    #[arg(long, value_enum)]
    pub to: PlanForm,
    /// Number of ranks of each host, from which TorchRec's plan numbers the devices of a host
    /// (with --to torchrec) [default: all ranks are on one host]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks_per_host: Option<u32>,
    /// Number of ranks of the plan, which TorchRec's form does not contain (with --to rowmill)
    /// [default: up to the last rank that holds a table]
    #[arg(long, value_name = "N", value_parser = rank_count())]
    pub ranks: Option<u32>,
    /// The new file
    #[arg(short, long, value_name = "FILE.json")]
    pub output: PathBuf,
}

/// A form of plan files, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlanForm {
    /// Tiles, as rowmill train --plan reads them
    Rowmill,
    /// The JSON of TorchRec's ShardingPlan
    Torchrec,
}

/// Options of `rowmill plan simulate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill plan simulate torchrec --svg torchrec.svg
  rowmill plan simulate neo --by demand
  rowmill plan simulate --model job.toml --hardware 128xh100x8 --plan plan.json --precision bf16

Threads of the host launch the stages of a step, for as long as PyTorch's operators take by the
shipped overheads of the nearest GPU. A ready-made setting shows the published figures beside the
simulated ones, and --by assumption lists what no source states. Your own job is simulated with the
optimizations of TorchRec's pipeline, on up to 1,024 ranks.")]
pub struct PlanSimulate {
    /// A published job with ready-made hardware, model and techniques
    #[arg(value_name = "SETTING", value_enum, required_unless_present = "model")]
    #[arg(conflicts_with_all = [
        "model", "hardware", "set", "batch_size", "pooling", "ranks", "sharding", "plan",
        "precision", "schedule", "dense_kernels",
    ])]
    pub setting: Option<SettingChoice>,
    /// The configuration of your own job: a TOML file, or a ready-made configuration
    #[arg(long, value_name = "CONFIG", requires = "hardware")]
    pub model: Option<String>,
    /// The devices, as in 16xh100x8 (hosts x device x devices per host); a ready-made host; or a
    /// TOML file with a topology
    #[arg(long, value_name = "DEVICE", requires = "model")]
    pub hardware: Option<String>,
    #[command(flatten)]
    pub workload: NeverRunStep,
    #[command(flatten)]
    pub kernels: PricedKernels,
    /// What each row describes
    #[arg(long, value_enum, default_value_t = SimulateRows::Technique)]
    pub by: SimulateRows,
    /// Also draw host threads, device queues, and the steps of all techniques
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
}

/// A ready-made setting, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SettingChoice {
    /// Neo on 16 x 8 A100, with a stand-in for its model of 12 T weights
    Neo,
    /// TorchRec on 16 x 8 H100, with MLPerf's DLRM-DCNv2
    Torchrec,
}

/// What a row of a simulated step describes, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimulateRows {
    /// One row per technique: its step and the published one
    Technique,
    /// One row per stage of each technique, in the order of launches
    Stage,
    /// One row per demand of Neo's Table 1: bandwidths, memory and arithmetic
    Demand,
    /// One row per fact of a setting that no source states
    Assumption,
}
