//! A request to read, its progress, and its result.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::Error;
use crate::store::Job;

/// What to read, and how.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Files, archives, folders, or `-`.
    pub paths: Vec<PathBuf>,
    /// Threads that parse, at least 1; the result does not depend on it. Compressed files take one
    /// more thread each, to unpack them.
    pub threads: usize,
}

/// How a reading is attended.
#[derive(Clone, Copy)]
pub struct ReadControl<'a> {
    /// Called every few megabytes, from any thread.
    pub progress: &'a (dyn Fn(ReadProgress) + Sync),
    /// Set it to end the reading with [`Error::Cancelled`].
    pub cancelled: &'a AtomicBool,
}

/// How far a reading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadProgress {
    /// Bytes read of the files as they lie there, compressed or not.
    pub bytes_read: u64,
    /// All of them; none if one of them is standard input.
    pub bytes_total: Option<u64>,
}

/// What a reading found.
#[derive(Clone, Debug, Default)]
pub struct JobReading {
    pub job: Job,
    /// Files of folders and archives that are no traces.
    pub skipped: Vec<Skipped>,
}

/// A file of a folder or an archive that is no trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub path: PathBuf,
    /// The member of an archive.
    pub member: Option<String>,
    /// What it is instead.
    pub reason: String,
    /// Whether it should be a trace, by its name and by what little it holds: an empty file, zero
    /// bytes, or data that end before the first event.
    pub is_lost: bool,
}

/// Why there is no trace under a path.
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
