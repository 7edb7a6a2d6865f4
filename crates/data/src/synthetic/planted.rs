//! The planted model: computes click probabilities from the counts and ids of a row.

use std::ops::Range;

use schema::IndexDistribution;
use schema::random::CounterRng;

use super::config::{SyntheticConfig, SyntheticFeature};
use super::draw::{self, DrawnBlock};

const STREAM_MODEL: u64 = 3;
/// Number of rows on which standard deviations and bias are adjusted, to within 1 %.
pub(super) const PILOT_ROWS: u64 = 1 << 15;
const SMALL_COUNTS: i64 = 2048;

/// The model from which labels are drawn, with all effects and scales.
pub(super) struct Planted {
    bias: f64,
    scales: LogitParts,
    dense: Vec<Curve>,
    features: Vec<Effects>,
    pairs: Vec<(usize, usize)>,
    latent_dim: usize,
}

/// One number for each of the three parts of a logit.
struct LogitParts {
    dense: f64,
    additive: f64,
    interaction: f64,
}

/// A smooth function of `z`, the standardized `ln(1 + max(x, 0))`: a slope and a wave.
struct Curve {
    location: f64,
    scale: f64,
    slope: f64,
    wave: f64,
    phase: f64,
    /// Values for small counts, which are most counts; a lookup is cheaper than a sine.
    small: Vec<f64>,
}

/// Effects of the ids of one feature. Ranks past the end of the tables have no effect.
struct Effects {
    /// Own effects, `[ids]`, with mean 0 and standard deviation 1 under the feature's distribution.
    additive: Vec<f32>,
    /// Latent vectors, `[ids, latent_dim]`; each component has the same moments.
    latent: Vec<f32>,
}

impl Planted {
    pub(super) fn new(config: &SyntheticConfig) -> Self {
        let rng = CounterRng::new(config.seed, STREAM_MODEL);
        let mut planted = Self {
            bias: 0.0,
            scales: LogitParts { dense: 1.0, additive: 1.0, interaction: 1.0 },
            dense: (0..config.dense).map(|column| Curve::new(rng.child(1), column)).collect(),
            features: Vec::with_capacity(config.features.len()),
            pairs: config.planted.pairs.clone(),
            latent_dim: config.planted.latent_dim,
        };
        for (index, feature) in config.features.iter().enumerate() {
            let rng = rng.child(2).child(index as u64);
            planted.features.push(draw_effects(config, feature, rng));
        }
        planted.scale(config);
        planted
    }

    /// Generates the rows of a range, with probabilities and labels.
    pub(super) fn block(&self, config: &SyntheticConfig, rows: Range<u64>) -> DrawnBlock {
        draw::draw_block(config, rows, |block, row| self.probability(block, row))
    }

    /// Computes the click probability of a row of the block.
    pub(super) fn probability(&self, block: &DrawnBlock, row: usize) -> f64 {
        sigmoid(self.linear_logit(block, row) + self.interaction(block, row))
    }

    /// Computes the logit without interactions, which is the best linear model that is known
    /// beforehand.
    pub(super) fn linear_logit(&self, block: &DrawnBlock, row: usize) -> f64 {
        self.bias + self.dense(block, row) + self.additive(block, row)
    }

    fn dense(&self, block: &DrawnBlock, row: usize) -> f64 {
        let counts = &block.dense[row * self.dense.len()..][..self.dense.len()];
        let effects = self.dense.iter().zip(counts).map(|(curve, &count)| curve.at(count));
        effects.sum::<f64>() * self.scales.dense
    }

    fn additive(&self, block: &DrawnBlock, row: usize) -> f64 {
        let first_bag = row * self.features.len();
        let mut sum = 0.0;
        for (index, effects) in self.features.iter().enumerate() {
            let bag = block.bag(first_bag + index);
            sum += bag.iter().map(|&rank| effects.own(rank)).sum::<f64>();
        }
        sum * self.scales.additive
    }

