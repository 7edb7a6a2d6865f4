//! `rowmill trace …` as typed.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use setup::args::{Selection, WindowChoice};

/// Analyse traces of PyTorch's profiler, or of rowmill's own runs.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  rowmill trace trace.json.gz                      what it is and where its time goes
  rowmill trace breakdown traces/ --format csv     one row per rank of a job
  rowmill trace findings job/                      what wastes time, and what a step would gain
  rowmill trace critical-path trace.json --what-if 'kernel=~gemm x0.5'
  zcat trace.json.gz | rowmill trace kernels - --format json

PATH is a Kineto trace (.json, plain, .gz or .zst), an archive of them (.tar, .tar.gz, .tgz), a folder or `-`;
or a .pftrace that rowmill trace convert or merge wrote.
Several ranks are one job. Times in machine-readable output are integer nanoseconds (`…_ns`).")]
pub struct Trace {
    /// The table to print; without one, a summary.
    #[command(subcommand)]
    pub verb: Option<TraceVerb>,
    #[command(flatten)]
    pub selection: Selection,
}

impl Trace {
    /// Whether it prints rows, which have more formats than a report.
    pub fn has_rows(&self) -> bool {
        use TraceVerb::{Convert, Merge, Report, Serve};
        let is_none = |verb: &TraceVerb| {
            matches!(verb, Merge { .. } | Convert { .. } | Report { .. } | Serve { .. })
        };
        self.verb.as_ref().is_some_and(|verb| !is_none(verb))
    }

    /// Whether it prints findings, which can also be SARIF.
    pub fn is_findings(&self) -> bool {
        matches!(self.verb, Some(TraceVerb::Findings { .. }))
    }
}

/// What a report is of.
#[derive(Clone, Debug, Args)]
pub struct ReportContent {
    /// Traces: files, archives, folders, or `-` for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// The part of each trace to analyze [default: steps]
    #[arg(long, value_enum)]
    pub window: Option<WindowChoice>,
    /// Classify kernels by name: compute, communication, memory or other, such as
    /// communication=my_all_to_all (a regular expression; repeatable, the first match wins)
    #[arg(long = "class", value_name = "CLASS=PATTERN")]
    pub classes: Vec<String>,
    /// Analyze only these ranks
    #[arg(long = "rank", value_name = "N")]
    pub ranks: Vec<u32>,
    /// Steps of the timeline: the first N, or those numbered A..B [default: as many as make
    /// 200,000 events]
    #[arg(long, value_name = "N|A..B", value_parser = timeline_steps)]
    pub steps: Option<report::TimelineSteps>,
    /// Title of the page [default: the name of the first path]
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
}

/// A number of steps, or a range of their numbers.
fn timeline_steps(text: &str) -> Result<report::TimelineSteps, String> {
    if let Ok(count @ 1..) = text.parse() {
        return Ok(report::TimelineSteps::First(count));
    }
    let number = |part: &str| part.trim().parse::<i64>().ok();
    let range = text.split_once("..").and_then(|(a, b)| Some(number(a)?..number(b)?));
    let range = range.filter(|range| !range.is_empty());
    range.map(report::TimelineSteps::Numbered).ok_or_else(|| {
        "expected a number from 1 on, or numbers of steps A..B such as 40..43".to_owned()
    })
}

