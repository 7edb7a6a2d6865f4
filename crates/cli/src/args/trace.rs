//! The command line of `rowmill trace`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use setup::args::{Selection, WindowChoice};

/// Options of `rowmill trace`, which analyzes traces of PyTorch's profiler or of rowmill's own
/// runs.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  rowmill trace trace.json.gz                      a summary: where the time goes
  rowmill trace breakdown traces/ --format csv     one row per rank of a job
  rowmill trace findings job/                      causes of wasted time, and what a step would gain
  rowmill trace critical-path trace.json --what-if 'kernel=~gemm x0.5'
  zcat trace.json.gz | rowmill trace kernels - --format json

PATH is a Kineto trace (.json, .json.gz or .json.zst), an archive of them (.tar, .tar.gz or .tgz), a folder
of them, `-` for standard input, or a .pftrace that rowmill trace convert or merge wrote. All traces
together are the ranks of one job. Times in machine-readable output are integer nanoseconds (`…_ns`).")]
pub struct Trace {
    /// The table to print. `None` prints the summary of the job.
    #[command(subcommand)]
    pub verb: Option<TraceVerb>,
    #[command(flatten)]
    pub selection: Selection,
}

impl Trace {
    /// Whether the command prints a table, which can also be written as CSV, Markdown or Parquet.
    pub fn has_rows(&self) -> bool {
        use TraceVerb::{Convert, Merge, Report, Serve};
        let has_none = |verb: &TraceVerb| {
            matches!(verb, Merge { .. } | Convert { .. } | Report { .. } | Serve { .. })
        };
        self.verb.as_ref().is_some_and(|verb| !has_none(verb))
    }

    /// Whether the command prints findings, which can also be written as SARIF.
    pub fn is_findings(&self) -> bool {
        matches!(self.verb, Some(TraceVerb::Findings { .. }))
    }
}

/// Options that select the content of an HTML report.
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
    /// Steps on the timeline: the first N, or the steps A..B by number, excluding B [default: as
    /// many as fit into 200,000 events]
    #[arg(long, value_name = "N|A..B", value_parser = timeline_steps)]
    pub steps: Option<report::TimelineSteps>,
    /// Title of the page [default: the name of the first path]
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
}

/// Parses a number of steps, or a range of step numbers.
fn timeline_steps(text: &str) -> Result<report::TimelineSteps, String> {
    if let Ok(count @ 1..) = text.parse() {
        return Ok(report::TimelineSteps::First(count));
    }
    let number = |part: &str| part.trim().parse::<i64>().ok();
    let range = text.split_once("..").and_then(|(a, b)| Some(number(a)?..number(b)?));
    let range = range.filter(|range| !range.is_empty());
    range.map(report::TimelineSteps::Numbered).ok_or_else(|| {
        "expected a number of steps, or a range of step numbers such as 40..43".to_owned()
    })
}