    fn interaction(&self, block: &DrawnBlock, row: usize) -> f64 {
        let first_bag = row * self.features.len();
        let mut sum = 0.0;
        for &(left, right) in &self.pairs {
            for &rank in block.bag(first_bag + left) {
                let vector = self.features[left].vector(rank, self.latent_dim);
                for &other in block.bag(first_bag + right) {
                    sum += dot(vector, self.features[right].vector(other, self.latent_dim));
                }
            }
        }
        sum * self.scales.interaction
    }

    /// Scales each part to its configured standard deviation and the bias to the click rate, using
    /// pilot rows.
    fn scale(&mut self, config: &SyntheticConfig) {
        let block = draw::draw_pilot(config, PILOT_ROWS);
        let part = |logit: &dyn Fn(usize) -> f64| (0..PILOT_ROWS as usize).map(logit).collect();
        let dense: Vec<f64> = part(&|row| self.dense(&block, row));
        let additive: Vec<f64> = part(&|row| self.additive(&block, row));
        let interaction: Vec<f64> = part(&|row| self.interaction(&block, row));
        let wanted = &config.planted;
        self.scales = LogitParts {
            dense: scale_to(wanted.dense_deviation, &dense),
            additive: scale_to(wanted.additive_deviation, &additive),
            interaction: scale_to(wanted.interaction_deviation, &interaction),
        };
        let logits: Vec<f64> = (0..PILOT_ROWS as usize)
            .map(|row| {
                dense[row] * self.scales.dense
                    + additive[row] * self.scales.additive
                    + interaction[row] * self.scales.interaction
            })
            .collect();
        self.bias = bias_for(config.click_rate, &logits);
    }
}

impl Curve {
    fn new(rng: CounterRng, column: usize) -> Self {
        let (location, scale) = draw::log_count(column);
        let place = 3 * column as u64;
        let slope = rng.normal(place);
        // The slope dominates, because a network would take longer to learn a wave of full height
        // than everything else.
        let wave = 0.4 * rng.normal(place + 1);
        let phase = std::f64::consts::TAU * rng.unit(2 * place + 4);
        let mut curve = Self { location, scale, slope, wave, phase, small: Vec::new() };
        curve.small = (0..SMALL_COUNTS).map(|count| curve.compute(count)).collect();
        curve
    }

    /// Evaluates the curve. Missing and negative counts act as 0, as in Criteo's preparations.
    fn at(&self, count: Option<i64>) -> f64 {
        let count = count.unwrap_or(0).max(0);
        self.small.get(count as usize).copied().unwrap_or_else(|| self.compute(count))
    }

    fn compute(&self, count: i64) -> f64 {
        let z = (((count as f64).ln_1p() - self.location) / self.scale).clamp(-3.0, 3.0);
        self.slope * z + self.wave * (1.5 * z + self.phase).sin()
    }
}

impl Effects {
    fn own(&self, rank: u64) -> f64 {
        self.additive.get(rank as usize).map_or(0.0, |&effect| f64::from(effect))
    }

    fn vector(&self, rank: u64, latent_dim: usize) -> &[f32] {
        let start = (rank as usize).saturating_mul(latent_dim);
        self.latent.get(start..start + latent_dim).unwrap_or(&[])
    }
}

fn dot(left: &[f32], right: &[f32]) -> f64 {
    left.iter().zip(right).map(|(a, b)| f64::from(a * b)).sum()
}

fn draw_effects(config: &SyntheticConfig, feature: &SyntheticFeature, rng: CounterRng) -> Effects {
    let ids = feature.cardinality.min(config.planted.effect_ids);
    let shares: Vec<f64> = (0..ids).map(|rank| rank_share(feature, rank)).collect();
    // The effects of all ids in a bag are summed. Dividing them by the root of the mean bag length
    // keeps the deviation of the sum equal to that of a single id.
    let width = feature.hotness.mean().sqrt();
    let column = |rng: CounterRng| -> Vec<f32> {
        let raw: Vec<f64> = (0..ids).map(|rank| rng.normal(rank)).collect();
        standardize(&raw, &shares).iter().map(|effect| (effect / width) as f32).collect()
    };
    let latent_dim = config.planted.latent_dim;
    let mut latent = vec![0.0; ids as usize * latent_dim];
    for component in 0..latent_dim {
        let values = column(rng.child(1 + component as u64));
        for (rank, value) in values.into_iter().enumerate() {
            latent[rank * latent_dim + component] = value;
        }
    }
    Effects { additive: column(rng.child(0)), latent }
}

