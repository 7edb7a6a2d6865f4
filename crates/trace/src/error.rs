//! What can go wrong when traces are read and written.

use std::path::{Path, PathBuf};

/// A trace that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing was recorded, so there is no trace to write.
    #[error("{path}: expected at least one recorded step, got none", path = path.display())]
    NothingRecorded {
        /// The file that was asked for.
        path: PathBuf,
    },
    /// The step was not recorded.
    #[error(
        "{path}: step {step} was not recorded; the recording has steps {first} to {last}",
        path = path.display()
    )]
    StepNotRecorded {
        /// The file that was asked for.
        path: PathBuf,
        /// The step that was asked for.
        step: u64,
        /// The first recorded step.
        first: u64,
        /// The last recorded step.
        last: u64,
    },
    /// The operating system refused; no file of that name appeared or changed.
    #[error("{path}: could not {action} the trace file: {source}", path = path.display())]
    Write {
        /// The file that was asked for.
        path: PathBuf,
        /// The failed operation: create, write, sync or rename.
        action: &'static str,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The operating system refused, or the compressed stream is none.
    #[error("{path}: cannot read the trace: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The content is no trace.
    #[error("{path}: expected a trace, {reason}", path = path.display())]
    NotATrace {
        path: PathBuf,
        /// What was got instead, and where.
        reason: String,
    },
    /// A trace of a format that we read where we wrote it.
    #[error("{path}: expected a trace, got a {format} trace that {writer} wrote", path = path.display())]
    ForeignTrace { path: PathBuf, format: &'static str, writer: &'static str },
    /// A folder or an archive without any trace.
    #[error(
        "{path}: expected trace files, found none among {files} files{}",
        if first.is_empty() { String::new() } else { format!(" (first: {first})") },
        path = path.display()
    )]
    NoTraces {
        /// The folder or archive.
        path: PathBuf,
        /// How many files there are.
        files: usize,
        /// Name of the first one and what it is instead; empty if there is none.
        first: String,
    },
    #[error("{path}: expected a trace, got an empty file", path = path.display())]
    Empty { path: PathBuf },
    /// The reading was cancelled by who asked for it.
    #[error("reading was cancelled")]
    Cancelled,
    /// A list of ranks that does not fit the traces.
    #[error("ranks: expected {expected} different numbers, one for each trace, got {got:?}")]
    Ranks {
        /// How many traces there are.
        expected: usize,
        got: Vec<u32>,
    },
    /// The text of a trace's events cannot be read again.
    #[error("{path}: cannot read the events' text again: {reason}", path = path.display())]
    NoText {
        /// Where the trace came from.
        path: PathBuf,
        reason: String,
    },
}

impl Error {
    /// For a path that cannot be read.
    pub(crate) fn read(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Read { path: path.to_path_buf(), source }
    }
}
