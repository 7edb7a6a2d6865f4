//! The data of a training run's page, in the form that the page's script receives.

use serde::{Deserialize, Serialize};

/// All data that the page of a training run shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingReport {
    pub title: String,
    pub program: String,
    pub verdict: TrainingVerdict,
    pub steps: u64,
    pub samples: u64,
    /// Training time in seconds, without evaluations and checkpoints.
    pub seconds: f64,
    /// Samples per second of training time.
    pub samples_per_second: f64,
    /// Share of the training time in which the run waited for input.
    pub input_wait_share: f64,
    /// Metrics by log line. If there are many lines, each entry averages several neighbors.
    pub intervals: Vec<LogInterval>,
    /// Maximum number of log lines that one point of a plot averages.
    pub lines_per_point: u64,
    pub evaluations: Vec<EvaluationAt>,
    pub checkpoints: Vec<SavedCheckpoint>,
    /// Figures of the best checkpoint and of baselines, if the run has ended.
    pub closing: Option<ClosingView>,
    pub tables: Vec<TableView>,
    /// The ranks of the run, if it recorded them.
    pub placement: Option<RankPlacement>,
    /// Number of lines that could not be parsed.
    pub lines_lost: u64,
}

/// Number of ranks of a run, of the replica groups into which they are divided, and of their hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RankPlacement {
    pub ranks: u32,
    pub groups: u32,
    /// Earlier versions did not record hosts.
    pub hosts: Option<usize>,
}

/// The verdict on a training run, which is shown at the top of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrainingVerdict {
    pub outcome: TrainingOutcome,
    /// The verdict in one or two sentences.
    pub text: String,
    /// An additional remark, such as a warning about overfitting.
    pub detail: Option<String>,
    pub best_step: Option<u64>,
}

/// The quality of a trained model relative to the base rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingOutcome {
    /// On held-out rows, the model is better than the base rate.
    Better,
    /// On held-out rows, the model is worse than the base rate.
    Worse,
    /// No usable evaluation on held-out rows exists.
    Unknown,
}

/// Metrics of an interval of training, which one log line contains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogInterval {
    pub step: u64,
    /// Number of samples since the start of the run.
    pub samples: u64,
    pub loss: f64,
    /// Base learning rate multiplied by the factor of the schedule.
    pub learning_rate: f64,
    pub samples_per_second: f64,
    pub input_wait_share: f64,
    /// Is 0 in the lines of earlier versions.
    #[serde(default)]
    pub exchange_wait_share: f64,
}

/// The metrics of an evaluation, with its step.
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
    /// Cross-entropy divided by the cross-entropy of predicting the mean label.
    pub normalized_entropy: Option<f64>,
    /// Predicted clicks divided by observed clicks.
    pub calibration: Option<f64>,
    /// Share of samples whose label was predicted correctly.
    pub accuracy: Option<f64>,
    #[serde(default)]
    pub by_group: Option<ByGroup>,
}

/// The figures with which a run ended, of its model and of the baselines that it fitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClosingView {
    /// The step of the evaluated checkpoint.
    pub step: u64,
    #[serde(flatten)]
    pub model: HeldOutView,
    pub baselines: Option<BaselinesView>,
}

/// The figures of a model on validation rows, and on test rows if the run has any.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutView {
    pub validation: EvaluationFigures,
    pub test: Option<EvaluationFigures>,
}

/// The baselines of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaselinesView {
    pub base_rate: HeldOutView,
    pub logistic_regression: Option<HeldOutView>,
}

/// AUC averaged within groups of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ByGroup {
    pub auc: Option<f64>,
}

/// A checkpoint that the run saved, with its size and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedCheckpoint {
    pub step: u64,
    pub bytes: u64,
    pub seconds: f64,
}

/// An embedding table, with its use at each checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableView {
    pub name: String,
    pub rows: u64,
    pub dim: u64,
    /// Root mean square of the initial norms of the rows.
    pub drawn_norm: f64,
    pub uses: Vec<TableUse>,
}

/// The use of an embedding table at one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TableUse {
    pub step: u64,
    /// Number of rows that training has changed.
    pub rows_changed: u64,
    /// Root mean square of the norms of the changed rows.
    pub row_norm: f64,
}
