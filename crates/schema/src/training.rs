//! The settings of a training run: batch size, length, evaluation, checkpoints, shuffling.

use serde::{Deserialize, Serialize};

/// The precision of the matrix products. Sums, stored weights, embeddings, interaction and loss are
/// always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Products are computed from 32-bit IEEE floats.
    #[default]
    F32,
    /// Weights, activations and their gradients are rounded to bf16 before a product.
    Bf16,
}

impl std::fmt::Display for Precision {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

/// The `[training]` section of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingConfig {
    /// Number of samples per step over all ranks.
    pub batch_size: usize,
    /// Precision of the matrix products.
    #[serde(default)]
    pub precision: Precision,
    /// Number of passes over the training data.
    #[serde(default = "one")]
    pub epochs: u64,
    /// Number of steps after which training stops, even within an epoch.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Seed of the shuffle of the training data.
    #[serde(default)]
    pub seed: u64,
    /// Number of samples from which the shuffle draws; 0 keeps the order of the files.
    #[serde(default = "default_shuffle_rows")]
    pub shuffle_rows: usize,
    /// Whether to skip the last, smaller batch of an epoch.
    #[serde(default)]
    pub drop_last: bool,
    /// Number of steps between log lines.
    #[serde(default = "default_log_every")]
    pub log_every: u64,
    /// Number of steps between evaluations on the held-out data. Training always ends with an
    /// evaluation.
    #[serde(default)]
    pub evaluate_every: Option<u64>,
    /// Number of held-out samples per evaluation; all if omitted.
    #[serde(default)]
    pub evaluate_samples: Option<u64>,
    /// Number of steps between checkpoints. Training always ends with a checkpoint.
    #[serde(default)]
    pub checkpoint_every: Option<u64>,
    /// Number of the newest checkpoints to keep.
    #[serde(default = "default_keep")]
    pub keep_checkpoints: usize,
    /// Held-out metric whose best checkpoint is kept in addition to the newest ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_best: Option<Figure>,
    /// Number of evaluations in a row without an improvement after which training stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// Whether to fit simple models on the same rows at the end of training, for comparison.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub baselines: bool,
    /// Feature whose ids group the held-out samples for an AUC within groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auc_by: Option<String>,
}

/// A metric on held-out samples by which models are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Area under the ROC curve; a higher value is better.
    Auc,
    /// Normalized entropy; a lower value is better.
    NormalizedEntropy,
    /// Training objective on the held-out samples; a lower value is better.
    Loss,
}

impl Figure {
    /// Returns the metric's name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auc => "auc",
            Self::NormalizedEntropy => "normalized_entropy",
            Self::Loss => "loss",
        }
    }
}

fn one() -> u64 {
    1
}

fn default_shuffle_rows() -> usize {
    65_536
}

fn default_log_every() -> u64 {
    100
}

fn default_keep() -> usize {
    3
}