/// The tables and files that `rowmill trace` makes.
#[derive(Debug, Subcommand)]
pub enum TraceVerb {
    /// Busy, idle, compute, communication, exposed communication, memory: where the window goes
    #[command(after_help = "\
Examples:
  rowmill trace breakdown trace.json.gz
  rowmill trace breakdown job/ --by device --format csv
  rowmill trace breakdown trace.json.gz --window hta --classify hta --format json")]
    Breakdown {
        #[command(flatten)]
        selection: Selection,
        /// One row per …
        #[arg(long, value_enum, default_value_t = BreakdownBy::Rank)]
        by: BreakdownBy,
    },
    /// Idle time by cause: what the host did while nothing ran
    #[command(after_help = "\
Examples:
  rowmill trace idle trace.json.gz                 causes per device, which sum to its idle time
  rowmill trace idle trace.json.gz --by stream     host_wait, kernel_wait, other
  rowmill trace idle trace.json.gz --by op         the operators the device waited for")]
    Idle {
        #[command(flatten)]
        selection: Selection,
        /// One row per …
        #[arg(long, value_enum, default_value_t = IdleBy::Device)]
        by: IdleBy,
        /// A shorter gap whose kernel was launched in time is kernel_wait, not other or dependency
        #[arg(long, value_name = "NS", default_value_t = 30_000)]
        kernel_wait_ns: i64,
    },
    /// Kernels, copies and sets by name: time, count, distribution
    #[command(after_help = "\
Examples:
  rowmill trace kernels trace.json.gz --top 5
  rowmill trace kernels job/ --format parquet --output kernels.parquet")]
    Kernels {
        #[command(flatten)]
        selection: Selection,
        /// One row per …
        #[arg(long, value_enum, default_value_t = KernelsBy::Name)]
        by: KernelsBy,
    },
    /// Operators by name: host time, and the device time of what they launched
    #[command(after_help = "\
Examples:
  rowmill trace ops trace.json.gz
  rowmill trace ops trace.json.gz --by annotation
  rowmill trace ops trace.json.gz --by sequence    kernels that follow each other under one operator")]
    Ops {
        #[command(flatten)]
        selection: Selection,
        /// One row per …
        #[arg(long, value_enum, default_value_t = OpsBy::Name)]
        by: OpsBy,
        /// With --by sequence: operators whose name contains this [default: the outermost ones]
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        operator: String,
        /// With --by sequence: fewest kernels
        #[arg(long, value_name = "N", default_value_t = 3)]
        kernels_min: usize,
    },
    /// Which classes of work ran at the same time
    #[command(after_help = "Example:\n  rowmill trace overlap trace.json.gz")]
    Overlap {
        #[command(flatten)]
        selection: Selection,
        /// One row per set of classes and …
        #[arg(long, value_enum, default_value_t = BreakdownBy::Rank)]
        by: BreakdownBy,
    },
    /// Launches: host time, delay until the device starts, work per launch
    #[command(after_help = "\
Examples:
  rowmill trace launches trace.json.gz
  rowmill trace launches trace.json.gz --by launch --format csv")]
    Launches {
        #[command(flatten)]
        selection: Selection,
        /// One row per …
        #[arg(long, value_enum, default_value_t = LaunchesBy::Call)]
        by: LaunchesBy,
    },
    /// Queue of each stream over time: work launched but not started
    #[command(after_help = "\
Examples:
  rowmill trace queue trace.json.gz
  rowmill trace queue trace.json.gz --by point --format csv")]
    Queue {
        #[command(flatten)]
        selection: Selection,
        /// One row per …
        #[arg(long, value_enum, default_value_t = QueueBy::Stream)]
        by: QueueBy,
    },
    /// Copies and sets: bytes, bandwidth; with --by peak, memory in use
    #[command(after_help = "\
Examples:
  rowmill trace memory trace.json.gz
  rowmill trace memory trace.json.gz --by peak")]
    Memory {
        #[command(flatten)]
        selection: Selection,
        /// One row per …
        #[arg(long, value_enum, default_value_t = MemoryBy::Copy)]
        by: MemoryBy,
    },
    /// Steps: host time, device time, idle and exposed communication of each
    #[command(after_help = "\
Examples:
  rowmill trace steps trace.json.gz
  rowmill trace steps job/ --by rank               their distribution")]
    Steps {
        #[command(flatten)]
        selection: Selection,
        /// One row per …
        #[arg(long, value_enum, default_value_t = StepsBy::Step)]
        by: StepsBy,
    },
    /// Collectives matched across ranks: arrival, wait, transfer, bus bandwidth
    #[command(after_help = "\
Examples:
  rowmill trace collectives job/
  rowmill trace collectives job/ --by rank --format csv")]
    Collectives {
        #[command(flatten)]
        selection: Selection,
        /// One row per …
        #[arg(long, value_enum, default_value_t = CollectivesBy::Collective)]
        by: CollectivesBy,
    },
    /// Ranks that others wait for, how long, and why they were late
    #[command(after_help = "\
Examples:
  rowmill trace stragglers job/
  rowmill trace stragglers job/ --by collective")]
    Stragglers {
        #[command(flatten)]
        selection: Selection,
        /// One row per …
        #[arg(long, value_enum, default_value_t = StragglersBy::Rank)]
        by: StragglersBy,
    },
    /// The chain of work that bounds the window; its parts sum to the window
    #[command(after_help = "\
Examples:
  rowmill trace critical-path job/
  rowmill trace critical-path trace.json.gz --by name --top 10
  rowmill trace critical-path trace.json.gz --what-if 'kernel=~gemm x0.5' --what-if 'op=aten::copy_ x0'
  rowmill trace critical-path trace.json.gz --what-if 'name=cudaStreamSynchronize unblock'")]
    CriticalPath {
        #[command(flatten)]
        selection: Selection,
        /// One row per … [default: category; with --what-if: window]
        #[arg(long, value_enum)]
        by: Option<PathBy>,
        /// Change what matches and recompute: KEY=NAME … xFACTOR, or KEY=~PATTERN; KEY is kernel,
        /// op, name, class, category or rank. Instead of xFACTOR: unblock (calls no longer wait for
        /// the device, nor a fetch for loader threads), overlap, close-gap, to=50us, earlier=2ms
        /// (to a collective). Prints windows, on the host and on the device where they differ; with
        /// --by category parts
        #[arg(long, value_name = "EDIT")]
        what_if: Vec<String>,
    },
    /// Findings: causes of wasted time, with evidence, cure and gain of the step
    #[command(after_help = "\
Examples:
  rowmill trace findings job/
  rowmill trace findings trace.json.gz --fail-on high --format sarif --output findings.sarif
  rowmill trace findings job/ --rules rules.toml

rules.toml changes limits, suppresses known findings and adds rules on columns of other tables:
  [limits.H05]
  reads_per_step = 4
  [[suppress]]
  key = \"C01:Memcpy DtoH (Device -> Pageable)\"
  reason = \"metrics, once per evaluation\"
  [[rule]]
  id = \"slow-gemm\"
  title = \"a slow product\"
  table = \"kernels\"        # breakdown, idle, kernels, ops, launches, queue, memory, steps, collectives
  where = \"name=~gemm p50_ns>2000000\"
  advice = \"ask the kernel team\"
  severity = \"high\"

`rowmill explain RULE` names a rule's limits. With --fail-on: exit code 3 if something as severe was
found, 4 if parts of the recording are missing, whatever the rest shows.")]
    Findings {
        #[command(flatten)]
        selection: Selection,
        /// End with exit code 3 if a finding is as severe as this, 4 if the recording is broken
        #[arg(long, value_enum, value_name = "SEVERITY")]
        fail_on: Option<FailOn>,
        /// Limits, suppressions and rules of your own, TOML
        #[arg(long, value_name = "FILE")]
        rules: Option<PathBuf>,
    },
    /// What changed between two recordings of a job, and how much of the step it explains
    #[command(after_help = "\
Examples:
  rowmill trace diff before.json.gz after.json.gz
  rowmill trace diff before/ after/ --by path --top 30      two jobs, every rank in a folder
  rowmill trace diff before.json after.json --by kernel --format csv
  rowmill trace diff before/ after/ --report diff.html      one file to share, needs no network

The first line is the verdict: by how much a step became slower or faster, and why. Give two PATHs, each one recording: a file, or a folder or archive with all its ranks. Times are the mean of a step
over all steps and ranks, or of a window where a recording has no whole steps or with --window all. A change within twice the
standard error of the steps is noise.")]
    Diff {
        #[command(flatten)]
        selection: Selection,
        /// One row per … [default: a page]
        #[arg(long, value_enum)]
        by: Option<DiffBy>,
        /// Write an HTML report of the comparison: verdict, step times, what changed, one step of
        /// each side on a timeline
        #[arg(long, value_name = "FILE", conflicts_with_all = ["by", "output", "top"])]
        report: Option<PathBuf>,
    },
    /// Merge the ranks of a job into one timeline, clocks aligned
    #[command(after_help = "\
Examples:
  rowmill trace merge job/ -o merged.json.gz
  rowmill trace merge job/ -o merged.pftrace    for ui.perfetto.dev, nothing dropped")]
    Merge {
        /// Traces: files, archives, folders, or `-` for standard input
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// The file to write: .json, .json.gz, .json.zst, .pftrace or .pftrace.gz
        #[arg(short, long = "output", alias = "out", value_name = "FILE")]
        out: PathBuf,
        /// Analyze only these ranks
        #[arg(long = "rank", value_name = "N")]
        ranks: Vec<u32>,
        /// Do not align the clocks
        #[arg(long)]
        keep_clocks: bool,
    },
    /// Write a trace in another format
    #[command(after_help = "\
Examples:
  rowmill trace convert trace.json.gz -o trace.pftrace
  rowmill trace convert trace.json.gz -o tables --to parquet    events, ops, kernels, collectives")]
    Convert {
        /// Traces: files, archives, folders, or `-` for standard input
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// The file to write, or with --to parquet the folder
        #[arg(short, long = "output", alias = "out", value_name = "PATH")]
        out: PathBuf,
        /// Analyze only these ranks
        #[arg(long = "rank", value_name = "N")]
        ranks: Vec<u32>,
        /// The format [default: by the name of --output]
        #[arg(long, value_enum)]
        to: Option<ConvertTo>,
    },
    /// Check if a trace can be trusted: what is missing, odd or broken, and what to do
    #[command(after_help = "\
Example:
  rowmill trace doctor trace.json.gz

Exits with code 1 if something makes the figures wrong, 4 if parts of the recording are missing.")]
    Doctor {
        #[command(flatten)]
        selection: Selection,
    },
    /// One HTML file to share: summary, tables, collectives, critical path, a zoomable timeline
    #[command(after_help = "\
Examples:
  rowmill trace report job/                        writes ./report.html
  rowmill trace report trace.json.gz -o run7.html --steps 2
  rowmill trace report trace.json.gz --steps 40..43

The file needs no network and no server. Its timeline holds the first steps of all ranks, as many as make
200,000 events unless --steps says otherwise.")]
    Report {
        #[command(flatten)]
        content: ReportContent,
        /// The file to write
        #[arg(short, long, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Open the report in your browser, with a button that opens the trace in ui.perfetto.dev
    #[command(after_help = "\
Example:
  rowmill trace serve job/                         prints the address to open

Only this machine can reach it, and only with the secret in its address. Your browser hands the trace to
the window of ui.perfetto.dev, where it stays.")]
    Serve {
        #[command(flatten)]
        content: ReportContent,
        /// The port [default: a free one]
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        port: u16,
    },
    /// Execution traces (.json, Chakra .et), and with --kineto how they link to a timeline
    #[command(after_help = "\
Examples:
  rowmill trace execution-trace execution_trace.json
  rowmill trace execution-trace et/ --kineto traces/     match scores per rank")]
    ExecutionTrace {
        /// Execution traces: files, archives or folders
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// The Kineto traces of the same run
        #[arg(long, value_name = "PATH")]
        kineto: Vec<PathBuf>,
        /// Write to FILE instead of stdout
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Rows of a breakdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BreakdownBy {
    /// All devices of a rank together.
    Rank,
    /// One row per device
    Device,
}

/// Rows of idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IdleBy {
    /// Cause, per device: no stream is busy.
    Device,
    /// Cause, per stream: it alone may be idle.
    Stream,
    /// The operators that launched what ended a gap.
    Op,
    /// Gap of a device.
    Gap,
}

/// Rows of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiffBy {
    /// Part of the step: compute, exposed communication, idle …
    Part,
    /// Kernel and its grid and block; copy or set and its bytes: device time.
    Kernel,
    /// Operator: device time of what it launched itself.
    Operator,
    /// Place in the call tree: device time of what it launched itself.
    Path,
    /// Operator: host time outside what it called.
    Host,
    /// Call of the runtime or driver: host time.
    Call,
}

/// What a row of `trace kernels` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KernelsBy {
    /// One row per name
    Name,
    /// Power of two of the duration or the bytes, per name.
    Histogram,
}