/// The verbs of `rowmill trace`, each of which prints a table or writes a file.
#[derive(Debug, Subcommand)]
pub enum TraceVerb {
    /// Print where the time of the window goes: compute, communication, memory, idle
    #[command(after_help = "\
Examples:
  rowmill trace breakdown trace.json.gz
  rowmill trace breakdown job/ --by device --format csv
  rowmill trace breakdown trace.json.gz --window hta --classify hta --format json")]
    Breakdown {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes
        #[arg(long, value_enum, default_value_t = BreakdownBy::Rank)]
        by: BreakdownBy,
    },
    /// Print idle time by cause: what the host did while the device was idle
    #[command(after_help = "\
Examples:
  rowmill trace idle trace.json.gz                 causes per device, which sum to its idle time
  rowmill trace idle trace.json.gz --by stream     host_wait, kernel_wait, other
  rowmill trace idle trace.json.gz --by op         the operators the device waited for")]
    Idle {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes
        #[arg(long, value_enum, default_value_t = IdleBy::Device)]
        by: IdleBy,
        /// Longest gap in nanoseconds that counts as kernel_wait if the kernel behind it was
        /// launched in time
        #[arg(long, value_name = "NS", default_value_t = 30_000)]
        kernel_wait_ns: i64,
    },
    /// Print kernels, copies and sets by name: time, count, distribution
    #[command(after_help = "\
Examples:
  rowmill trace kernels trace.json.gz --top 5
  rowmill trace kernels job/ --format parquet --output kernels.parquet")]
    Kernels {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes
        #[arg(long, value_enum, default_value_t = KernelsBy::Name)]
        by: KernelsBy,
    },
    /// Print operators by name: host time, and device time of the work they launched
    #[command(after_help = "\
Examples:
  rowmill trace ops trace.json.gz
  rowmill trace ops trace.json.gz --by annotation
  rowmill trace ops trace.json.gz --by sequence    runs of kernels that one operator launches")]
    Ops {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes
        #[arg(long, value_enum, default_value_t = OpsBy::Name)]
        by: OpsBy,
        /// With --by sequence: only operators whose name contains this text [default: the outermost
        /// operators]
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        operator: String,
        /// With --by sequence: smallest number of kernels in a sequence
        #[arg(long, value_name = "N", default_value_t = 3)]
        kernels_min: usize,
    },
    /// Print how long classes of work ran at the same time
    #[command(after_help = "Example:\n  rowmill trace overlap trace.json.gz")]
    Overlap {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes, in addition to a set of classes that ran together
        #[arg(long, value_enum, default_value_t = BreakdownBy::Rank)]
        by: BreakdownBy,
    },
    /// Print launches: host time, delay until the device starts, work per launch
    #[command(after_help = "\
Examples:
  rowmill trace launches trace.json.gz
  rowmill trace launches trace.json.gz --by launch --format csv")]
    Launches {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes
        #[arg(long, value_enum, default_value_t = LaunchesBy::Call)]
        by: LaunchesBy,
    },
    /// Print the queue of each stream over time: work that was launched but has not started
    #[command(after_help = "\
Examples:
  rowmill trace queue trace.json.gz
  rowmill trace queue trace.json.gz --by point --format csv")]
    Queue {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes
        #[arg(long, value_enum, default_value_t = QueueBy::Stream)]
        by: QueueBy,
    },
    /// Print bytes and bandwidth of copies and sets, or with --by peak the memory in use
    #[command(after_help = "\
Examples:
  rowmill trace memory trace.json.gz
  rowmill trace memory trace.json.gz --by peak")]
    Memory {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes
        #[arg(long, value_enum, default_value_t = MemoryBy::Copy)]
        by: MemoryBy,
    },
    /// Print the host time, device time, idle time and exposed communication of each step
    #[command(after_help = "\
Examples:
  rowmill trace steps trace.json.gz
  rowmill trace steps job/ --by rank               the distribution of step times")]
    Steps {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes
        #[arg(long, value_enum, default_value_t = StepsBy::Step)]
        by: StepsBy,
    },
    /// Print collectives, matched across ranks: arrival, wait, transfer, bus bandwidth
    #[command(after_help = "\
Examples:
  rowmill trace collectives job/
  rowmill trace collectives job/ --by rank --format csv")]
    Collectives {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes
        #[arg(long, value_enum, default_value_t = CollectivesBy::Collective)]
        by: CollectivesBy,
    },
    /// Print the ranks that others waited for, for how long, and why they were late
    #[command(after_help = "\
Examples:
  rowmill trace stragglers job/
  rowmill trace stragglers job/ --by collective")]
    Stragglers {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes
        #[arg(long, value_enum, default_value_t = StragglersBy::Rank)]
        by: StragglersBy,
    },
    /// Print the critical path: the chain of work that determines how long the window takes
    #[command(after_help = "\
Examples:
  rowmill trace critical-path job/
  rowmill trace critical-path trace.json.gz --by name --top 10
  rowmill trace critical-path trace.json.gz --what-if 'kernel=~gemm x0.5' --what-if 'op=aten::copy_ x0'
  rowmill trace critical-path trace.json.gz --what-if 'name=cudaStreamSynchronize unblock'")]
    CriticalPath {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes [default: category; with --what-if: window]
        #[arg(long, value_enum)]
        by: Option<PathBy>,
        /// Change the matching work and recompute the window. EDIT is one or more KEY=NAME or
        /// KEY=~PATTERN, followed by a change. KEY is kernel, op, name, class, category or rank.
        /// The change is xFACTOR, to=50us, unblock (calls no longer wait for the device, and
        /// fetches no longer for loader threads), overlap, close-gap, or earlier=2ms (arrival at a
        /// collective). Prints the windows before and after, or with --by category their parts
        #[arg(long, value_name = "EDIT")]
        what_if: Vec<String>,
    },
    /// List causes of wasted time, with evidence, remedy and the time a step would gain
    #[command(after_help = "\
Examples:
  rowmill trace findings job/
  rowmill trace findings trace.json.gz --fail-on high --format sarif --output findings.sarif
  rowmill trace findings job/ --rules rules.toml
  rowmill trace findings job/ --write-edit K10 --output k10.toml    then what its remedy would gain:
  rowmill predict what-if job/ --edits k10.toml

rules.toml changes limits of rules, suppresses known findings and adds rules on columns of other tables:
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

`rowmill explain RULE` lists the limits of a rule. With --fail-on, the exit code is 4 if parts of the
recording are missing, or else 3 if a finding is at least as severe.")]
    Findings {
        #[command(flatten)]
        selection: Selection,
        /// Exit with code 3 if a finding is at least this severe, or with 4 if parts of the
        /// recording are missing
        #[arg(long, value_enum, value_name = "SEVERITY")]
        fail_on: Option<FailOn>,
        /// A TOML file with limits, suppressions and your own rules
        #[arg(long, value_name = "FILE")]
        rules: Option<PathBuf>,
        /// Write the edits of this rule's remedy, which rowmill predict what-if takes, instead of
        /// the findings
        #[arg(long, value_name = "RULE", conflicts_with = "fail_on")]
        write_edit: Option<String>,
    },
    /// Compare two recordings of a job: what changed, and how much of the difference it explains
    #[command(after_help = "\
Examples:
  rowmill trace diff before.json.gz after.json.gz
  rowmill trace diff before/ after/ --by path --top 30      two jobs, every rank in a folder
  rowmill trace diff before.json after.json --by kernel --format csv
  rowmill trace diff before/ after/ --report diff.html      one file to share, needs no network

Give two PATHs, each with one recording: a file, or a folder or archive with all ranks. The first line
is the verdict: by how much a step became slower or faster, and why. Times are means over all steps and
ranks, or of whole windows if a recording has no whole steps or --window is all. A change within twice
the standard error of the steps is noise.")]
    Diff {
        #[command(flatten)]
        selection: Selection,
        /// What each row describes [default: a page with the verdict and the largest changes]
        #[arg(long, value_enum)]
        by: Option<DiffBy>,
        /// Write an HTML report of the comparison: verdict, step times, changes, and one step of
        /// each recording on a timeline
        #[arg(long, value_name = "FILE", conflicts_with_all = ["by", "output", "top"])]
        report: Option<PathBuf>,
    },
    /// Merge the ranks of a job into one timeline, with their clocks aligned
    #[command(after_help = "\
Examples:
  rowmill trace merge job/ -o merged.json.gz
  rowmill trace merge job/ -o merged.pftrace    for ui.perfetto.dev")]
    Merge {
        /// Traces: files, archives, folders, or `-` for standard input
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// The file to write: .json, .json.gz, .json.zst, .pftrace or .pftrace.gz
        #[arg(short, long = "output", alias = "out", value_name = "FILE")]
        out: PathBuf,
        /// Merge only these ranks
        #[arg(long = "rank", value_name = "N")]
        ranks: Vec<u32>,
        /// Do not align the clocks of the ranks
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
        /// The file to write; with --to parquet, the folder to write
        #[arg(short, long = "output", alias = "out", value_name = "PATH")]
        out: PathBuf,
        /// Convert only these ranks
        #[arg(long = "rank", value_name = "N")]
        ranks: Vec<u32>,
        /// The format of the output [default: the format that the name of --output implies]
        #[arg(long, value_enum)]
        to: Option<ConvertTo>,
    },
    /// Check whether a trace can be trusted, and recommend what to do about missing or broken parts
    #[command(after_help = "\
Example:
  rowmill trace doctor trace.json.gz

Exits with code 1 if a defect makes the figures wrong, and with 4 if parts of the recording are missing.")]
    Doctor {
        #[command(flatten)]
        selection: Selection,
    },
    /// Write one HTML file: summary, tables, collectives, critical path, a zoomable timeline
    #[command(after_help = "\
Examples:
  rowmill trace report job/                        writes ./report.html
  rowmill trace report trace.json.gz -o run7.html --steps 2
  rowmill trace report trace.json.gz --steps 40..43

The file needs no network and no server. Its timeline shows the first steps of all ranks, as many as fit
into 200,000 events, unless --steps selects others.")]
    Report {
        #[command(flatten)]
        content: ReportContent,
        /// The file to write
        #[arg(short, long, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Serve the report to your browser, with a button that opens the trace in ui.perfetto.dev
    #[command(after_help = "\
Example:
  rowmill trace serve job/                         prints the address to open

Only programs on this machine can reach the server, and only with the secret in its address. The trace
is handed to ui.perfetto.dev within your browser; it is not uploaded.")]
    Serve {
        #[command(flatten)]
        content: ReportContent,
        /// The port on the loopback address [default: a free port]
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        port: u16,
    },
    /// Describe execution traces (.json, Chakra .et), and with --kineto their links to a timeline
    #[command(after_help = "\
Examples:
  rowmill trace execution-trace execution_trace.json
  rowmill trace execution-trace et/ --kineto traces/     share of linked nodes per rank")]
    ExecutionTrace {
        /// Execution traces: files, archives or folders
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Kineto traces of the same run, with which the execution traces are linked
        #[arg(long, value_name = "PATH")]
        kineto: Vec<PathBuf>,
        /// Write to FILE instead of stdout
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// The subject of a row of `trace breakdown` and `trace overlap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BreakdownBy {
    /// One row per rank, over all its devices
    Rank,
    /// One row per device
    Device,
}

/// The subject of a row of `trace idle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IdleBy {
    /// One row per device and cause; a device is idle while none of its streams is busy
    Device,
    /// One row per stream and cause; other streams may be busy at the same time
    Stream,
    /// One row per operator that launched the work after a gap
    Op,
    /// One row per gap of a device
    Gap,
}

/// The subject of a row of `trace diff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiffBy {
    /// One row per part of the step: compute, exposed communication, idle …
    Part,
    /// Device time of each kernel with its grid and block, or of a copy or set with its bytes
    Kernel,
    /// Device time of the work that each operator launched itself
    Operator,
    /// Device time of the work that each operator launched itself, per place in the call tree
    Path,
    /// Host time of each operator, without the operators it called
    Host,
    /// Host time of each call of the runtime or driver
    Call,
}

