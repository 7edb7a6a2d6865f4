//! Metrics of a model on labelled samples: loss, AUC, normalized entropy, calibration, accuracy.
//!
//! Keeps every (probability, label) in 8 bytes, so all figures but the loss are exact functions of
//! the *set* of samples: the same bits for any batch size and any number of ranks. Independent of
//! models and of the source of the samples.

use std::fmt;

use schema::{Batch, Figure, JobConfig};
use serde::Serialize;

/// The metrics of one evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    pub samples: u64,
    /// Mean of the training loss; NaN without samples.
    pub loss: f64,
    /// Area under the ROC curve, ties counted half: the probability that a click is scored above a
    /// non-click. 0.5 where one class is missing, NaN if a probability is NaN.
    pub auc: f64,
    /// Mean cross-entropy ÷ entropy of the mean label; below 1 is better than a constant.
    /// NaN where one class is missing.
    pub normalized_entropy: f64,
    /// Σ probability ÷ Σ label; NaN without clicks.
    pub calibration: f64,
    /// Share of samples with (probability > 0.5) = (label > 0.5); NaN without samples.
    pub accuracy: f64,
    /// AUC within groups of samples, if they have any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_group: Option<GroupAuc>,
}

/// AUC within groups of samples, such as those of one user: it measures the ranking that each user
/// sees.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GroupAuc {
    /// Mean over the groups with both labels, weighted by their samples; NaN without any.
    pub auc: f64,
    /// Groups with both labels.
    pub groups: u64,
    pub samples: u64,
}

impl Evaluation {
    /// Returns the metric by which models are compared.
    #[must_use]
    pub fn figure(&self, which: Figure) -> f64 {
        match which {
            Figure::Auc => self.auc,
            Figure::NormalizedEntropy => self.normalized_entropy,
            Figure::Loss => self.loss,
        }
    }
}

/// Whether a value of the metric `which` is better than the best value so far.
#[must_use]
pub fn is_better(which: Figure, figure: f64, best: f64) -> bool {
    match which {
        Figure::Auc => figure > best,
        Figure::NormalizedEntropy | Figure::Loss => figure < best,
    }
}

/// Finds the group of each sample of a batch: the first id of one feature.
#[derive(Clone, Copy, Debug)]
pub struct Groups(Option<usize>);

impl Groups {
    /// The grouping that `config` asks for.
    #[must_use]
    pub fn new(config: &JobConfig) -> Self {
        let features = config.model.features();
        let by = config.training.auc_by.as_ref();
        Self(by.and_then(|by| features.iter().position(|feature| feature.name == *by)))
    }

    /// Returns the group of each sample, `[B]`; empty without grouping. Samples without an id form
    /// a group of their own.
    #[must_use]
    pub fn in_batch(self, batch: &Batch) -> Vec<i64> {
        let Some(feature) = self.0 else { return Vec::new() };
        let first =
            |sample| batch.sparse.values[batch.sparse.bag(feature, sample)].first().copied();
        (0..batch.size).map(|sample| first(sample).unwrap_or(-1)).collect()
    }
}

/// Bytes that [`Accumulator`] keeps of a sample.
pub const SAMPLE_BYTES: u64 = size_of::<u64>() as u64;

/// Collects samples of one evaluation. 8 bytes per sample.
#[derive(Clone, Debug, Default)]
pub struct Accumulator {
    /// Order-preserving bits of the probability, then the bits of the label.
    samples: Vec<u64>,
    /// The group of each sample; empty without grouping.
    groups: Vec<i64>,
    loss_sum: f64,
    not_finite: Option<NotFinite>,
}

/// The reason why an evaluation is meaningless: NaN probabilities, or a non-finite loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotFinite {
    /// Samples whose probability is NaN.
    Samples {
        /// The first, counted from 0.
        first: u64,
        count: u64,
    },
    /// Every probability is a number, but the sum of the losses is not finite.
    Loss(f64),
}

impl fmt::Display for NotFinite {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Samples { first, count: 1 } => {
                write!(out, "sample {first}: expected a probability, got NaN")
            }
            Self::Samples { first, count } => {
                write!(out, "{count} samples, the first {first}: expected a probability, got NaN")
            }
            Self::Loss(loss) => write!(out, "the loss is {loss}, expected a finite number"),
        }
    }
}

