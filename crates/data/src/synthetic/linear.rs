//! Fits the best linear model of the planted data: a logistic regression on one-hot ids and on
//! curves of the dense columns, fitted to the true probabilities. The module generates its own
//! rows.

use std::ops::Range;

use super::chunk::for_each_chunk;
use super::config::SyntheticConfig;
use super::draw::DrawnBlock;
use super::planted::{Planted, sigmoid};
use super::score;
use crate::Error;

/// Size of the fit: the number of rows with as many values as Criteo's, which lie past the end of
/// the file, and the number of passes over them.
const FIT_ROWS: u64 = 1 << 18;
const CRITEO_VALUES: f64 = 39.0;
const PASSES: u64 = 2;
/// Largest number of rows on which the model is measured.
const MEASURE_ROWS: u64 = 1 << 18;
const LEARNING_RATE: f64 = 0.03;
/// Number of knots of a dense column's curve, evenly spaced in `ln(1 + x)` over `0..=KNOT_SPAN`.
const KNOTS: usize = 24;
const KNOT_SPAN: f64 = 12.0;

/// AUC of the best linear model, with the number of rows it was measured on and fitted to.
pub(super) struct BestLinear {
    pub auc: f64,
    pub rows: u64,
    pub fit_rows: u64,
}

/// Fits the model on rows past the end of the file, and measures it on the first rows of the file.
pub(super) fn fit_best(
    config: &SyntheticConfig,
    planted: &Planted,
    threads: usize,
) -> Result<BestLinear, Error> {
    let make = |rows: Range<u64>| PlantedSample::new(planted.block(config, rows), config, planted);
    let mut model = Model::new(config);
    let fit_rows = fit_rows(config);
    for _ in 0..PASSES {
        for_each_chunk(threads, config.rows..config.rows + fit_rows, make, |sample| {
            (0..sample.block.rows()).for_each(|row| model.learn(&sample, row));
            Ok(())
        })?;
    }
    let rows = config.rows.min(MEASURE_ROWS.min(4 * fit_rows));
    let (mut start, mut fitted, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for_each_chunk(threads, 0..rows, make, |sample| {
        start.extend_from_slice(&sample.logits);
        fitted.extend((0..sample.block.rows()).map(|row| model.logit(&sample, row)));
        labels.extend_from_slice(&sample.block.labels);
        Ok(())
    })?;
    let auc = score::auc(&start, &labels).max(score::auc(&fitted, &labels));
    Ok(BestLinear { auc, rows, fit_rows })
}

/// Estimates the bytes of a row's logit and knots, in addition to its block.
pub(super) fn row_bytes(config: &SyntheticConfig) -> f64 {
    (size_of::<f64>() + config.dense * size_of::<(usize, f64)>()) as f64
}

/// Returns the number of rows to fit on. The number is smaller where rows have more ids and counts
/// than Criteo's, so that the cost stays the same.
pub(super) fn fit_rows(config: &SyntheticConfig) -> u64 {
    let ids: f64 = config.features.iter().map(|feature| feature.hotness.mean()).sum();
    let values = config.dense as f64 + ids;
    (FIT_ROWS as f64 * CRITEO_VALUES / values.max(CRITEO_VALUES)) as u64
}

/// Generated rows with their planted additive logits, which the model starts from.
struct PlantedSample {
    block: DrawnBlock,
    logits: Vec<f64>,
    /// Knot below each count, and the distance to it, `[rows, dense]`.
    knots: Vec<(usize, f64)>,
}

impl PlantedSample {
    fn new(block: DrawnBlock, config: &SyntheticConfig, planted: &Planted) -> Self {
        let logits = (0..block.rows()).map(|row| planted.linear_logit(&block, row)).collect();
        let knots = block.dense.iter().enumerate().map(|(at, count)| {
            let column = at % config.dense;
            // The first knot of each column is for missing counts.
            let base = column * (KNOTS + 1);
            let Some(count) = *count else { return (base, 0.0) };
            let place = (count.max(0) as f64).ln_1p() / KNOT_SPAN * (KNOTS - 1) as f64;
            let below = (place as usize).min(KNOTS - 2);
            (base + 1 + below, (place - below as f64).min(1.0))
        });
        let knots = knots.collect();
        Self { block, logits, knots }
    }
}

/// A weight of the linear model with its Adagrad state.
#[derive(Clone, Copy, Default)]
struct LinearWeight {
    value: f64,
    squares: f64,
}

impl LinearWeight {
    fn step(&mut self, gradient: f64) {
        self.squares += gradient * gradient;
        self.value -= LEARNING_RATE * gradient / (self.squares.sqrt() + 1e-10);
    }
}

/// The logistic regression, with one weight per id, knot and field presence.
struct Model {
    bias: LinearWeight,
    /// Factor of the planted additive logit.
    start: LinearWeight,
    /// Weights of the knots, `[dense, 1 + KNOTS]`.
    dense: Vec<LinearWeight>,
    /// Weights of each feature: one per id with an effect, one for all other ids, and one for
    /// missing.
    features: Vec<Vec<LinearWeight>>,
}

impl Model {
    fn new(config: &SyntheticConfig) -> Self {
        let ids = |cardinality: u64| cardinality.min(config.planted.effect_ids) as usize + 2;
        Self {
            bias: LinearWeight::default(),
            start: LinearWeight { value: 1.0, squares: 0.0 },
            dense: vec![LinearWeight::default(); config.dense * (KNOTS + 1)],
            features: config
                .features
                .iter()
                .map(|feature| vec![LinearWeight::default(); ids(feature.cardinality)])
                .collect(),
        }
    }

    fn logit(&self, sample: &PlantedSample, row: usize) -> f64 {
        let mut logit = self.bias.value + self.start.value * sample.logits[row];
        let columns = self.dense.len() / (KNOTS + 1);
        for &(knot, above) in &sample.knots[row * columns..][..columns] {
            logit += (1.0 - above) * self.dense[knot].value;
            if above > 0.0 {
                logit += above * self.dense[knot + 1].value;
            }
        }
        for (index, weights) in self.features.iter().enumerate() {
            let bag = sample.block.bag(row * self.features.len() + index);
            logit +=
                weight_indices(bag, weights.len()).map(|place| weights[place].value).sum::<f64>();
        }
        logit
    }

    fn learn(&mut self, sample: &PlantedSample, row: usize) {
        let probability = sigmoid(self.logit(sample, row));
        let error = probability - sample.block.probabilities[row];
        self.bias.step(error);
        self.start.step(error * sample.logits[row]);
        let columns = self.dense.len() / (KNOTS + 1);
        for &(knot, above) in &sample.knots[row * columns..][..columns] {
            self.dense[knot].step(error * (1.0 - above));
            if above > 0.0 {
                self.dense[knot + 1].step(error * above);
            }
        }
        let features = self.features.len();
        for (index, weights) in self.features.iter_mut().enumerate() {
            let bag = sample.block.bag(row * features + index);
            weight_indices(bag, weights.len()).for_each(|place| weights[place].step(error));
        }
    }
}

/// Returns the indices of a bag's weights. The last weight is for empty bags, the one before for
/// ids without effect.
fn weight_indices(bag: &[u64], weights: usize) -> impl Iterator<Item = usize> {
    let empty = bag.is_empty().then_some(weights - 1);
    bag.iter().map(move |&rank| (rank as usize).min(weights - 2)).chain(empty)
}
