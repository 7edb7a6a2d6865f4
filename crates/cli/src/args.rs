//! The command line as typed. The types in this module only hold the arguments. `setup` resolves
//! the arguments into a job, a device and a session.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;
use std::path::PathBuf;

use clap::builder::TypedValueParser as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use schema::{IdLaw, Schedule};
use setup::args::{
    Global, Malformed, OnDevice, Processes, ShardingChoice, key_value, rank_count, size,
};
use train::RuleChange;

const EXAMPLES: &str = "\
Start here:
  rowmill quickstart                    train a DLRM on generated data in under two minutes
  rowmill train --list                  the ready-made models
  rowmill train dlrm-criteo-kaggle --train train.txt
                                        train on your own data
  rowmill trace trace.json.gz           where the time of a PyTorch job goes
  rowmill capture --all                 record the PyTorch jobs that run on this machine

Tables and results go to stdout, progress and messages to stderr.
Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 3 a finding as severe as --fail-on,
4 parts of a recording are missing (findings --fail-on, doctor), 130 interrupted (progress is saved).";

mod cache;
mod capture;
mod fleet;
mod init;
mod kernels;
mod learn;
mod links;
mod output;
mod plan;
mod predict;
mod priced;
mod report;
mod scope;
mod sweep;
mod trace;
mod tune;

pub use cache::SimulateCache;
pub use capture::{Capture, Doctor, With};
pub use fleet::{
    Align, Fleet, FleetDoctor, FleetFindings, FleetJob, FleetNotices, FleetOrders, FleetReport,
    FleetTrace, FleetVerb, HubPlace, ProcessSelection, Reach,
};
pub use init::Init;
pub use kernels::{KernelEvaluation, PredictKernels};
pub use learn::PredictLearn;
pub use links::{DoctorLinks, VerbChoice};
pub use plan::{
    CostChoice, PlanArgs, PlanCheckArgs, PlanConvert, PlanForm, PlanRows, PlanSearch, PlanSimulate,
    PlanVerb, SettingChoice, SimulateRows,
};
pub use predict::{
    DrawOptions, FormerWords, NextRows, Predict, PredictCalibrate, PredictEvaluate, PredictNext,
    PredictResize, PredictServe, PredictStep, PredictWhatIf, StepRows, StepSelection,
};
pub use priced::{DenseKernelsChoice, PrecisionChoice, PricedHost, PricedKernels};
pub use report::ReportArgs;
pub use scope::check_scopes;
pub use sweep::{PredictSweep, each};
pub use trace::{
    BreakdownBy, CollectivesBy, ConvertTo, DiffBy, FailOn, IdleBy, KernelsBy, LaunchesBy, MemoryBy,
    OpsBy, PathBy, QueueBy, ReportContent, StepsBy, StragglersBy, Trace, TraceVerb,
};
pub use tune::Tune;

/// Trains deep-learning recommendation models (DLRM) at the speed of the hardware.
#[derive(Debug, Parser)]
#[command(name = "rowmill", version, after_help = EXAMPLES, propagate_version = true)]
#[command(max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `rowmill`, each with its options.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the whole loop on generated data in under two minutes: train, checkpoint, trace, report
    Quickstart(Quickstart),
    /// Propose a configuration for your own files, ready to train
    Init(Init),
    /// Train a model from a configuration
    Train(Box<Train>),
    /// Evaluate a checkpoint: AUC, normalized entropy, calibration, accuracy
    Eval(Eval),
    /// Print the click probability of every row of a file
    Score(Score),
    /// Plot a training run on one HTML page: loss, AUC, throughput, tables
    Report(ReportArgs),
    /// Generate, convert and describe data
    #[command(subcommand)]
    Data(Data),
    /// Inspect, verify, export and import checkpoints
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Analyze traces of PyTorch's profiler: where the time goes, and why
    Trace(Box<Trace>),
    /// Predict the time of a training step from recorded traces, with an interval
    #[command(subcommand)]
    Predict(Box<Predict>),
    /// Find the sharding plan with the fastest predicted step
    Plan(Box<PlanArgs>),
    /// Predict faster settings for the same model, and measure the best three
    Tune(Tune),
    /// Record running PyTorch jobs without changing them, and write a report
    Capture(Box<Capture>),
    /// Query agents on many hosts: trace a job, list processes and idle GPUs
    Fleet(Fleet),
    /// Diagnose capture, GPU, MPI and link problems
    #[command(subcommand)]
    Doctor(Doctor),
    /// Explain a configuration key, or a rule of `rowmill trace findings`
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(Explain),
    /// The former name of other commands, which its error message lists
    #[command(hide = true, disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Print a completion script for your shell
    #[command(
        after_help = "Example:\n  rowmill completions bash > ~/.local/share/bash-completion/completions/rowmill"
    )]
    Completions {
        /// The shell for which the script is printed
        shell: Shell,
    },
}

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  rowmill explain config                   every key of a configuration
  rowmill explain config batch_size
  rowmill explain config --as json-schema > rowmill.schema.json
  rowmill explain                          all rules of rowmill trace findings
  rowmill explain H05";

