//! Errors of commands whose request is valid, but whose work the machine, a process or a file
//! prevented. These errors end the process with exit code 1. Mistakes of the user are in
//! [`super::usage`].

use std::io;
use std::path::PathBuf;

use fleet::ipc::socket::SocketError;
use schema::Bytes;
use schema::unit::counted;

use super::define::errors_with_hints;
use super::library_hint::{self, suggest_for_disk};

errors_with_hints! {
    /// Cause that prevented a command from doing its work.
    pub enum RunError {
        /// Ctrl-C ended the command before it had a result.
        #[error("interrupted before there was a result")]
        Interrupted,
        // Errors of files and outputs.
        #[error("{}: cannot {doing}: {source}", path.display())]
        #[hint(suggest_for_disk(source))]
        Io { path: PathBuf, doing: &'static str, source: io::Error },
        /// Writing to standard output failed, for example because the reader of a pipe has ended.
        #[error("standard output: {source}")]
        #[hint(suggest_for_disk(source))]
        Output { source: io::Error },
        #[error("cannot write JSON: {source}")]
        Json { source: serde_json::Error },
        #[error("{}: expected the name of a file to write, got a folder", path.display())]
        #[hint("add the name of a file: {}", path.join("NAME").display())]
        OutputIsFolder { path: PathBuf },
        #[error("{}: expected the name of a regular file to write, got a pipe or a device", path.display())]
        #[hint("write a file and read it from there")]
        OutputIsSpecial { path: PathBuf },
        #[error("{}: cannot be written, because {} does not exist", path.display(), folder.display())]
        #[hint("make the folder first: mkdir -p {}", folder.display())]
        NoOutputFolder { path: PathBuf, folder: PathBuf },
        #[error("{}: cannot be written, because {} is a file, not a folder", path.display(), file.display())]
        #[hint("choose another place to write")]
        OutputBelowFile { path: PathBuf, file: PathBuf },
        #[error("{}: expected {needed} of free disk space, got {available}", folder.display())]
        #[hint("free some space, or choose another folder with --folder")]
        Disk { folder: PathBuf, needed: Bytes, available: Bytes },
        #[error("{}: expected {needed} of free disk space, got {available}", folder.display())]
        #[hint("ask for fewer --megabytes, or name a folder on another disk in TMPDIR")]
        BenchDisk { folder: PathBuf, needed: Bytes, available: Bytes },
        #[error("the tables and their optimizer state need {needed}, got {available} of memory")]
        #[hint("ask for fewer --tables, --rows or --dim")]
        BenchMemory { needed: Bytes, available: Bytes },

        // Errors of rows and checkpoints.
        #[error(
            "all {rows} training rows have the label {label}: no model can learn anything from them (prepared in {})",
            folder.display()
        )]
        #[hint("{}", suggest_labels(*label, positive))]
        OneLabel { rows: u64, label: f32, positive: Vec<String>, folder: PathBuf },
        /// `score` writes one score per line of the input, which needs one row per line.
        #[error(
            "{}: expected one row per line, got empty lines or rows of several lines ({} scored)",
            path.display(), counted(*rows, "row")
        )]
        #[hint(
            "the scores written so far do not match the input lines; remove empty lines and line \
             breaks within fields"
        )]
        Alignment { path: PathBuf, rows: u64 },
        #[error(
            "{}: {count} of {}: expected a probability, got NaN: line {}",
            path.display(), counted(*rows, "row"), list_lines(first)
        )]
        #[hint(
            "the model has diverged, or these rows have numbers that are not finite; score with \
             an earlier checkpoint, or correct the rows"
        )]
        NotScored { path: PathBuf, count: u64, rows: u64, first: Vec<u64> },
        #[error("{}: expected a checkpoint or a run with checkpoints, found none", path.display())]
        #[hint("give RUN or RUN/checkpoints/step-…, as printed at the end of training")]
        NoCheckpoint { path: PathBuf },
        #[error("{}: expected an undamaged checkpoint, found only {count} damaged", path.display())]
        #[hint("start again in another folder with --run, or restore a copy of the checkpoint")]
        NoneWhole { path: PathBuf, count: usize },
        #[error("{}: the newest checkpoint is damaged: {reason}", path.display())]
        #[hint("{}", suggest_previous(previous.as_ref()))]
        DamagedCheckpoint { path: PathBuf, reason: String, previous: Option<PathBuf> },
        #[error("{damaged} of {} damaged", counted(*count as u64, "checkpoint"))]
        #[hint("continue from an undamaged checkpoint with --resume-from CHECKPOINT")]
        Damaged { damaged: usize, count: usize },

        // Errors in starting or ending threads and processes.
        #[error("cannot start the thread for {what}: {source}")]
        Thread { what: &'static str, source: io::Error },
        #[error("cannot run {program}: {source}")]
        Program { program: &'static str, source: io::Error },
        #[error("{library}: {problem}")]
        #[hint("rowmill doctor mpi lists the MPI libraries that it finds")]
        MpiStart { library: String, problem: String },
        /// A second caller requested the communicator of all processes, which is a defect of
        /// rowmill.
        #[error("the communicator of all processes is in use")]
        NoProcesses,
        #[error("the measurement failed: {said}")]
        Measurement { said: String },
        #[error("{run}: {said}")]
        Tune { run: String, said: String },
        #[error("cannot serve on 127.0.0.1:{port}: {source}")]
        #[hint("leave --port out for a free port")]
        Serve { port: u16, source: io::Error },

        // Errors of captures and of agents on other hosts.
        #[error(
            "{place}: expected {} to poll for traces within {seconds} s, got {got}",
            counted(*wanted as u64, "process")
        )]
        #[hint("start the job with KINETO_USE_DAEMON=1; rowmill doctor capture says what a running job lacks")]
        NobodyAsked { place: String, seconds: u64, wanted: usize, got: usize },
        #[error("the hub at {url}: {problem}")]
        #[hint("`rowmill-hub serve` starts it, and `rowmill-hub token new viewer NAME` creates a token")]
        Hub { url: String, problem: String },
        #[error("the hub at {url} refuses this: {problem}")]
        #[hint(suggest_for_refusal(problem))]
        HubRefused { url: String, problem: String },
        #[error("Slurm job {job}: expected hosts from squeue and scontrol, got {said}")]
        Slurm { job: i64, said: String },
        #[error("{selection}: expected a process that polls for traces, got none; polling now: {there}")]
        #[hint("`rowmill fleet status` lists processes and their jobs on all hosts")]
        NoProcess { selection: String, there: String },
        #[error("no trace was started: {problems}")]
        NoOrder { problems: String },
        #[error("expected processes of one job, got several: {there}")]
        #[hint("a report covers one job: choose the job with --run, --user or --pid")]
        ManyJobs { there: String },
        #[error("expected each rank of the job once, got rank {rank} of processes {first} and {second}")]
        #[hint("choose a process with --pid, or end the process that is left over")]
        SameRank { rank: u32, first: u32, second: u32 },
        #[error("expected different hosts, got {first} and {second}: the same processes answer at both")]
        #[hint("name each machine once")]
        SameHost { first: String, second: String },

        // Errors of library crates. `From` in `error.rs` chooses between this enum and
        // `UsageError`.
        #[error("{source}")]
        Device { source: device::Error },
        #[error("{source}")]
        #[hint(library_hint::suggest_for_data(source))]
        Data { source: data::Error },
        #[error("{source}")]
        #[hint(library_hint::suggest_for_train(source))]
        Train { source: train::Error },
        #[error("{source}")]
        #[hint(library_hint::suggest_for_trace(source))]
        Trace { source: trace::Error },
        #[error("{source}")]
        Report { source: report::Error },
        #[error("{source}")]
        #[hint(suggest_for_socket(source))]
        Socket { source: SocketError },
    }
}