impl Accumulator {
    /// An accumulator that has no samples yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a batch: `probabilities` `[B]`, `labels` `[B]` in `0..=1`, and the sum of its losses.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn push(&mut self, probabilities: &[f32], labels: &[f32], loss_sum: f64) {
        assert_eq!(probabilities.len(), labels.len(), "one label per probability");
        let (first, nan_count) =
            (self.samples(), probabilities.iter().filter(|p| p.is_nan()).count());
        if nan_count > 0 {
            let place = probabilities.iter().position(|p| p.is_nan()).unwrap_or_default();
            self.count_nan(first + place as u64, nan_count as u64);
        }
        self.samples.extend(probabilities.iter().zip(labels).map(|(&p, &y)| pack(p, y)));
        self.loss_sum += loss_sum;
    }

    /// Adds the groups of the samples of a batch, `[B]`. Call it for every batch or for none.
    pub fn push_groups(&mut self, groups: &[i64]) {
        self.groups.extend_from_slice(groups);
    }

    /// Adds another rank's samples. Merge in rank order for the same loss to the bit.
    pub fn merge(&mut self, other: Self) {
        if let Some(NotFinite::Samples { first, count }) = other.not_finite {
            self.count_nan(self.samples() + first, count);
        }
        if self.samples.is_empty() {
            self.samples = other.samples;
        } else {
            self.samples.extend(other.samples);
        }
        self.groups.extend(other.groups);
        self.loss_sum += other.loss_sum;
    }

    /// The reason why the metrics would be meaningless, if any. Check it before [`Self::finish`].
    #[must_use]
    pub fn not_finite(&self) -> Option<NotFinite> {
        let loss = (!self.loss_sum.is_finite()).then_some(NotFinite::Loss(self.loss_sum));
        self.not_finite.or(loss)
    }

    /// Counts NaN samples that come after those counted so far.
    fn count_nan(&mut self, first: u64, more: u64) {
        self.not_finite = Some(match self.not_finite {
            Some(NotFinite::Samples { first, count }) => {
                NotFinite::Samples { first, count: count + more }
            }
            _ => NotFinite::Samples { first, count: more },
        });
    }

    /// The number of samples added so far.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples.len() as u64
    }

    /// Sorts the samples and computes the metrics.
    #[must_use]
    pub fn finish(mut self) -> Evaluation {
        let has_groups = !self.groups.is_empty() && self.groups.len() == self.samples.len();
        let by_group = has_groups.then(|| by_group(&self.groups, &self.samples));
        self.samples.sort_unstable();
        let count = self.samples.len() as f64;
        let sums = sum(&self.samples);
        let mean = sums.labels / count;
        let entropy = -(mean * mean.ln() + (1.0 - mean) * (1.0 - mean).ln());
        Evaluation {
            samples: self.samples.len() as u64,
            loss: self.loss_sum / count,
            auc: area(&self.samples, sums.labels, count - sums.labels),
            normalized_entropy: sums.cross_entropy / count / entropy,
            calibration: if sums.labels > 0.0 {
                sums.probabilities / sums.labels
            } else {
                f64::NAN
            },
            accuracy: sums.right as f64 / count,
            by_group,
        }
    }
}

/// Sums over the evaluated samples, from which the final metrics are computed.
#[derive(Default)]
struct MetricSums {
    probabilities: f64,
    labels: f64,
    cross_entropy: f64,
    right: u64,
}

fn sum(samples: &[u64]) -> MetricSums {
    let mut sums = MetricSums::default();
    for &sample in samples {
        let (p, y) = unpack(sample);
        sums.probabilities += f64::from(p);
        sums.labels += f64::from(y);
        sums.cross_entropy += cross_entropy(f64::from(p), f64::from(y));
        sums.right += u64::from((p > 0.5) == (y > 0.5));
    }
    sums
}

/// −y ln p − (1 − y) ln(1 − p), with `p` kept where an f32 probability still means something: a
/// sigmoid that rounded to 0 or 1 counts as the smallest normal f32 or as half a step below 1.
fn cross_entropy(p: f64, y: f64) -> f64 {
    const HIGHEST: f64 = 1.0 - f32::EPSILON as f64 / 4.0;
    // `clamp` lets NaN through, so a diverged model shows.
    let p = p.clamp(f64::from(f32::MIN_POSITIVE), HIGHEST);
    let mut sum = 0.0;
    if y > 0.0 {
        sum -= y * p.ln();
    }
    if y < 1.0 {
        sum -= (1.0 - y) * (-p).ln_1p();
    }
    sum
}

/// Σ over tie groups, lowest first, of clicks × (non-clicks below + half the non-clicks of the
/// group).
fn area(sorted: &[u64], positives: f64, negatives: f64) -> f64 {
    if sorted.iter().any(|&sample| unpack(sample).0.is_nan()) {
        return f64::NAN;
    }
    if positives <= 0.0 || negatives <= 0.0 {
        return 0.5;
    }
    let (mut area, mut below) = (0.0, 0.0);
    for group in sorted.chunk_by(|a, b| a >> 32 == b >> 32) {
        let clicks: f64 = group.iter().map(|&sample| f64::from(unpack(sample).1)).sum();
        let others = group.len() as f64 - clicks;
        area += clicks * (below + others / 2.0);
        below += others;
    }
    area / (positives * negatives)
}

fn by_group(groups: &[i64], samples: &[u64]) -> GroupAuc {
    let mut pairs: Vec<(i64, u64)> = groups.iter().copied().zip(samples.iter().copied()).collect();
    pairs.sort_unstable();
    let mut found = GroupAuc { auc: 0.0, groups: 0, samples: 0 };
    for group in pairs.chunk_by(|a, b| a.0 == b.0) {
        let sorted: Vec<u64> = group.iter().map(|&(_, sample)| sample).collect();
        let count = sorted.len() as f64;
        let labels: f64 = sorted.iter().map(|&sample| f64::from(unpack(sample).1)).sum();
        if labels > 0.0 && labels < count {
            found.auc += count * area(&sorted, labels, count - labels);
            found.groups += 1;
            found.samples += sorted.len() as u64;
        }
    }
    found.auc /= found.samples as f64;
    found
}

fn pack(p: f32, y: f32) -> u64 {
    // Adding 0 makes −0 into 0, so that the two tie.
    let bits = (p + 0.0).to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(ordered) << 32 | u64::from(y.to_bits())
}

fn unpack(sample: u64) -> (f32, f32) {
    let ordered = (sample >> 32) as u32;
    let bits = if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered };
    (f32::from_bits(bits), f32::from_bits(sample as u32))
}
