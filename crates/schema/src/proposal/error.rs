//! The error type of proposals.

use crate::unit::listed;

/// No configuration can be proposed for a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// No column, or several columns, may be the label.
    #[error("which column is the label? {}", candidates_text(candidates, columns))]
    NoLabel {
        /// Columns with two values.
        candidates: Vec<String>,
        columns: Vec<String>,
    },
    /// The requested label is not a column.
    #[error("no column {label:?} for the label among {}", listed(columns))]
    NoSuchColumn { label: String, columns: Vec<String> },
    /// The label's values do not form two classes.
    #[error("column {label:?}: expected two values or ratings for a label, got {distinct} values")]
    NoClasses { label: String, distinct: u64 },
    /// The requested label has an unsupported type.
    #[error(
        "column {label:?}: expected a label, got values of the type {kind}, which no reader handles"
    )]
    UnreadableLabel { label: String, kind: String },
    /// There are no inputs.
    #[error("no column can be learned from: {}", listed(reasons))]
    NoInputs {
        /// The reason why each column is left out.
        reasons: Vec<String>,
    },
}

fn candidates_text(candidates: &[String], columns: &[String]) -> String {
    match candidates {
        [] => format!("no column has two values: {}", listed(columns)),
        several => format!("these have two values: {}", listed(several)),
    }
}
