//! Errors of reading objects over a network.

use std::io;

/// Reasons why an object cannot be read. The problem is the source of the [`io::Error`] that
/// readers return, so that the command line can find it and add a hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteProblem {
    #[error("expected {expected}")]
    Address { expected: &'static str },
    #[error("no answer from {host} after {tries} tries: {reason}")]
    Unreachable { host: String, tries: u32, reason: String },
    #[error("not found (HTTP status {status}{detail})")]
    NotFound {
        status: u16,
        /// Error code and message of the store.
        detail: String,
    },
    #[error("access denied (HTTP status {status}{detail}); requested {credentials}")]
    Denied {
        status: u16,
        /// Error code and message of the store.
        detail: String,
        credentials: String,
    },
    #[error("expected the object, got HTTP status {status}{detail}")]
    Status {
        status: u16,
        /// Error code and message of the store.
        detail: String,
    },
    /// The object was replaced since it was opened.
    #[error("changed while it was being read: expected version {expected}, got {got}")]
    Changed { expected: String, got: String },
    /// Credentials are configured but unusable.
    #[error("credentials: {0}")]
    Credentials(String),
    /// The response is not valid HTTP, or lacks the requested bytes.
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
    /// Returns the problem that caused `error`, if it came from a network.
    #[must_use]
    pub fn find_in(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}
