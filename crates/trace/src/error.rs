//! Defines the error type of the crate, which covers reading traces as well as writing them.

use std::path::{Path, PathBuf};

/// A trace could not be read or written. Damage inside a readable trace is not an error, because it
/// is counted as a [`Loss`](crate::store::Loss) of the trace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The recorder holds no step, so there is no trace to write.
    #[error("{path}: expected at least one recorded step, got none", path = path.display())]
    NothingRecorded { path: PathBuf },
    /// The caller requested a step that was not recorded.
    #[error(
        "{path}: step {step} was not recorded; the recording has steps {first} to {last}",
        path = path.display()
    )]
    StepNotRecorded { path: PathBuf, step: u64, first: u64, last: u64 },
    /// The operating system refused to write the trace, so the file at `path` is unchanged.
    #[error("{path}: could not {action} the trace file: {source}", path = path.display())]
    Write {
        path: PathBuf,
        /// The operation that failed: create, write, sync or rename.
        action: &'static str,
        source: std::io::Error,
    },
    /// The operating system refused to read, or the compressed stream is invalid.
    #[error("{path}: cannot read the trace: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The content of the file is not a trace.
    #[error("{path}: expected a trace, {reason}", path = path.display())]
    NotATrace {
        path: PathBuf,
        /// Description of the actual content, and where it was found.
        reason: String,
    },
    /// The trace has a format that rowmill reads only from files it wrote itself.
    #[error("{path}: expected a trace, got a {format} trace that {writer} wrote", path = path.display())]
    ForeignTrace { path: PathBuf, format: &'static str, writer: &'static str },
    /// A folder or an archive contains no trace.
    #[error(
        "{path}: expected trace files, found none among {files} files{}",
        if first.is_empty() { String::new() } else { format!(" (first: {first})") },
        path = path.display()
    )]
    NoTraces {
        path: PathBuf,
        files: usize,
        /// Name and content of the first rejected file, or an empty string if there are no files.
        first: String,
    },
    #[error("{path}: expected a trace, got an empty file", path = path.display())]
    Empty { path: PathBuf },
    /// Reading ended because the caller set
    /// [`ReadControl::cancelled`](crate::open::ReadControl::cancelled).
    #[error("reading was cancelled")]
    Cancelled,
    /// The list of ranks has duplicates, or it does not have one entry per trace.
    #[error("ranks: expected {expected} different numbers, one for each trace, got {got:?}")]
    Ranks { expected: usize, got: Vec<u32> },
    /// The JSON text of an event cannot be read again from its source file.
    #[error("{path}: cannot read the events' text again: {reason}", path = path.display())]
    NoText { path: PathBuf, reason: String },
}

impl Error {
    /// Returns a function for `map_err` that wraps an I/O error of the file at `path`.
    pub(crate) fn read(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Read { path: path.to_path_buf(), source }
    }
}
