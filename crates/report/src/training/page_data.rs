//! The data of a training run's page, as the page's script receives it.

use serde::{Deserialize, Serialize};

/// Everything that the page of a training run shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingReport {
    pub title: String,
    pub program: String,
    pub verdict: TrainingVerdict,
    pub steps: u64,
    pub samples: u64,
    /// Training time without evaluations and checkpoints.
    pub seconds: f64,
    /// Samples per second of the training time.
    pub samples_per_second: f64,
    /// Share of the training time spent waiting for input.
    pub input_wait_share: f64,
    /// Log lines. If there are many, several neighbors are averaged.
    pub intervals: Vec<LogInterval>,
    /// Maximum number of log lines per point.
    pub lines_per_point: u64,
    pub evaluations: Vec<EvaluationAt>,
    pub checkpoints: Vec<SavedCheckpoint>,
    pub tables: Vec<TableView>,
    /// Number of lines that could not be read.
    pub lines_lost: u64,
}

/// The verdict on a run, shown at the top of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrainingVerdict {
    pub outcome: TrainingOutcome,
    /// One or two sentences.
    pub text: String,
    /// An additional remark, such as a warning about overfitting.
    pub detail: Option<String>,
    pub best_step: Option<u64>,
}

/// The quality of a trained model relative to the base rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingOutcome {
    /// Better than the base rate on held-out rows.
    Better,
    /// Worse than the base rate.
    Worse,
    /// There are no usable evaluations on held-out rows.
    Unknown,
}

/// Metrics of an interval of training, from one log line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogInterval {
    pub step: u64,
    /// Samples since the start of the run.
    pub samples: u64,
    pub loss: f64,
    /// Base learning rate times the factor of the schedule.
    pub learning_rate: f64,
    pub samples_per_second: f64,
    pub input_wait_share: f64,
}

/// The metrics of an evaluation, and its step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EvaluationAt {
    pub step: u64,
    #[serde(flatten)]
    pub figures: EvaluationFigures,
}

/// The metrics of an evaluation. A metric that is undefined for the data is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationFigures {
    pub samples: u64,
    pub loss: Option<f64>,
    /// Area under the ROC curve.
    pub auc: Option<f64>,
    /// Cross-entropy divided by that of the mean label.
    pub normalized_entropy: Option<f64>,
    /// Predicted clicks divided by observed clicks.
    pub calibration: Option<f64>,
    /// Share of correct predictions.
    pub accuracy: Option<f64>,
    #[serde(default)]
    pub by_group: Option<ByGroup>,
}

/// AUC averaged within groups of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ByGroup {
    pub auc: Option<f64>,
}

/// A checkpoint that the run saved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedCheckpoint {
    pub step: u64,
    pub bytes: u64,
    pub seconds: f64,
}

/// The use of an embedding table over the checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableView {
    pub name: String,
    pub rows: u64,
    pub dim: u64,
    /// Root mean square of the rows' initial norms.
    pub drawn_norm: f64,
    pub uses: Vec<TableUse>,
}

/// The use of an embedding table at one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TableUse {
    pub step: u64,
    /// Rows that training has changed.
    pub rows_changed: u64,
    /// Root mean square of the norms of the changed rows.
    pub row_norm: f64,
}
