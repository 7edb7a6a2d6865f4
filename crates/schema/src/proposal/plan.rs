//! What is proposed, before it is text.

use super::role::Role;
use crate::facts::ColumnFacts;

/// What the proposal is to be for.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    pub name: String,
    /// The command that asked, for the first line.
    pub command: String,
    /// The label, where it is not to be found by its name and values.
    pub label: Option<String>,
    pub train: Vec<String>,
    pub evaluation: Vec<String>,
    /// Values of the label in the held-out files.
    pub evaluation_labels: Vec<String>,
}

/// The label with the values that count as 1.
pub(super) struct PlannedLabel {
    pub at: usize,
    pub positive: Vec<String>,
    /// Least count that means 1.
    pub positive_from: Option<i64>,
    /// Whether rows without a label are left out.
    pub skips_unlabeled: bool,
    pub reason: String,
}

/// A column that the model takes, with its facts.
pub(super) struct Input<'a> {
    pub facts: &'a ColumnFacts,
    pub role: Role,
}

/// Sizes and schedule.
pub(super) struct ProposalPlan {
    pub dim: usize,
    pub bottom: Vec<usize>,
    pub top: Vec<usize>,
    pub interaction: &'static str,
    /// The column that the constant stands in for, where there are no numbers.
    pub constant: Option<String>,
    pub batch_size: u64,
    pub epochs: u64,
    pub steps: u64,
    pub evaluate_every: u64,
    /// The column that parts the held-out rows, and whether the rows are in its order anyway.
    pub time: Option<(String, bool)>,
    pub holds_out: bool,
    pub exact_ids: bool,
}