/// Shifts and scales values to mean 0 and standard deviation 1. Value `i` has probability
/// `shares[i]`, and the remaining probability belongs to the value 0.
fn standardize(values: &[f64], shares: &[f64]) -> Vec<f64> {
    let total: f64 = shares.iter().sum();
    let mean = values.iter().zip(shares).map(|(value, share)| value * share).sum::<f64>() / total;
    let variance: f64 =
        values.iter().zip(shares).map(|(value, share)| (value - mean).powi(2) * share).sum();
    // A single id has no variance, and its effect would be part of the bias.
    let factor = if variance > 1e-12 { variance.sqrt().recip() } else { 0.0 };
    values.iter().map(|value| (value - mean) * factor).collect()
}

/// Returns the probability of a frequency rank under `IndexDistribution::rank_at`.
fn rank_share(feature: &SyntheticFeature, rank: u64) -> f64 {
    let rows = feature.cardinality as f64;
    match feature.distribution {
        IndexDistribution::Uniform => rows.recip(),
        IndexDistribution::Zipf { exponent } => {
            let below = |k: f64| {
                if (exponent - 1.0).abs() < 1e-9 {
                    k.ln() / (rows + 1.0).ln()
                } else {
                    (k.powf(1.0 - exponent) - 1.0) / ((rows + 1.0).powf(1.0 - exponent) - 1.0)
                }
            };
            below(rank as f64 + 2.0) - below(rank as f64 + 1.0)
        }
        IndexDistribution::Reuse(histogram) => histogram.on(feature.cardinality).share(rank),
    }
}

/// Returns the factor that scales the values to the wanted standard deviation; 0 if they do not
/// vary.
fn scale_to(wanted: f64, values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
    if variance > 1e-12 { wanted / variance.sqrt() } else { 0.0 }
}

/// Finds the bias at which the mean probability equals the click rate, by bisection.
fn bias_for(click_rate: f64, logits: &[f64]) -> f64 {
    let (mut low, mut high) = (-60.0, 60.0);
    // Fifty halvings of the interval leave an error of about 10⁻¹³.
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        let clicks: f64 = logits.iter().map(|logit| sigmoid(logit + middle)).sum();
        if clicks < click_rate * logits.len() as f64 {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::super::config::Hotness;
    use super::*;

    #[test]
    fn rank_shares_match_the_draws() {
        for distribution in [
            IndexDistribution::Uniform,
            IndexDistribution::Zipf { exponent: 1.0 },
            IndexDistribution::Zipf { exponent: 1.3 },
            IndexDistribution::Zipf { exponent: 0.6 },
        ] {
            let (name, hotness) = ("x".to_owned(), Hotness::ONE);
            let feature = SyntheticFeature { name, cardinality: 9, distribution, hotness };
            let mut counts = [0.0; 9];
            for i in 0..100_000 {
                let quantile = (f64::from(i) + 0.5) / 1e5;
                counts[distribution.rank_at(quantile, 9) as usize] += 1e-5;
            }
            for (rank, count) in counts.iter().enumerate() {
                let share = rank_share(&feature, rank as u64);
                assert!((share - count).abs() < 1e-4, "{distribution:?} rank {rank}");
            }
        }
    }

    #[test]
    fn effects_have_mean_zero_and_deviation_one() {
        let config = SyntheticConfig::criteo(1, 5);
        let planted = Planted::new(&config);
        for (feature, effects) in config.features.iter().zip(&planted.features).take(8) {
            let shares = (0..effects.additive.len()).map(|rank| rank_share(feature, rank as u64));
            let (mut mean, mut square) = (0.0, 0.0);
            for (share, &effect) in shares.zip(&effects.additive) {
                mean += share * f64::from(effect);
                square += share * f64::from(effect).powi(2);
            }
            assert!(mean.abs() < 1e-6, "mean {mean} of {}", feature.name);
            assert!((square - 1.0).abs() < 1e-5, "square {square} of {}", feature.name);
        }
    }
}
