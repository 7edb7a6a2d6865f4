//! The parameters, progress and result of reading a job.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::Error;
use crate::store::Job;

/// Selects the files of a job, and the threads that read them.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Files, archives, folders, or `-` for standard input.
    pub paths: Vec<PathBuf>,
    /// Number of parser threads, at least 1; the result does not depend on it. Each compressed file
    /// uses one more thread for unpacking.
    pub threads: usize,
}

/// Callbacks and flags with which a caller observes and cancels a reading.
#[derive(Clone, Copy)]
pub struct ReadControl<'a> {
    /// Called every few megabytes, from any thread.
    pub progress: &'a (dyn Fn(ReadProgress) + Sync),
    /// When set, the reading ends with [`Error::Cancelled`].
    pub cancelled: &'a AtomicBool,
}

/// The progress of a reading in bytes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadProgress {
    pub bytes_read: u64,
    /// Total size of all files; `None` if standard input is among them.
    pub bytes_total: Option<u64>,
}

/// The traces that were read, and the files that were not.
#[derive(Clone, Debug, Default)]
pub struct JobReading {
    pub job: Job,
    /// Files in folders and archives that are not traces.
    pub skipped: Vec<Skipped>,
}

/// A file in a folder or an archive that was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub path: PathBuf,
    pub member: Option<String>,
    /// Description of the actual content.
    pub reason: String,
    /// Whether the file should be a trace, by its name and its content: empty, filled with zero
    /// bytes, or truncated before the first event.
    pub is_lost: bool,
}

/// Builds the error for a path without traces.
pub fn no_traces(path: &Path, skipped: &[Skipped]) -> Error {
    let first = skipped.first().map(|one| {
        let name = one.member.clone().unwrap_or_else(|| {
            let inside = one.path.strip_prefix(path).unwrap_or(&one.path);
            inside.display().to_string()
        });
        if name.is_empty() { one.reason.clone() } else { format!("{name}: {}", one.reason) }
    });
    let path = path.to_path_buf();
    Error::NoTraces { path, files: skipped.len(), first: first.unwrap_or_default() }
}