/// What a row of `trace ops` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OpsBy {
    /// One row per name
    Name,
    /// One row per annotation
    Annotation,
    /// One row per sequence of kernels
    Sequence,
    /// Way in which device work was attributed to operators.
    Attribution,
}

/// What a row of `trace launches` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LaunchesBy {
    /// Rank: counts and sums.
    Rank,
    /// Runtime or driver call.
    Call,
    /// One row per kernel name
    Kernel,
    /// One row per launch
    Launch,
}

/// What a row of `trace queue` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueBy {
    /// One row per stream
    Stream,
    /// Change of a queue's length.
    Point,
}

/// What a row of `trace memory` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemoryBy {
    /// Kind of copy or set.
    Copy,
    /// Kind and size, in powers of two.
    Size,
    /// Device: its peak, and the operator that reached it.
    Peak,
    /// One row per operator that allocated
    Op,
    /// One row per allocation or free
    Point,
}

/// What a row of `trace steps` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StepsBy {
    /// One row per step
    Step,
    /// Rank: how steps are distributed.
    Rank,
}

/// What a row of `trace collectives` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CollectivesBy {
    /// One row per collective
    Collective,
    /// One row per collective and rank
    Rank,
}

/// What a row of `trace stragglers` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StragglersBy {
    /// One row per rank
    Rank,
    /// Collective, and why its last rank was late.
    Collective,
}

/// Rows of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PathBy {
    /// Category of time, per rank.
    Category,
    /// Name of what is on the path.
    Name,
    /// Piece of the job's path, in order; with one --rank, of that rank's.
    Segment,
}

/// How severe a finding must be to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// A saving of 15 % of a step.
    Critical,
    /// Findings that save at least 5 %
    High,
    /// Findings that save at least 1 %
    Medium,
    /// Any finding at all
    Info,
}

/// Formats of a converted trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConvertTo {
    /// The JSON of PyTorch's Kineto
    Kineto,
    /// Perfetto's TrackEvent format, protobuf
    Perfetto,
    /// Parquet tables in a folder.
    Parquet,
}

impl ConvertTo {
    /// Whether a conversion with `--to` and `--output` writes tables.
    pub fn is_parquet(to: Option<Self>, out: &Path) -> bool {
        match to {
            Some(to) => to == Self::Parquet,
            None => out.extension().is_some_and(|extension| extension == "parquet"),
        }
    }
}
