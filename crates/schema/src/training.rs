//! The settings of a training run: batch size, length, evaluation, checkpoints, shuffling.

use serde::{Deserialize, Serialize};

/// The precision of the matrix products. Sums, stored weights, embeddings, interaction and loss are
/// always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// IEEE floats of 32 bits.
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
    /// Samples per step over all ranks.
    pub batch_size: usize,
    /// Precision of the matrix products.
    #[serde(default)]
    pub precision: Precision,
    /// Passes over the training data.
    #[serde(default = "one")]
    pub epochs: u64,
    /// Stop after this many steps, even within an epoch.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Seed of the shuffle.
    #[serde(default)]
    pub seed: u64,
    /// Number of samples from which the shuffle draws; 0 keeps the order of the files.
    #[serde(default = "default_shuffle_rows")]
    pub shuffle_rows: usize,
    /// Whether to skip the last, smaller batch of an epoch.
    #[serde(default)]
    pub drop_last: bool,
    /// Steps between log lines.
    #[serde(default = "default_log_every")]
    pub log_every: u64,
    /// Steps between evaluations on the held-out data. There is always one at the end.
    #[serde(default)]
    pub evaluate_every: Option<u64>,
    /// Samples per evaluation; all if omitted.
    #[serde(default)]
    pub evaluate_samples: Option<u64>,
    /// Steps between checkpoints. There is always one at the end.
    #[serde(default)]
    pub checkpoint_every: Option<u64>,
    /// Number of checkpoints to keep.
    #[serde(default = "default_keep")]
    pub keep_checkpoints: usize,
    /// Also keep the checkpoint with the best value of this held-out metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_best: Option<Figure>,
    /// Stop after this many evaluations in a row without an improvement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// The feature whose ids group held-out samples for an AUC within groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auc_by: Option<String>,
}

/// A metric on held-out samples by which models are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// A higher value is better.
    Auc,
    /// A lower value is better.
    NormalizedEntropy,
    /// A lower value is better.
    Loss,
}

impl Figure {
    /// Returns the name in configurations.
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
