//! The decisions of a proposal before they are formatted.

use super::role::Role;
use crate::facts::ColumnFacts;

/// The user's request: the name of the model, the files and, optionally, the label.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    pub name: String,
    /// The command that makes the proposal. The first line of the text names it.
    pub command: String,
    /// The requested label; `None` to detect it.
    pub label: Option<String>,
    pub train: Vec<String>,
    pub evaluation: Vec<String>,
    /// Values of the label column in the held-out files.
    pub evaluation_labels: Vec<String>,
}

/// The label with the values that count as 1.
pub(super) struct PlannedLabel {
    pub at: usize,
    pub positive: Vec<String>,
    /// For a label of counts, the lowest count that means 1.
    pub positive_from: Option<i64>,
    /// Whether rows without a label are skipped.
    pub skips_unlabeled: bool,
    pub reason: String,
}

/// A candidate input of the model: a column with its facts and its role.
pub(super) struct Input<'a> {
    pub facts: &'a ColumnFacts,
    pub role: Role,
}

/// Proposed share of the training files for validation.
pub(super) const VALIDATION: f64 = 0.1;
/// Proposed share of the training files for a test, if there are no evaluation files.
pub(super) const HOLD_OUT: f64 = 0.1;

/// Sizes and schedule of the proposed model.
pub(super) struct ProposalPlan {
    pub dim: usize,
    pub bottom: Vec<usize>,
    pub top: Vec<usize>,
    pub interaction: &'static str,
    /// The column that provides the constant 1, if there are no numbers.
    pub constant: Option<String>,
    pub batch_size: u64,
    pub epochs: u64,
    pub steps: u64,
    pub evaluate_every: u64,
    pub patience: u64,
    /// The column that selects held-out rows, and whether the rows are already in its order.
    pub time: Option<(String, bool)>,
    pub holds_out: bool,
    pub exact_ids: bool,
}