/// The subject of a row of `trace kernels`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KernelsBy {
    /// One row per name
    Name,
    /// One row per name and range of durations or bytes between two powers of two
    Histogram,
}

/// The subject of a row of `trace ops`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OpsBy {
    /// One row per operator, by name
    Name,
    /// One row per annotation
    Annotation,
    /// One row per sequence of kernels
    Sequence,
    /// One row per method by which device work was attributed to operators
    Attribution,
}

/// The subject of a row of `trace launches`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LaunchesBy {
    /// One row per rank, with counts and sums
    Rank,
    /// One row per call of the runtime or driver, by name
    Call,
    /// One row per kernel, by name
    Kernel,
    /// One row per launch
    Launch,
}

/// The subject of a row of `trace queue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueBy {
    /// One row per stream
    Stream,
    /// One row per change of a queue's length
    Point,
}

/// The subject of a row of `trace memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemoryBy {
    /// One row per kind of copy or set
    Copy,
    /// One row per kind of copy or set, and range of sizes between two powers of two
    Size,
    /// One row per device, with its peak memory and the operator that reached it
    Peak,
    /// One row per operator that allocated memory
    Op,
    /// One row per allocation or free
    Point,
}

/// The subject of a row of `trace steps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StepsBy {
    /// One row per step
    Step,
    /// One row per rank, with the distribution of its steps
    Rank,
}