/// Options of `rowmill explain`, which explains a rule or a key of the configuration.
#[derive(Debug, Args)]
pub struct Explain {
    /// A rule such as L01, or `config`
    pub topic: Option<String>,
    /// A configuration key, such as training.batch_size, or its last part
    #[arg(requires = "topic")]
    pub key: Option<String>,
    /// Print the whole configuration reference
    #[arg(long = "as", value_enum, value_name = "FORM", conflicts_with = "key")]
    pub document: Option<Document>,
}

/// The format in which the whole configuration reference is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Document {
    /// Markdown, as in docs/configuration.md
    Markdown,
    /// A JSON schema, with which editors check and complete configurations
    JsonSchema,
}

const TRAIN_EXAMPLES: &str = "\
Examples:
  rowmill init clicks.csv && rowmill train clicks.toml
  rowmill train dlrm-default --synthetic 1000000
  rowmill train dlrm-default --synthetic 1000000 --set synthetic.ids.kind=uniform
  rowmill train dlrm-criteo-kaggle --train train.txt --set batch_size=4096
  rowmill train my.toml --train 'day_0.gz' --evaluation day_1.gz --run runs/first
  rowmill train --resume --run runs/first
  rowmill train --resume --run runs/first --set epochs=3
  rowmill train my.toml --trace traces --trace-steps 20..30
  rowmill train my.toml --ranks 4 --sharding row
  mpirun -n 4 rowmill train my.toml --sharding row
  mpirun -n 16 rowmill train my.toml --sharding table-row

Text and Parquet files are prepared once into RUN/data and reused by the next run on the same files.
RUN/metrics.jsonl has the metrics of every interval and evaluation, a JSON object per line.
Ctrl-C finishes the step, saves a checkpoint and prints how to resume; a second one stops at once.";

