//! The error type that all tasks share.

use std::io;
use std::path::PathBuf;

/// The reason why a task stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line was not understood.
    #[error("{problem} (see `cargo xtask {task} --help`)")]
    Usage {
        /// Name of the task; empty if the command line has no task.
        task: &'static str,
        problem: String,
    },
    /// A file or folder could not be read or written.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// A TOML file is malformed.
    #[error("{path}: {problem}")]
    Toml { path: String, problem: String },
    /// A program could not be started.
    #[error("cannot start `{command}`: {source}")]
    Start { command: String, source: io::Error },
    /// A program ran and failed.
    #[error("`{command}` failed: {problem}")]
    Program {
        command: String,
        /// The exit status of the program, or the part that its output lacks.
        problem: String,
    },
    /// A check failed, and its details are already printed.
    #[error("{what}")]
    Check { what: String },
}

impl Error {
    /// Converts the error of a file operation, for `map_err`.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
