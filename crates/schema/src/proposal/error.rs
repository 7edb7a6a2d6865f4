//! Why no configuration can be proposed for a file.

use crate::unit::listed;

/// Why there is no proposal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// No column is the label, or several may be.
    #[error("which column is the label? {}", candidates_text(candidates, columns))]
    NoLabel {
        /// Columns with two values.
        candidates: Vec<String>,
        columns: Vec<String>,
    },
    /// The label that was asked for is not there.
    #[error("no column {label:?} for the label among {}", listed(columns))]
    NoSuchColumn { label: String, columns: Vec<String> },
    /// The label has values that mean nothing to a model of two classes.
    #[error("column {label:?}: expected two values or ratings for a label, got {distinct} values")]
    NoClasses {
        label: String,
        /// How many it has.
        distinct: u64,
    },
    /// The label that was asked for cannot be read.
    #[error(
        "column {label:?}: expected a label, got values of the type {kind}, which no reader handles"
    )]
    UnreadableLabel {
        label: String,
        /// Its type in the file.
        kind: String,
    },
    /// Nothing to learn from.
    #[error("no column can be learnt from: {}", listed(reasons))]
    NoInputs {
        /// Why each is left out.
        reasons: Vec<String>,
    },
}

fn candidates_text(candidates: &[String], columns: &[String]) -> String {
    match candidates {
        [] => format!("no column has two values: {}", listed(columns)),
        several => format!("these have two values: {}", listed(several)),
    }
}