/// Options of `rowmill train`, which trains or resumes a model.
#[derive(Debug, Args)]
#[command(after_help = TRAIN_EXAMPLES)]
pub struct Train {
    /// A TOML file, or the name of a ready-made configuration (see --list). With --resume or
    /// --resume-from, the configuration is taken from the run
    #[arg(required_unless_present_any = ["list", "resume", "resume_from"])]
    pub config: Option<String>,
    /// List the ready-made configurations and exit
    #[arg(long)]
    pub list: bool,
    /// Print the fully resolved configuration and exit
    #[arg(long)]
    pub print_config: bool,
    /// Change a key of the configuration, such as batch_size=4096, optimizer.dense.kind=sgd or
    /// model.tables.NAME.rows=1000; rowmill explain config lists the keys
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// Field delimiter of the files, such as ';' or tab
    #[arg(long, value_name = "TEXT")]
    pub delimiter: Option<String>,
    /// Training data: files, folders, `-`, or one prepared folder [default: data.train]
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub train: Vec<String>,
    /// Held-out data [default: data.evaluation, or else the last part of the training data, as
    /// data.hold_out says]
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub evaluation: Vec<String>,
    /// Train on ROWS generated rows that fit the model's columns; the configuration's [synthetic]
    /// sets the id distribution
    #[arg(long, value_name = "ROWS", conflicts_with_all = ["train", "evaluation"],
          value_parser = clap::value_parser!(u64).range(1..))]
    pub synthetic: Option<u64>,
    #[command(flatten)]
    pub device: OnDevice,
    /// Folder of this run: prepared data and checkpoints [default: runs/NAME]
    #[arg(long, value_name = "FOLDER")]
    pub run: Option<PathBuf>,
    /// Resume from the newest checkpoint of --run, or start from scratch if it has none. The
    /// configuration, the data and the sharding plan are taken from the run
    #[arg(long)]
    pub resume: bool,
    /// Resume from this checkpoint of the run; later checkpoints are renamed and no longer used
    #[arg(long, value_name = "CHECKPOINT")]
    pub resume_from: Option<PathBuf>,
    #[command(flatten)]
    pub rule_change: AcceptRuleChange,
    /// Number of ranks [default: the number in --plan or of mpirun, or else 1]
    #[arg(long, value_name = "N", value_parser = rank_count())]
    pub ranks: Option<u32>,
    #[command(flatten)]
    pub processes: Processes,
    /// Treat every N consecutive ranks as one host, and send fewer bytes between hosts. Trained
    /// weights stay the same unless --sharding splits tables over hosts [default: the hosts of the
    /// processes under mpirun, else a single host]
    #[arg(long, value_name = "N", value_parser = rank_count())]
    pub ranks_per_host: Option<u32>,
    /// How tables are split over ranks; table-row and grid also split them over hosts [default:
    /// table]
    #[arg(long, value_enum)]
    pub sharding: Option<ShardingChoice>,
    /// A file with a sharding plan, such as:
    /// {"world_size": 2, "tiles": [{"table": 0, "rows": {"start": 0, "end": 1000},
    /// "columns": {"start": 0, "end": 16}, "rank": 0}, …], "replicated": [1, 2]}
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["sharding", "ranks"])]
    pub plan: Option<PathBuf>,
    /// Number of groups into which ranks are divided. Each group holds all tables and trains other
    /// samples, so ids and vectors are exchanged only within a group. With --plan, the file
    /// describes the ranks of one group [default: 1]
    #[arg(long, value_name = "N", value_parser = rank_count().try_map(NonZeroU32::try_from))]
    pub groups: Option<NonZeroU32>,
    /// Make the tables of all groups equal after every N steps. If N is 1, groups add up their
    /// gradients before each update, and train as a single group would. If N is larger, each group
    /// updates its own tables, and after N steps all take the mean. That is another algorithm, and
    /// intervals of evaluations and checkpoints must be multiples of N [default: 1]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..).try_map(NonZeroU64::try_from))]
    pub sync_every: Option<NonZeroU64>,
    /// Send dense gradients to other ranks in buckets of this size, such as 512K or 25M. Results
    /// are the same for any value [default: 25M]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub bucket: Option<usize>,
    /// Which exchanges between ranks run beside other work: serial (none), pipelined (all), or a
    /// list of input, pooled, gradient, all_reduce and control. Results are the same for any value
    /// [default: pipelined]
    #[arg(long, value_name = "NAME|LIST")]
    pub schedule: Option<Schedule>,
    /// Record the steps of --trace-steps into this folder; ui.perfetto.dev opens the files
    #[arg(long, value_name = "FOLDER")]
    pub trace: Option<PathBuf>,
    /// Steps to record, from A up to B, excluding B
    #[arg(long, value_name = "A..B", value_parser = step_range, default_value = "10..20")]
    pub trace_steps: Range<u64>,
    /// Print at the end how long a step of each rank computes, and waits for each exchange with
    /// other ranks
    #[arg(long)]
    pub timing: bool,
    #[command(flatten)]
    pub malformed: Malformed,
    /// Print the memory that the run would need, by use, and exit without writing anything
    #[arg(long)]
    pub estimate: bool,
}

/// The user's consent to continue a checkpoint under another optimizer rule.
#[derive(Clone, Copy, Debug, Args)]
pub struct AcceptRuleChange {
    /// Continue under an optimizer rule other than the checkpoint's. Row-wise Adagrad and LAMB
    /// compute a mean square or a norm of each row. If a plan splits the columns of a table, each
    /// tile has its own, and the results differ. When tiles merge, the states of row-wise Adagrad
    /// are averaged, weighted by width; when they split, each part gets a copy. States of LAMB are
    /// kept
    #[arg(long)]
    accept_rule_change: bool,
}

