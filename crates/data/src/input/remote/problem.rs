//! Why an object cannot be read.

use std::io;

/// Why an object cannot be read, as the source of an [`io::Error`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteProblem {
    /// The address names nothing that could be an object.
    #[error("expected {expected}")]
    Address { expected: &'static str },
    /// No server could be reached.
    #[error("no answer from {host} after {tries} tries: {reason}")]
    Unreachable {
        host: String,
        /// How often it was tried.
        tries: u32,
        reason: String,
    },
    /// There is no such object.
    #[error("not found (HTTP status {status}{detail})")]
    NotFound {
        status: u16,
        /// What the server says.
        detail: String,
    },
    #[error("access denied (HTTP status {status}{detail}); asked {credentials}")]
    Denied {
        status: u16,
        /// What the server says.
        detail: String,
        credentials: String,
    },
    /// Any other answer that does not help.
    #[error("expected the object, got HTTP status {status}{detail}")]
    Status {
        status: u16,
        /// What the server says.
        detail: String,
    },
    /// Another object than the one that was opened.
    #[error("changed while it was being read: expected version {expected}, got {got}")]
    Changed {
        /// As it was opened.
        expected: String,
        got: String,
    },
    /// Credentials are configured but cannot be used.
    #[error("credentials: {0}")]
    Credentials(String),
    /// An answer that is not HTTP, or lacks the requested bytes.
    #[error("{0}")]
    Answer(String),
}

impl From<RemoteProblem> for io::Error {
    fn from(problem: RemoteProblem) -> Self {
        let kind = match &problem {
            RemoteProblem::NotFound { .. } => io::ErrorKind::NotFound,
            RemoteProblem::Denied { .. } => io::ErrorKind::PermissionDenied,
            RemoteProblem::Unreachable { .. } => io::ErrorKind::HostUnreachable,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, problem)
    }
}

impl RemoteProblem {
    /// The problem that is the source of `error`, if one is.
    #[must_use]
    pub fn find_in(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}
