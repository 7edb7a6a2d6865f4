//! Why a task stopped. Knows no task.

use std::io;
use std::path::PathBuf;

/// Why a task stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line was not understood.
    #[error("{problem} (see `cargo xtask {task} --help`)")]
    Usage {
        /// The subcommand, or nothing.
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
        /// Exit status, or what its output lacked.
        problem: String,
    },
    /// A check did not pass; what is wrong is already printed.
    #[error("{what}")]
    Check { what: String },
}

impl Error {
    /// For `map_err` on file operations.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
