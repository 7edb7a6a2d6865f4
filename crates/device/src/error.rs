//! Errors in the arguments of operations: mismatched shapes and out-of-range ids. Independent of
//! files or configurations.

use schema::Precision;
use schema::batch::JaggedError;

use crate::cuda::DriverError;

/// An operation's error. No output of the caller has been written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An argument has the wrong number of elements.
    #[error("{op}: {what}: expected {expected}, got {got}")]
    Shape {
        op: &'static str,
        /// The argument, with its shape where that helps.
        what: &'static str,
        /// Number of elements (or extent) that the contract requires.
        expected: usize,
        /// Number of elements (or extent) that was passed.
        got: usize,
    },
    /// The two factors of a product have different precisions.
    #[error("{op}: {what}: expected {expected}, got {got}")]
    Precision { op: &'static str, what: &'static str, expected: Precision, got: Precision },
    /// The jagged tensor's layout is broken.
    #[error("{op}: {cause}")]
    Jagged {
        op: &'static str,
        /// The violated part of the layout.
        cause: JaggedError,
    },
    /// An id does not name a row of its table. The first such id in `values` order is reported.
    #[error(
        "id out of range: table \"{table}\", sample {sample}, feature {feature}: \
         expected 0..{rows}, got {id}"
    )]
    RowOutOfRange {
        /// Name of the table.
        table: String,
        /// Sample in the batch.
        sample: usize,
        /// Key of the jagged tensor.
        feature: usize,
        id: i64,
        /// Rows of the table.
        rows: usize,
    },
    /// A GPU, its driver or its compiler returned an error.
    #[error("{0}")]
    Driver(Box<DriverError>),
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Driver(Box::new(error))
    }
}