impl AcceptRuleChange {
    /// Converts the option into the enum that the trainer takes.
    pub fn rule_change(self) -> RuleChange {
        if self.accept_rule_change { RuleChange::Accept } else { RuleChange::Refuse }
    }
}

/// Options of `rowmill eval`, which evaluates a checkpoint on labeled rows.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill eval runs/dlrm-default
  rowmill eval runs/first/checkpoints/step-000001000 --data day_23.gz")]
pub struct Eval {
    /// A checkpoint folder, or a run folder, of which the newest good checkpoint is used
    pub checkpoint: PathBuf,
    /// Labeled data: files or one prepared folder [default: the run's own held-out data]
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub data: Vec<String>,
    #[command(flatten)]
    pub device: OnDevice,
    #[command(flatten)]
    pub malformed: Malformed,
    #[command(flatten)]
    pub processes: Processes,
}

/// Options of `rowmill score`, which prints a click probability per row.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill score runs/first new.tsv > probabilities.txt
  zcat day_23.gz | rowmill score runs/first - --output probabilities.txt
  tail -f clicks.tsv | rowmill score runs/first - --follow

One line per row of the input, in its order: line N of the output belongs to row N of the input.
A malformed row gives `nan` and is counted on stderr. Tables are memory-mapped from the checkpoint;
each piece is verified when one of its rows is first looked up.")]
pub struct Score {
    /// A checkpoint folder, or a run folder, of which the newest good checkpoint is used
    pub checkpoint: PathBuf,
    /// The rows to score: a file in the format on which the model was trained, or `-` for standard
    /// input
    pub file: String,
    /// Score each row of a stream as soon as it arrives, instead of a block at a time
    #[arg(long, conflicts_with = "output")]
    pub follow: bool,
    /// Write to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub device: OnDevice,
    #[command(flatten)]
    pub malformed: Malformed,
    #[command(flatten)]
    pub processes: Processes,
}

/// The verbs of `rowmill data`.
#[derive(Debug, Subcommand)]
pub enum Data {
    /// Generate data for which the best possible AUC is known
    Synth(Synth),
    /// Prepare text or Parquet files for training
    Convert(Convert),
    /// Describe files or a prepared folder: rows, click rate, columns
    Stats(Stats),
    /// Simulate caches of table rows: how often a row is missing, by the size of the cache
    Cache(SimulateCache),
}

/// Options of `rowmill data synth`, which generates rows.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill data synth train.txt --rows 1000000
  rowmill data synth rows.csv --layout csv --config dlrm-default --rows 10000
  rowmill data synth train.txt --distribution reuse:embedding_bag_2021_locality_stats.txt.gz

Labels are drawn from a hidden model with pairwise interactions of features. The result names the
ceiling (the AUC of the true probabilities, which no model can exceed) and the AUC of the best linear
model.")]
pub struct Synth {
    /// The file to write
    pub out: PathBuf,
    /// Number of rows to generate
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: u64,
    /// Seed of the random numbers; the same seed gives the same bytes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Layout of the file
    #[arg(long, value_enum, default_value_t = TextLayout::Criteo)]
    pub layout: TextLayout,
    /// Take columns and table sizes from this configuration
    #[arg(long, value_name = "CONFIG")]
    pub config: Option<String>,
    /// How often ids occur: uniform, zipf:EXPONENT, or reuse:FILE[#SECTION] with locality
    /// statistics of dlrm_datasets [default: zipf:1.5; with --config the distribution of its
    /// [synthetic] section, or else zipf:1.05]
    #[arg(long, value_name = "LAW", value_parser = str::parse::<IdLaw>)]
    pub distribution: Option<IdLaw>,
}

/// The layout of generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TextLayout {
    /// The layout of Criteo's files: label, 13 integers and 26 hexadecimal categories,
    /// tab-separated, no header
    Criteo,
    /// Comma-separated values with a header
    Csv,
}

/// Options of `rowmill data convert`, which prepares files for training.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  rowmill data convert train.txt --config dlrm-criteo-kaggle -o prepared
  rowmill train dlrm-criteo-kaggle --train prepared