fn list_lines(lines: &[u64]) -> String {
    lines.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Lists likely reasons for which all rows have the same label.
fn suggest_labels(label: f32, positive: &[String]) -> String {
    if positive.is_empty() {
        return "data.label names the column; if the rows are sorted by it, shuffle them, or name \
                files with --evaluation instead of holding out the end"
            .to_owned();
    }
    let whose = if label == 0.0 { "no row's" } else { "every row's" };
    format!(
        "{whose} label is one of data.label.positive ({}); compare the spelling with the file's",
        positive.join(", ")
    )
}

fn suggest_previous(previous: Option<&PathBuf>) -> String {
    match previous {
        Some(path) => {
            format!("the previous one is undamaged; use it with: --resume-from {}", path.display())
        }
        None => {
            "no earlier checkpoint is undamaged; start again in another folder with --run".into()
        }
    }
}

/// Advises what to do about a name that the hub does not know.
fn suggest_for_refusal(problem: &str) -> Option<String> {
    let hints = [
        (": run: ", "name the scheduler too, such as kubernetes/POD; the page lists runs"),
        (": job: ", "`rowmill fleet job ID` shows when a job began and ended"),
        (": host: ", "hosts have the names of `host` in the configuration of their agents"),
    ];
    let is_unknown = problem.starts_with("404");
    let mut known = hints.into_iter().filter(|(kind, _)| is_unknown && problem.contains(kind));
    known.next().map(|(_, hint)| hint.to_owned())
}

fn suggest_for_socket(error: &SocketError) -> Option<String> {
    let hint = match error {
        SocketError::Taken { .. } => {
            "another rowmill capture or dynolog runs; end it, or use a folder of your own: \
             --socket-dir FOLDER here, KINETO_IPC_SOCKET_DIR=FOLDER in the job"
        }
        SocketError::Unsafe(_) => {
            "another user could exchange the socket: capture as the folder's own user, or give the \
             folder mode 0755 or 1777"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}
