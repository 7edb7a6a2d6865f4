//! What can go wrong when a recording becomes a file.

use std::path::PathBuf;

/// A trace file that could not be made.
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
        /// What was being done: create, write, sync or rename.
        action: &'static str,
        /// The operating system's reason.
        source: std::io::Error,
    },
}