After an interruption (Ctrl-C, kill), the same command resumes after the last finished part, which is in
FOLDER.partial. Exact ids that do not fit in --memory are counted in temporary files in
FOLDER.counting.")]
pub struct Convert {
    /// Files, plain or compressed, folders of them, or `-` for standard input
    #[arg(required = true)]
    pub inputs: Vec<String>,
    /// The configuration whose [data] section describes the files
    #[arg(long, value_name = "CONFIG")]
    pub config: String,
    /// Change a key of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// Field delimiter, such as ';' or tab; sets data.delimiter
    #[arg(long, value_name = "TEXT")]
    pub delimiter: Option<String>,
    /// The folder of the prepared dataset to write
    #[arg(short, long = "output", alias = "out", value_name = "FOLDER")]
    pub out: PathBuf,
    /// Memory for counting exact ids, such as 512MiB or 4GiB [default: data.ids.memory_mib]
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub memory: Option<u64>,
    /// Start over instead of resuming an interrupted conversion
    #[arg(long)]
    pub restart: bool,
    #[command(flatten)]
    pub malformed: Malformed,
}

/// Options of `rowmill data stats`, which describes files or a prepared folder.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill data stats clicks.csv
  rowmill data stats train.txt --config dlrm-criteo-kaggle
  rowmill data stats prepared

Values of files are shown as read. Values of a prepared folder are shown as training reads them:
transformed, and with missing values filled in.")]
pub struct Stats {
    /// Files or one prepared folder
    #[arg(required = true)]
    pub paths: Vec<String>,
    /// The configuration whose [data] section describes the files [default: inferred]
    #[arg(long, value_name = "CONFIG")]
    pub config: Option<String>,
    /// Field delimiter, such as ';' or tab [default: detected]
    #[arg(long, value_name = "TEXT")]
    pub delimiter: Option<String>,
    /// Also write bag sizes and skew of the sparse features, which rowmill plan --stats reads
    #[arg(long, value_name = "FILE.json")]
    pub feature_stats: Option<PathBuf>,
    #[command(flatten)]
    pub malformed: Malformed,
}

/// The verbs of `rowmill checkpoint`.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Show the content of a checkpoint: model, step, optimizer and sizes
    #[command(after_help = "\
Examples:
  rowmill checkpoint info runs/first
  rowmill checkpoint info runs/first/checkpoints/step-000001000 -v    its configuration too")]
    Info {
        /// A checkpoint folder, or a run folder, of which the newest good checkpoint is used
        checkpoint: PathBuf,
    },
    /// Verify every byte of checkpoints against their checksums
    #[command(after_help = "\
Example:
  rowmill checkpoint verify runs/first

Exits with code 1 if any checkpoint is damaged.")]
    Verify {
        /// A checkpoint folder, or a run folder, of which all checkpoints are verified
        checkpoint: PathBuf,
    },
    /// Write the weights under the names of facebookresearch/dlrm or TorchRec
    #[command(after_help = "\
Examples:
  rowmill checkpoint export runs/first --to torch dlrm.safetensors
  rowmill checkpoint export runs/first --to torchrec torchrec.safetensors

In Python: model.load_state_dict(safetensors.torch.load_file(\"dlrm.safetensors\"))")]
    Export {
        /// A checkpoint folder, or a run folder, of which the newest good checkpoint is used
        checkpoint: PathBuf,
        /// Naming scheme of the weights
        #[arg(long, value_enum)]
        to: StateDict,
        /// The safetensors file to write
        out: PathBuf,
        /// Also write a Python file that loads the weights as a torch.nn.Module and needs no
        /// package but torch
        #[arg(long, value_name = "FILE")]
        loader: Option<PathBuf>,
        /// Also write the optimizer states, as WEIGHT.STATE (Adagrad: .sum), to this file
        #[arg(long, value_name = "FILE")]
        optimizer: Option<PathBuf>,
        #[command(flatten)]
        rule_change: AcceptRuleChange,
    },
    /// Create a checkpoint from a state dict of facebookresearch/dlrm or TorchRec
    #[command(after_help = "\
