//! What a model is worth on labelled samples: loss, AUC, normalized entropy, calibration, accuracy.
//!
//! Keeps every (probability, label) in 8 bytes, so all figures but the loss are exact functions of
//! the
//! *set* of samples: the same bits for any batch size and any number of ranks.
//! Knows nothing of models or of where samples come from.

use std::fmt;

use serde::Serialize;

/// The figures of one evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Number of samples.
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
}

/// Bytes that [`Accumulator`] keeps of a sample.
pub const SAMPLE_BYTES: u64 = size_of::<u64>() as u64;

/// Collects samples of one evaluation. 8 bytes per sample.
#[derive(Clone, Debug, Default)]
pub struct Accumulator {
    /// Order-preserving bits of the probability, then the bits of the label.
    samples: Vec<u64>,
    loss_sum: f64,
    spoilt: Option<NotFinite>,
}

/// Samples without a finite probability, or a loss that is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotFinite {
    /// Samples whose probability is NaN.
    Samples {
        /// The first, counted from 0.
        first: u64,
        /// How many.
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
    /// Without samples.
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
        let (first, spoilt) = (self.samples(), probabilities.iter().filter(|p| p.is_nan()).count());
        if spoilt > 0 {
            let place = probabilities.iter().position(|p| p.is_nan()).unwrap_or_default();
            self.add_spoilt(first + place as u64, spoilt as u64);
        }
        self.samples.extend(probabilities.iter().zip(labels).map(|(&p, &y)| pack(p, y)));
        self.loss_sum += loss_sum;
    }

    /// Adds another rank's samples. Merge in rank order for the same loss to the bit.
    pub fn merge(&mut self, other: Self) {
        if let Some(NotFinite::Samples { first, count }) = other.spoilt {
            self.add_spoilt(self.samples() + first, count);
        }
        if self.samples.is_empty() {
            self.samples = other.samples;
        } else {
            self.samples.extend(other.samples);
        }
        self.loss_sum += other.loss_sum;
    }

    /// What keeps the figures from meaning anything, if something does: ask before
    /// [`Self::finish`].
    #[must_use]
    pub fn not_finite(&self) -> Option<NotFinite> {
        let loss = (!self.loss_sum.is_finite()).then_some(NotFinite::Loss(self.loss_sum));
        self.spoilt.or(loss)
    }

    /// Counts samples that came after all counted so far.
    fn add_spoilt(&mut self, first: u64, more: u64) {
        self.spoilt = Some(match self.spoilt {
            Some(NotFinite::Samples { first, count }) => {
                NotFinite::Samples { first, count: count + more }
            }
            _ => NotFinite::Samples { first, count: more },
        });
    }

    /// Samples so far.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples.len() as u64
    }

    /// Sorts the samples and computes the figures.
    #[must_use]
    pub fn finish(mut self) -> Evaluation {
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
        }
    }
}

#[derive(Default)]
struct Sums {
    probabilities: f64,
    labels: f64,
    cross_entropy: f64,
    right: u64,
}

fn sum(samples: &[u64]) -> Sums {
    let mut sums = Sums::default();
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
