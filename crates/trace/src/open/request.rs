//! Defines the parameters, the progress and the result of reading a job.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::Error;
use crate::store::Job;

/// The files of a job to be read, and the number of threads that read them.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Files, archives and folders, or `-` for standard input.
    pub paths: Vec<PathBuf>,
    /// Number of parser threads, at least 1. The result does not depend on the number of threads.
    /// Each compressed file uses one more thread for unpacking.
    pub threads: usize,
}

/// The callback and the flag with which a caller observes and cancels the reading of a job.
#[derive(Clone, Copy)]
pub struct ReadControl<'a> {
    /// Called every few megabytes, from any thread.
    pub progress: &'a (dyn Fn(ReadProgress) + Sync),
    /// If the caller sets this flag, reading ends with [`Error::Cancelled`].
    pub cancelled: &'a AtomicBool,
}

/// The progress of reading a job, in bytes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadProgress {
    pub bytes_read: u64,
    /// Total size of all files in bytes, or `None` if standard input is among them.
    pub bytes_total: Option<u64>,
}

/// The traces that were read, and the files that were skipped.
#[derive(Clone, Debug, Default)]
pub struct JobReading {
    pub job: Job,
    /// Files in folders and archives that are not traces.
    pub skipped: Vec<Skipped>,
}

/// A file in a folder or an archive that was not read, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub path: PathBuf,
    pub member: Option<String>,
    /// Description of the actual content of the file.
    pub reason: String,
    /// Whether the file should have been a trace according to its name and content. A lost file is
    /// empty, filled with zero bytes, or truncated before its first event.
    pub is_lost: bool,
}

/// Builds the error for a path under which no traces were found.
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