Examples:
  rowmill checkpoint import dlrm.pt --from torch --config my.toml --run runs/imported
  rowmill train my.toml --run runs/imported --resume

The checkpoint can be used by rowmill eval and rowmill score at once. If the model has standardized
columns or exact ids, that needs --data FOLDER (written by rowmill data convert); without it, train
first.")]
    Import {
        /// Naming scheme of the weights
        #[arg(long, value_enum)]
        from: StateDict,
        /// The state dict to read: a safetensors file, or a .pt, .pth or .bin file written by
        /// torch.save
        file: PathBuf,
        /// The configuration of the model
        #[arg(long, value_name = "CONFIG")]
        config: String,
        /// Change a key of the configuration
        #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
        set: Vec<(String, String)>,
        /// The run folder in which the checkpoint is created
        #[arg(long, value_name = "FOLDER")]
        run: PathBuf,
        /// Prepared data, from which transforms, vocabularies and the sizes of tables with
        /// rows = "auto" are copied
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
        /// File with optimizer states, as written by `checkpoint export --optimizer` [default: all
        /// states are zero]
        #[arg(long, value_name = "FILE")]
        optimizer: Option<PathBuf>,
        /// Accept optimizer states of another rule with the same state names, such as those of adam
        /// for sparse_adam
        #[arg(long, requires = "optimizer")]
        accept_rule_change: bool,
        /// Number of training steps taken so far, for schedules and Adam's bias correction
        #[arg(long, value_name = "N", default_value_t = 0)]
        step: u64,
    },
}

/// The naming scheme of the weights in a state dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StateDict {
    /// Names as in the PyTorch code of facebookresearch/dlrm
    Torch,
    /// Names as in TorchRec models
    Torchrec,
}

/// Options of `rowmill quickstart`, which runs the whole loop once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill quickstart
  rowmill quickstart --seconds 15 --folder /tmp/quickstart

Writes Criteo-format text, prepares it, trains dlrm-criteo-kaggle scaled to this machine,
evaluates on rows it has not seen, saves a checkpoint and records a trace. Then it predicts a step of
twice the batch, runs it, and prints the prediction error. A second run replaces the folder.")]
pub struct Quickstart {
    /// The folder that receives all files of the quickstart
    #[arg(long, value_name = "FOLDER", default_value = "rowmill-quickstart")]
    pub folder: PathBuf,
    /// Approximate duration of the training in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    #[command(flatten)]
    pub device: OnDevice,
}

/// Parses a size that is a whole number of MiB, and returns the number of MiB.
fn mebibytes(text: &str) -> Result<u64, String> {
    let whole = bytes(text)?;
    let expected =
        || format!("expected a whole number of MiB, such as 512MiB or 4GiB, got {text:?}");
    whole.is_multiple_of(1 << 20).then_some(whole >> 20).ok_or_else(expected)
}

/// Parses a size with a binary unit, and returns the number of bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "kib" | "k" => Some(10),
        "mib" | "m" => Some(20),
        "gib" | "g" => Some(30),
        _ => None,
    };
    let size = digits.trim().parse().ok().zip(shift);
    let size = size.and_then(|(count, shift): (u64, u32)| count.checked_mul(1 << shift));
    let expected = || format!("expected a size such as 10KiB, 512MiB or 4GiB, got {text:?}");
    size.filter(|&size| size > 0).ok_or_else(expected)
}

fn step_range(text: &str) -> Result<Range<u64>, String> {
    let steps = |part: &str| part.trim().parse().map_err(|_| "expected A..B, such as 10..20");
    let (from, to) = text.split_once("..").ok_or("expected A..B, such as 10..20")?;
    let range = steps(from)?..steps(to)?;
    if range.is_empty() {
        return Err(format!("{from}..{to} contains no step"));
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{Cli, key_value, step_range};

    #[test]
    fn clap_accepts_the_command_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn step_ranges_and_overrides_are_parsed() {
        assert_eq!(step_range("3..9"), Ok(3..9));
        assert!(step_range("9..3").is_err() && step_range("7").is_err());
        assert_eq!(key_value("a.b=c=d"), Ok(("a.b".to_owned(), "c=d".to_owned())));
        assert!(key_value("a").is_err());
    }
}
