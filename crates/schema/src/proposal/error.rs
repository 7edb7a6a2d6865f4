//! The error type of proposals.

use crate::unit::listed;

/// The reason why no configuration can be proposed for a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// No column, or several columns, may be the label.
    #[error("which column is the label? {}", candidates_text(candidates, columns))]
    NoLabel {
        /// Names of the columns that have exactly two values.
        candidates: Vec<String>,
        columns: Vec<String>,
    },
    /// The requested label is not a column.
    #[error("no column {label:?} for the label; the columns are {}", listed(columns))]
    NoSuchColumn { label: String, columns: Vec<String> },
    /// The label's values do not form two classes.
    #[error("column {label:?}: expected two values or ratings for a label, got {distinct} values")]
    NoClasses { label: String, distinct: u64 },
    /// The requested label has an unsupported type.
    #[error(
        "column {label:?}: expected a label, got values of type {kind}, which is not supported"
    )]
    UnreadableLabel { label: String, kind: String },
    /// No column can be used as an input of the model.
    #[error("no column can be used as an input: {}", listed(reasons))]
    NoInputs {
        /// For each column, its name and the reason why it is left out.
        reasons: Vec<String>,
    },
}

fn candidates_text(candidates: &[String], columns: &[String]) -> String {
    match candidates {
        [] => format!("no column has two values: {}", listed(columns)),
        several => format!("these have two values: {}", listed(several)),
    }
}
