//! Computes metrics of a model on labelled samples: loss, AUC, normalized entropy, calibration,
//! accuracy.
//!
//! Every (probability, label) is stored in 8 bytes, so all metrics except the loss are exact
//! functions of the *set* of samples. These metrics have the same bits for any batch size and any
//! number of ranks. This file does not depend on models or on the source of the samples.

use std::fmt;

use schema::{Batch, Figure, JobConfig};
use serde::Serialize;

/// The metrics of one evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    pub samples: u64,
    /// Mean of the training loss, or NaN without samples.
    pub loss: f64,
    /// Area under the ROC curve: the probability that a click has a higher score than a non-click,
    /// where ties count half. The area is 0.5 if one class is missing, and NaN if a probability is
    /// NaN.
    pub auc: f64,
    /// Mean cross-entropy divided by the entropy of the mean label. A value below 1 is better than
    /// a constant prediction. The value is NaN if one class is missing.
    pub normalized_entropy: f64,
    /// Sum of probabilities divided by sum of labels, or NaN without clicks.
    pub calibration: f64,
    /// Share of samples for which (probability > 0.5) = (label > 0.5), or NaN without samples.
    pub accuracy: f64,
    /// AUC within groups of samples, if samples have groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_group: Option<GroupAuc>,
}

/// AUC within groups of samples, such as the samples of one user. This metric measures the ranking
/// that each user sees.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GroupAuc {
    /// Mean over the groups with both labels, weighted by their number of samples. The mean is NaN
    /// if no group has both labels.
    pub auc: f64,
    /// Number of groups that have both labels.
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

/// Returns whether a value of the metric `which` is better than the best value so far.
#[must_use]
pub fn is_better(which: Figure, figure: f64, best: f64) -> bool {
    match which {
        Figure::Auc => figure > best,
        Figure::NormalizedEntropy | Figure::Loss => figure < best,
    }
}

/// Determines the group of each sample of a batch, which is the first id of one feature.
#[derive(Clone, Copy, Debug)]
pub struct Groups(Option<usize>);

impl Groups {
    /// Creates the grouping that `config` requests.
    #[must_use]
    pub fn new(config: &JobConfig) -> Self {
        let features = config.model.features();
        let by = config.training.auc_by.as_ref();
        Self(by.and_then(|by| features.iter().position(|feature| feature.name == *by)))
    }

    /// Returns the group of each sample, `[B]`, or an empty list without grouping. Samples without
    /// an id share one group.
    #[must_use]
    pub fn in_batch(self, batch: &Batch) -> Vec<i64> {
        let Some(feature) = self.0 else { return Vec::new() };
        let first =
            |sample| batch.sparse.values[batch.sparse.bag(feature, sample)].first().copied();
        (0..batch.size).map(|sample| first(sample).unwrap_or(-1)).collect()
    }
}

/// Number of bytes that [`Accumulator`] keeps per sample.
pub const SAMPLE_BYTES: u64 = size_of::<u64>() as u64;

/// Collects the samples of one evaluation, in 8 bytes per sample.
#[derive(Clone, Debug, Default)]
pub struct Accumulator {
    /// The order-preserving bits of the probability, followed by the bits of the label.
    samples: Vec<u64>,
    /// The group of each sample, or an empty list without grouping.
    groups: Vec<i64>,
    loss_sum: f64,
    not_finite: Option<NotFinite>,
}

/// The reason why an evaluation is meaningless: NaN probabilities, or a non-finite loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotFinite {
    /// Some samples have a probability of NaN.
    Samples {
        /// Number of the first such sample, counted from 0.
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
    /// Creates an accumulator that has no samples yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a batch: `probabilities` `[B]`, `labels` `[B]` in `0..=1`, and the sum of its losses.
    ///
    /// # Panics
    /// Panics if the lengths differ.
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

    /// Adds another rank's samples. The loss has the same bits only if ranks are merged in rank
    /// order.
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

    /// Returns the reason why the metrics would be meaningless, if any. Check it before
    /// [`Self::finish`].
    #[must_use]
    pub fn not_finite(&self) -> Option<NotFinite> {
        let loss = (!self.loss_sum.is_finite()).then_some(NotFinite::Loss(self.loss_sum));
        self.not_finite.or(loss)
    }

    /// Counts NaN samples that come after the samples counted so far.
    fn count_nan(&mut self, first: u64, more: u64) {
        self.not_finite = Some(match self.not_finite {
            Some(NotFinite::Samples { first, count }) => {
                NotFinite::Samples { first, count: count + more }
            }
            _ => NotFinite::Samples { first, count: more },
        });
    }

    /// Returns the number of samples added so far.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples.len() as u64
    }

    /// Sorts the samples and computes the metrics.
    #[must_use]
    pub fn finish(mut self) -> Evaluation {
        let has_groups = !self.groups.is_empty() && self.groups.len() == self.samples.len();
        let by_group = has_groups.then(|| by_group(&self.groups, &self.samples));
        // Sums over sorted samples have the same bits for any order of batches and ranks.
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

/// Computes −y ln p − (1 − y) ln(1 − p). `p` is clamped to the range in which an f32 probability is
/// meaningful, so a sigmoid that rounded to 0 or 1 counts as the smallest normal f32 or as half a
/// step below 1.
pub(crate) fn cross_entropy(p: f64, y: f64) -> f64 {
    const HIGHEST: f64 = 1.0 - f32::EPSILON as f64 / 4.0;
    // `clamp` passes NaN through, so the metrics of a diverged model are NaN.
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

/// Computes the area under the ROC curve from samples sorted by score. The function sums clicks ×
/// (non-clicks below + half the non-clicks of the group) over groups of equal scores, and divides
/// the sum by clicks × non-clicks.
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
    // Sorting by group and then by score makes the order of samples independent of batches and
    // ranks.
    pairs.sort_unstable();
    let mut found = GroupAuc { auc: 0.0, groups: 0, samples: 0 };
    for group in pairs.chunk_by(|a, b| a.0 == b.0) {
        let sorted: Vec<u64> = group.iter().map(|&(_, sample)| sample).collect();
        let count = sorted.len() as f64;
        let labels: f64 = sorted.iter().map(|&sample| f64::from(unpack(sample).1)).sum();
        // A group with a single class has no AUC, so it is not counted.
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
    // Adding 0 converts −0 to 0, so that samples with these probabilities count as a tie.
    let bits = (p + 0.0).to_bits();
    // Flip the sign bit of positive floats and all bits of negative ones, so that the integers sort
    // like the floats.
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(ordered) << 32 | u64::from(y.to_bits())
}

fn unpack(sample: u64) -> (f32, f32) {
    let ordered = (sample >> 32) as u32;
    let bits = if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered };
    (f32::from_bits(bits), f32::from_bits(sample as u32))
}
