//! The error type of this crate.

use std::ops::Range;

/// Cause for which a report could not be built or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The requested steps do not lie in the windows of the traces.
    #[error("steps {}..{}: expected some of {known}, got none", asked.start, asked.end)]
    NoSuchStep {
        asked: Range<i64>,
        /// Text that lists the numbers of the existing steps.
        known: String,
    },
    /// The data contains a value that cannot be represented as JSON.
    #[error("cannot write the report's data: {0}")]
    Data(#[from] serde_json::Error),
}
