//! Errors in the arguments of operations, such as mismatched shapes and out-of-range ids. The
//! errors do not depend on files or configurations.

use schema::Precision;
use schema::batch::JaggedError;

use crate::cuda::DriverError;

/// The error of an operation. When an operation returns it, no output of the caller has been
/// written, unless the documentation of the operation says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An argument has the wrong number of elements.
    #[error("{op}: {what}: expected {expected}, got {got}")]
    Shape {
        op: &'static str,
        /// Name of the argument, with its shape where that helps.
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
        /// The rule of the layout that is violated.
        cause: JaggedError,
    },
    /// An id is not the number of a row of its table. The first such id in the order of `values`
    /// is reported.
    #[error(
        "id out of range: table \"{table}\", sample {sample}, feature {feature}: \
         expected 0..{rows}, got {id}"
    )]
    RowOutOfRange {
        /// Name of the table in which the id was looked up.
        table: String,
        /// Index of the sample in its batch.
        sample: usize,
        /// Index of the feature in the jagged tensor.
        feature: usize,
        id: i64,
        /// Number of rows of the table.
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
