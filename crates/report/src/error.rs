//! The error type of the crate.

use std::ops::Range;

/// A report could not be built or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The windows have none of the requested steps.
    #[error("steps {}..{}: expected some of {known}, got none", asked.start, asked.end)]
    NoSuchStep {
        asked: Range<i64>,
        /// Describes the existing steps.
        known: String,
    },
    /// A value cannot be represented as JSON.
    #[error("cannot write the report's data: {0}")]
    Data(#[from] serde_json::Error),
}
