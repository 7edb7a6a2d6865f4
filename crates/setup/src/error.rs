//! Everything a command can fail with, and the exit code. The rooms say what, where, expected and
//! got; `hint` knows which option helps.

use std::io;
use std::path::PathBuf;

use device::cuda::DriverError;
use schema::proposal::ProposalError;
use schema::unit::counted;
use schema::{Bytes, ConfigError};
use train::memory::MemoryMoment;

use crate::args::DeviceName;
use crate::machine::memory::Available;
use crate::memory_offer::{Offer, largest};

mod hint;

/// Exit code of a run stopped by Ctrl-C after saving.
pub const EXIT_INTERRUPTED: u8 = 130;
pub const EXIT_FAILED: u8 = 1;
const EXIT_USAGE: u8 = 2;
/// Exit code of `--fail-on`.
pub const EXIT_FOUND: u8 = 3;
/// Exit code of `findings --fail-on` and `doctor` where parts of the recording are missing.
pub const EXIT_BROKEN: u8 = 4;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system gives no thread.
    #[error("cannot start the thread of {what}: {source}")]
    Thread { what: &'static str, source: io::Error },
    /// No secret for the agents of other hosts.
    #[error("no token for the agents of other hosts")]
    NoToken,
    /// A file that should hold the secret and holds nothing.
    #[error("{}: expected the secret that the agents know, got an empty file", path.display())]
    EmptyToken { path: PathBuf },
    /// A file without any certificate.
    #[error("{}: expected certificates in PEM, got none", path.display())]
    NoCertificate { path: PathBuf },
    /// A program of the scheduler cannot be run.
    #[error("cannot run {program}: {source}")]
    Program { program: &'static str, source: io::Error },
    /// The scheduler knows no hosts of a job.
    #[error("Slurm job {job}: expected hosts from squeue and scontrol, got {said}")]
    Slurm { job: i64, said: String },
    /// No process of the hosts is chosen.
    #[error(
        "{selection}: expected a process that polls for traces, got none; polling now: {there}"
    )]
    NoProcess { selection: String, there: String },
    /// No host has taken an order to trace.
    #[error("no trace was begun: {problems}")]
    NoOrder { problems: String },
    /// A report is of one job.
    #[error("expected processes of one job, got several: {there}")]
    ManyJobs { there: String },
    /// A job has each rank once.
    #[error(
        "expected each rank of the job once, got rank {rank} of processes {first} and {second}"
    )]
    SameRank { rank: u32, first: u32, second: u32 },
    /// Two addresses of one machine.
    #[error(
        "expected different hosts, got {first} and {second}: the same processes answer at both"
    )]
    SameHost { first: String, second: String },
    /// A device that is not there, or without its compiler.
    #[error("--device {name}: {source}; `rowmill doctor device` lists what there is")]
    NoDevice { name: DeviceName, source: Box<DriverError> },
    /// A launcher that knows no MPI.
    #[error("torchrun started {size} processes, which know nothing of each other without MPI")]
    Torchrun { size: u32 },
    #[error("MPI: no library can be used:{}", tried.iter().map(|error| format!("\n  {error}")).collect::<String>())]
    NoMpi { tried: Vec<comm::mpi::OpenError> },
    /// MPI does not start, or not end.
    #[error("{library}: {problem}")]
    MpiStart { library: String, problem: String },
    /// The launcher is not that of the library.
    #[error(
        "{} started {} processes, but {library} knows of {size}: it is not the launcher's own",
        launcher.kind.name(), launcher.size
    )]
    OtherLauncher { launcher: comm::mpi::Launcher, library: String, size: u32 },
    /// A plan for another number of ranks.
    #[error("expected {started} ranks, one for each process that was started, got {asked}")]
    OtherRanks { asked: u32, started: u32 },
    /// An option for several ranks beside one.
    #[error("the option '--{option}' applies only to several ranks, got 1")]
    OneRank { option: &'static str },
    /// What one of several ranks met.
    #[error("rank {rank} on {host}: {source}{peer}")]
    OnRank {
        rank: u32,
        host: String,
        /// Where the rank runs that `source` names, as it follows the text.
        peer: String,
        source: Box<Self>,
    },
    /// The processes have been used already: a defect.
    #[error("the communicator of all processes is in use")]
    NoProcesses,
    /// No file and no ready-made configuration of this name.
    #[error("configuration {name:?}: no such file, and no ready-made configuration of that name")]
    UnknownConfig { name: String, known: Vec<&'static str> },
    /// The configuration is wrong.
    #[error("configuration {origin}: {source}")]
    Config { origin: String, source: Box<ConfigError> },
    /// The run takes more memory than there is.
    #[error(
        "{config}: expected a run of at most {} ({}), got one of {} while {}: {}",
        available.bytes, available.limit, peak.total, peak.when.name(), largest(peak)
    )]
    Memory { config: String, peak: Box<MemoryMoment>, available: Available, offer: Offer },
    /// The run takes more of a device's memory than is free there.
    #[error(
        "{config}: expected a run of at most {} free of {} on {name}, got one of {}: {}",
        room[0], room[1], peak.total, largest(peak)
    )]
    DeviceMemory {
        config: String,
        name: DeviceName,
        peak: Box<MemoryMoment>,
        /// Free, and in all.
        room: [Bytes; 2],
        offer: Offer,
    },
    /// Made-up tables that do not fit.
    #[error("the tables and their optimizer state need {needed}, got {available} of memory")]
    BenchMemory { needed: Bytes, available: Bytes },
    /// The disk is too full.
    #[error("{}: expected {needed} of free disk space, got {available}", folder.display())]
    Disk { folder: PathBuf, needed: Bytes, available: Bytes },
    /// The disk of temporary files is too full.
    #[error("{}: expected {needed} of free disk space, got {available}", folder.display())]
    BenchDisk { folder: PathBuf, needed: Bytes, available: Bytes },
    /// Nothing to train on.
    #[error("configuration {config} names no training data")]
    NoData { config: String },
    /// Data where a configuration is expected.
    #[error("{}: expected a configuration in TOML, got what looks like data", path.display())]
    NotAConfig { path: PathBuf },
    /// A configuration that is there already.
    #[error("{}: the configuration exists already", path.display())]
    ConfigExists { path: PathBuf },
    /// A stream that would have to be read several times.
    #[error("standard input: expected files, which init reads more than once")]
    InitOfStream,
    /// A folder of prepared rows where files are expected.
    #[error("{}: expected files, got data that is already prepared", path.display())]
    InitOfPrepared { path: PathBuf },
    /// Files that no configuration can be made for.
    #[error("{files}: {source}")]
    NoProposal { files: String, source: ProposalError },
    /// A key that no configuration has.
    #[error("key {key:?}: no such key of a configuration")]
    NoSuchKey { key: String, near: Vec<String> },
    /// Tables that only prepared data can size.
    #[error("model.tables: {doing} needs numbers of rows, got rows = \"auto\" for {tables}")]
    RowsUnknown { doing: &'static str, tables: String },
    /// A run that does not know how it was started.
    #[error("{}: expected a run with checkpoints or run.json, found neither", run.display())]
    NothingToResume { run: PathBuf },
    /// A folder that does not belong to a run, or to one that has logged nothing.
    #[error("{}: expected a run folder with metrics.jsonl", run.display())]
    NoMetrics { run: PathBuf },
    /// A resumption that does not say of what.
    #[error("--resume: expected the run's folder or the configuration, got neither")]
    ResumeOfNothing,
    /// A run that multiplied pairs of bf16 is resumed on a CPU that cannot.
    #[error(
        "{}: this run multiplies bf16 by VDPBF16PS, expected a CPU that has it, got one without: \
         other arithmetic would give other bytes", run.display()
    )]
    OtherArithmetic { run: PathBuf },
    /// A folder that holds something else.
    #[error("{}: the folder exists and is not a quickstart's", folder.display())]
    ForeignFolder { folder: PathBuf },
    /// Several prepared folders, or a mix of folders and files.
    #[error("{}: expected files or one prepared folder, got {count} paths with folders among them", path.display())]
    MixedInputs { path: PathBuf, count: usize },
    /// An input that does not exist.
    #[error("{}: no such file or folder", path.display())]
    NoSuchInput { path: PathBuf },
    /// Rows to train on that nothing can be learned from.
    #[error(
        "all {rows} training rows have the label {label}: under any loss nothing can be learned from \
         them (prepared in {})", folder.display()
    )]
    OneLabel { rows: u64, label: f32, positive: Vec<String>, folder: PathBuf },
    /// Nothing is left to evaluate on.
    #[error("no held-out data: data.hold_out is 0 and no evaluation files were given")]
    NoEvaluation,
    /// The run folder is in use.
    #[error("{}: the run already has checkpoints, the newest is {newest}", run.display())]
    RunExists { run: PathBuf, newest: String },
    /// No checkpoint where one is needed.
    #[error("{}: expected a checkpoint or a run with checkpoints, found none", path.display())]
    NoCheckpoint { path: PathBuf },
    /// Every checkpoint of a run is damaged.
    #[error("{}: expected a whole checkpoint, found {count} damaged", path.display())]
    NoneWhole { path: PathBuf, count: usize },
    /// The path to resume from is a checkpoint of another run, or none.
    #[error("{}: expected a checkpoint of the run {}, which has {}", path.display(), run.display(), listed(names))]
    NotOfRun { path: PathBuf, run: PathBuf, names: Vec<String> },
    /// An imported checkpoint that has seen no data.
    #[error("{}: the checkpoint has weights, but no transforms of its standardised columns or exact ids", path.display())]
    NoTransforms { path: PathBuf },
    /// A checkpoint of a run, given where a run's newest is damaged.
    #[error("{}: the newest checkpoint is damaged: {reason}", path.display())]
    DamagedCheckpoint { path: PathBuf, reason: String, previous: Option<PathBuf> },
    /// Some of several checkpoints failed verification.
    #[error("{damaged} of {} damaged", counted(*count as u64, "checkpoint"))]
    Damaged { damaged: usize, count: usize },
    /// Lines without a row, so that unreadable rows have no known place among the others.
    #[error("{}: expected one row per line, got empty lines or rows of several lines ({} scored)", path.display(), counted(*rows, "row"))]
    Alignment { path: PathBuf, rows: u64 },
    /// Rows that the model gives no probability for.
    #[error(
        "{}: {count} of {}: expected a probability, got NaN: line {}",
        path.display(), counted(*rows, "row"), lines(first)
    )]
    NotScored { path: PathBuf, count: u64, rows: u64, first: Vec<u64> },
    /// A plan that is not JSON of the expected form.
    #[error("{}: {source}", path.display())]
    PlanFile { path: PathBuf, source: serde_json::Error },
    /// A plan whose tiles do not cover each table exactly once.
    #[error("{}: {source}", path.display())]
    Plan { path: PathBuf, source: Box<schema::plan::PlanError> },
    /// A folder or file stands where a new one is to be written.
    #[error("{}: already exists", path.display())]
    Exists { path: PathBuf },
    /// A file that would be written while it is read.
    #[error("{}: the output would overwrite the input", path.display())]
    OutputIsInput { path: PathBuf },
    /// A folder where a file is to be written.
    #[error("{}: expected the name of a file to write, got a folder", path.display())]
    OutputIsFolder { path: PathBuf },
    /// A pipe or a device where a regular file is to be written.
    #[error("{}: expected the name of a regular file to write, got a pipe or a device", path.display())]
    OutputIsSpecial { path: PathBuf },
    /// The folder of an output is missing.
    #[error("{}: cannot be written, because {} does not exist", path.display(), folder.display())]
    NoOutputFolder { path: PathBuf, folder: PathBuf },
    /// A file where the folder of an output is expected.
    #[error("{}: cannot be written, because {} is a file, not a folder", path.display(), file.display())]
    OutputBelowFile { path: PathBuf, file: PathBuf },
    /// A file could not be used.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
    /// Parquet on a terminal or in a pipe.
    #[error("--format parquet writes a file, got no --output")]
    ParquetToStdout,
    /// A report that cannot be printed as a table.
    #[error("this command prints a report, no rows: expected --format table or json")]
    NoTable,
    /// SARIF of what finds nothing.
    #[error("--format sarif: expected rowmill trace findings, which alone has results to report")]
    NoSarif,
    /// A rule that does not exist.
    #[error("rule {rule:?}: no such rule")]
    NoSuchRule { rule: String },
    /// A file of rules that is not TOML of the expected form.
    #[error("{}: {reason}", path.display())]
    RulesFile { path: PathBuf, reason: String },
    /// A class of kernels given as something else.
    #[error(
        "--class {given:?}: expected CLASS=PATTERN, CLASS one of compute, communication, memory, other"
    )]
    ClassPattern { given: String },
    /// Ranks that the traces do not have.
    #[error("--rank {rank}: the traces have the ranks {known}")]
    NoSuchRank { rank: u32, known: String },
    /// Not two recordings to compare.
    #[error(
        "expected two recordings, BEFORE and AFTER, each a file, or a folder or an archive with all its ranks; got {got}"
    )]
    TwoRecordings { got: usize },
    /// A measurement in a process of its own that failed.
    #[error("the measurement failed: {said}")]
    Measurement { said: String },
    /// A file whose name says no format.
    #[error("{}: expected a name that ends in .json, .pftrace, .gz or .zst behind them", path.display())]
    UnknownFormat { path: PathBuf },
    /// A table that a what-if does not have.
    #[error("--what-if: expected --by category or none")]
    WhatIfTable,
    /// A file for one rank, requested for several.
    #[error("{paths}: expected one trace, got {}", counted(*ranks as u64, "rank"))]
    SeveralRanks { paths: String, ranks: usize },
    /// The reader of our output went away.
    #[error("standard output: {0}")]
    Output(io::Error),
    /// A value could not be written as JSON.
    #[error("cannot write JSON: {0}")]
    Json(serde_json::Error),
    /// An operation was called wrongly.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// Reading or preparing data failed.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// Reading or writing a trace failed.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// An analysis was requested wrongly.
    #[error(transparent)]
    Analyze(#[from] analyze::Error),
    /// No server could be started, or it ended.
    #[error("cannot serve on 127.0.0.1:{port}: {source}")]
    Serve { port: u16, source: io::Error },
    /// No socket that processes could ask.
    #[error(transparent)]
    Socket(#[from] fleet::ipc::socket::SocketError),
    /// A process that is not there.
    #[error("--pid {pid}: no such process")]
    NoSuchProcess { pid: u32 },
    #[error("{place}: expected {} to ask within {seconds} s, got {got}", counted(*wanted as u64, "process"))]
    NobodyAsked { place: String, seconds: u64, wanted: usize, got: usize },
    /// A report could not be made.
    #[error(transparent)]
    Report(#[from] report::Error),
    /// Nothing can be predicted.
    #[error(transparent)]
    Predict(#[from] predict::Error),
    /// A file that holds no edits.
    #[error("{}: {source}", path.display())]
    EditsFile { path: PathBuf, source: Box<toml::de::Error> },
    /// An edit that cannot be made.
    #[error("{}: {source}", path.display())]
    Edits { path: PathBuf, source: Box<predict::Error> },
    /// Recordings of which one has ranks that the other lacks.
    #[error("--measured: expected traces of rank {rank}, got none")]
    NotMeasured { rank: u32 },
    /// A file that is not a calibration of this version.
    #[error("{}: {source}", path.display())]
    CalibrationFile { path: PathBuf, source: Box<predict::Error> },
    /// An execution trace that no step can be predicted from.
    #[error("{origin}: {source}")]
    ExecutionTrace { origin: String, source: Box<predict::Error> },
    /// A table of measurements from which no model can be trained, or a file that is not a kernel
    /// model.
    #[error("{}: {source}", path.display())]
    Kernels { path: PathBuf, source: kernel_model::Error },
    /// A kernel that cannot be priced.
    #[error(transparent)]
    Kernel(#[from] kernel_model::Error),
    /// Sizes of a kernel that are no numbers.
    #[error("{text:?}: expected an operation and its sizes, such as \"linear 512 1024 1024\"")]
    WorkSizes { text: String },
    /// A calibration of another machine.
    #[error("{}: expected a calibration of {expected}, got one of {got}", path.display())]
    OtherMachine { path: PathBuf, expected: String, got: String },
    /// A run of `rowmill tune` that failed.
    #[error("{run}: {said}")]
    Tune { run: String, said: String },
    /// The command line of an earlier version.
    #[error("rowmill {was}: no such command any more")]
    MovedCommand { was: &'static str, now: String },
    /// A step that was not recorded.
    #[error("step {step}: expected one of 0..{count}, those that all ranks recorded")]
    NoSuchStep { step: usize, count: usize },
    /// Training, scoring or a checkpoint failed.
    #[error(transparent)]
    Train(#[from] train::Error),
}

impl Error {
    /// An [`Error::Io`] for `map_err`.
    pub fn io(path: impl Into<PathBuf>, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, doing, source }
    }

    /// The exit code of the process: 2 where the command line or the configuration is wrong.
    pub fn exit_code(&self) -> u8 {
        match self {
            #[rustfmt::skip]
            Self::NoDevice { .. } | Self::OtherRanks { .. } | Self::OneRank { .. } |
            Self::MovedCommand { .. } | Self::Torchrun { .. } | Self::NoMpi { .. } |
            Self::OtherLauncher { .. } | Self::Train(train::Error::OtherRequest { .. } |
            train::Error::NotShared { .. }) | Self::UnknownConfig { .. } | Self::Config { .. } |
            Self::Memory { .. } | Self::DeviceMemory { .. } | Self::NoData { .. } |
            Self::NotAConfig { .. } | Self::ConfigExists { .. } | Self::InitOfStream |
            Self::InitOfPrepared { .. } | Self::NoProposal { .. } | Self::NoSuchKey { .. } |
            Self::RowsUnknown { .. } | Self::NothingToResume { .. } | Self::NoMetrics { .. } |
            Self::ResumeOfNothing | Self::OtherArithmetic { .. } | Self::ForeignFolder { .. } |
            Self::MixedInputs { .. } | Self::NoSuchInput { .. } | Self::NoEvaluation |
            Self::NotOfRun { .. } | Self::NoTransforms { .. } | Self::RunExists { .. } |
            Self::PlanFile { .. } | Self::Plan { .. } | Self::OutputIsInput { .. } |
            Self::ParquetToStdout | Self::NoTable | Self::NoSarif | Self::NoSuchRule { .. } |
            Self::RulesFile { .. } | Self::ClassPattern { .. } | Self::NoSuchRank { .. } |
            Self::TwoRecordings { .. } | Self::SeveralRanks { .. } | Self::UnknownFormat { .. } |
            Self::WhatIfTable | Self::NoSuchProcess { .. } | Self::Analyze(_) | Self::Predict(_) |
            Self::CalibrationFile { .. } | Self::ExecutionTrace { .. } | Self::Kernels { .. } |
            Self::Kernel(_) | Self::WorkSizes { .. } | Self::EditsFile { .. } | Self::Edits { .. }
            | Self::NotMeasured { .. } | Self::OtherMachine { .. } | Self::NoSuchStep { .. } |
            Self::NoToken | Self::EmptyToken { .. } | Self::NoCertificate { .. } |
            Self::Report(report::Error::NoSuchStep { .. }) | Self::Exists { .. } => EXIT_USAGE,
            Self::OnRank { source, .. } => source.exit_code(),
            Self::Data(data::Error::Open { source, .. })
                if data::RemoteProblem::find_in(source).is_some_and(is_misnamed) =>
            {
                EXIT_USAGE
            }
            _ => EXIT_FAILED,
        }
    }

    /// Whether the reader of our output closed it (`rowmill … | head`), no failure of ours.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Whether an object on a network is not what the user meant, rather than out of reach.
fn is_misnamed(problem: &data::RemoteProblem) -> bool {
    use data::RemoteProblem as P;
    matches!(problem, P::Address { .. } | P::NotFound { .. } | P::Denied { .. } | P::Credentials(_))
}

/// What became of an output whose exit code says something of its own: a reader who closes it early
/// changes nothing.
pub fn unless_closed(output: Result<(), Error>) -> Result<(), Error> {
    match output {
        Err(error) if error.is_closed_output() => Ok(()),
        other => other,
    }
}

fn lines(first: &[u64]) -> String {
    first.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