/// The subject of a row of `trace collectives`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CollectivesBy {
    /// One row per collective
    Collective,
    /// One row per collective and rank
    Rank,
}

/// The subject of a row of `trace stragglers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StragglersBy {
    /// One row per rank
    Rank,
    /// One row per collective, with the reason why its last rank was late
    Collective,
}

/// The subject of a row of `trace critical-path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PathBy {
    /// One row per category of time and rank
    Category,
    /// One row per name of the work on the path
    Name,
    /// One row per segment of the path in order: of the job's path, or with one --rank of that
    /// rank's path
    Segment,
}

/// The severity from which a finding makes the command fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Findings that save at least 15 % of a step
    Critical,
    /// Findings that save at least 5 % of a step
    High,
    /// Findings that save at least 1 % of a step
    Medium,
    /// All findings, whatever they save
    Info,
}

/// The format of a converted trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConvertTo {
    /// The JSON format of PyTorch's profiler, Kineto
    Kineto,
    /// Perfetto's TrackEvent format, encoded as protobuf
    Perfetto,
    /// Parquet tables in a folder
    Parquet,
}

impl ConvertTo {
    /// Whether a conversion with these values of `--to` and `--output` writes Parquet tables.
    pub fn is_parquet(to: Option<Self>, out: &Path) -> bool {
        match to {
            Some(to) => to == Self::Parquet,
            None => out.extension().is_some_and(|extension| extension == "parquet"),
        }
    }
}
