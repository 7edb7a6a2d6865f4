//! How a run proceeds: batch size, length, evaluation, checkpoints, shuffling.

use serde::{Deserialize, Serialize};

/// In what the matrix products multiply; sums, weights as they are kept, embeddings, interaction
/// and loss are f32 in either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// Weights, activations and their gradients rounded to bf16 where they enter a product.
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
    /// Of the matrix products.
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
    /// Samples the shuffle holds back and draws from; 0 keeps the order of the file.
    #[serde(default = "default_shuffle_rows")]
    pub shuffle_rows: usize,
    /// Leave out the last, smaller batch of an epoch.
    #[serde(default)]
    pub drop_last: bool,
    /// Steps between log lines.
    #[serde(default = "default_log_every")]
    pub log_every: u64,
    /// Steps between evaluations on the held-out data; there is always one at the end.
    #[serde(default)]
    pub evaluate_every: Option<u64>,
    /// Samples of one evaluation; all if left out.
    #[serde(default)]
    pub evaluate_samples: Option<u64>,
    /// Steps between checkpoints; there is always one at the end.
    #[serde(default)]
    pub checkpoint_every: Option<u64>,
    /// How many checkpoints are kept.
    #[serde(default = "default_keep")]
    pub keep_checkpoints: usize,
    /// Keep the checkpoint that is best by this held-out figure too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_best: Option<Figure>,
    /// Stop after so many evaluations in a row without a better figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// The feature whose ids part held-out samples into groups with an AUC of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auc_by: Option<String>,
}

/// A figure of held-out samples by which models are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The greater the better.
    Auc,
    /// The smaller the better.
    NormalizedEntropy,
    /// The smaller the better.
    Loss,
}

impl Figure {
    /// As in a configuration.
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
