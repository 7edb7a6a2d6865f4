//! Fits simple models on the rows of a run, so that its model can be compared with them: the mean
//! label, and a logistic regression on the same columns.
//!
//! The logistic regression has a weight per dense input and per row of a table, so it is the model
//! without embeddings and without interactions. It runs on the host, after the training.

use std::ops::Range;

use data::{Dataset, Loader, LoaderOptions, Position, Shuffle};
use schema::model::Pooling;
use schema::{Batch, Figure, JobConfig};
use serde::Serialize;

use crate::metric::{Accumulator, is_better};
use crate::run::loaders;
use crate::{Error, Evaluation};

/// Strengths of the L2 penalty that are fitted side by side. A strength is 1/C in the notation of
/// scikit-learn: `Σ log loss + strength · |w|² / 2`.
const STRENGTHS: [f32; LANES] = [0.3, 1.0, 3.0, 10.0, 30.0, 100.0];
const LANES: usize = 6;
/// Maximum number of passes over the training rows.
const EPOCHS: u64 = 8;
/// Number of samples after which no further pass begins. A pass over this many samples of forty
/// columns takes seconds.
const SAMPLES: u64 = 10_000_000;
/// Largest number of rows of all tables for which a logistic regression is fitted. It takes 52
/// bytes per row.
const ROWS_MAX: u64 = 20_000_000;
const BATCH_SIZE: usize = 4096;

/// Rows of a dataset.
#[derive(Clone, Copy, Debug)]
pub struct RowRange<'a> {
    pub dataset: &'a Dataset,
    pub start: u64,
    pub end: u64,
}

impl<'a> RowRange<'a> {
    /// Names `rows` of `dataset`.
    #[must_use]
    pub fn new(dataset: &'a Dataset, rows: &Range<u64>) -> Self {
        Self { dataset, start: rows.start, end: rows.end }
    }
}

/// The rows on which baselines are fitted, chosen and tested.
#[derive(Clone, Copy, Debug)]
pub struct BaselineRows<'a> {
    pub train: RowRange<'a>,
    /// Rows by which the strength of the penalty is chosen.
    pub validation: RowRange<'a>,
    pub test: Option<RowRange<'a>>,
}

/// The figures of a model on the held-out rows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeldOutFigures {
    pub validation: Evaluation,
    pub test: Option<Evaluation>,
}

/// The baselines of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Baselines {
    /// Predicts the mean label of the training rows for every sample.
    pub base_rate: HeldOutFigures,
    /// The logistic regression, or `None` if the tables have too many rows.
    pub logistic_regression: Option<HeldOutFigures>,
}

/// Fits the baselines for the model of `config`. Calls `observe` with the number of training
/// samples that were read, and their total number.
///
/// # Errors
/// Returns [`Error::Data`] if rows cannot be read.
pub fn fit(
    config: &JobConfig,
    rows: BaselineRows<'_>,
    observe: &mut dyn FnMut(u64, u64),
) -> Result<Baselines, Error> {
    let train = rows.train;
    let per_epoch = train.end.saturating_sub(train.start);
    let epochs = (SAMPLES / per_epoch.max(1)).clamp(1, EPOCHS);
    let total = epochs * per_epoch;
    let mut model = FirstOrderModel::new(config, per_epoch);
    model.count(in_order(config, train)?)?;
    let base_rate = model.mean_label();
    let by = config.training.keep_best.unwrap_or(Figure::Auc);
    let held_out = |predict: &mut dyn FnMut(&Batch, &mut Vec<f32>)| {
        let validation = evaluate(in_order(config, rows.validation)?, predict)?;
        let test = rows.test.map(|test| evaluate(in_order(config, test)?, predict)).transpose()?;
        Ok::<_, Error>(HeldOutFigures { validation, test })
    };
    let constant = held_out(&mut |batch, probabilities| {
        probabilities.resize(batch.size, base_rate as f32);
    })?;
    let mut baselines = Baselines { base_rate: constant, logistic_regression: None };
    if model.rows() > ROWS_MAX {
        return Ok(baselines);
    }
    model.begin();
    let mut samples = 0;
    for loaded in shuffled(config, train, epochs)? {
        let batch = loaded?.batch;
        // The rate falls to 0, so that the last weights do not depend on the last samples.
        model.learn(&batch, 1.0 - samples as f64 / total as f64);
        samples += batch.size as u64;
        observe(samples, total);
    }
    for lane in 0..LANES {
        let figures = held_out(&mut |batch, out| model.predict(batch, lane, out))?;
        let best = baselines.logistic_regression;
        let is_best = best.is_none_or(|best| {
            is_better(by, figures.validation.figure(by), best.validation.figure(by))
        });
        if is_best {
            baselines.logistic_regression = Some(figures);
        }
    }
    Ok(baselines)
}

fn in_order(config: &JobConfig, rows: RowRange<'_>) -> Result<Loader, Error> {
    loaders::in_order(rows.dataset, &config.model, BATCH_SIZE, rows.start..rows.end)
}

fn shuffled(config: &JobConfig, rows: RowRange<'_>, epochs: u64) -> Result<Loader, Error> {
    let training = &config.training;
    let shuffle = Shuffle { seed: training.seed, buffer_rows: training.shuffle_rows };
    let options = LoaderOptions {
        batch_size: BATCH_SIZE,
        shuffle: (training.shuffle_rows > 0).then_some(shuffle),
        drop_last: false,
        rows: rows.start..rows.end,
        start: Position::default(),
        epochs: Some(epochs),
        batches: None,
    };
    Ok(Loader::start(rows.dataset, &loaders::feature_plan(&config.model), options)?)
}

/// Evaluates a model on all batches of `loader`. `predict` appends the probability of each sample
/// of a batch to an empty list.
fn evaluate(
    loader: Loader,
    predict: &mut dyn FnMut(&Batch, &mut Vec<f32>),
) -> Result<Evaluation, Error> {
    let (mut accumulator, mut probabilities) = (Accumulator::new(), Vec::new());
    for loaded in loader {
        let batch = loaded?.batch;
        probabilities.clear();
        predict(&batch, &mut probabilities);
        let loss =
            |(p, y): (&f32, &f32)| crate::metric::cross_entropy(f64::from(*p), f64::from(*y));
        let loss_sum = probabilities.iter().zip(&batch.labels).map(loss).sum();
        accumulator.push(&probabilities, &batch.labels, loss_sum);
    }
    Ok(accumulator.finish())
}

/// Values of one weight, or of its state, under each strength of the penalty.
type Lanes = [f32; LANES];

/// One sparse feature of the model, as the logistic regression sees it.
#[derive(Clone, Copy, Debug)]
struct FeatureWeights {
    /// Index of the feature's first weight.
    first: usize,
    rows: usize,
    pooling: Pooling,
    /// Number of ids of a bag that are used, for a feature without pooling.
    length: usize,
}

/// A logistic regression with several strengths of the penalty, trained by stochastic gradients.
///
/// A weight is penalized when a sample uses it, by its share of the penalty of a whole pass, so the
/// expected gradient of a pass is that of the penalized loss. AdaGrad scales the steps of each
/// weight (Duchi, Hazan and Singer, JMLR 2011).
struct FirstOrderModel {
    features: Vec<FeatureWeights>,
    dense: usize,
    samples: u64,
    label_sum: f64,
    /// Number of samples in which each weight is used.
    uses: Vec<f32>,
    weights: Vec<Lanes>,
    squares: Vec<Lanes>,
    bias: Lanes,
    bias_squares: Lanes,
    /// The weights of the current sample, with their inputs.
    active: Vec<(usize, f32)>,
}

/// Base learning rate of AdaGrad.
const RATE: f64 = 0.15;

impl FirstOrderModel {
    fn new(config: &JobConfig, samples: u64) -> Self {
        let model = &config.model;
        let mut first = model.dense_features;
        let feature = |feature: schema::model::Feature<'_>| {
            let table = &model.tables[feature.table];
            let rows = table.rows as usize;
            let length = table.sequence_length.unwrap_or(usize::MAX);
            let weights = FeatureWeights { first, rows, pooling: table.pooling, length };
            first = first.saturating_add(rows);
            weights
        };
        Self {
            features: model.features().into_iter().map(feature).collect(),
            dense: model.dense_features,
            samples,
            label_sum: 0.0,
            uses: Vec::new(),
            weights: Vec::new(),
            squares: Vec::new(),
            bias: [0.0; LANES],
            bias_squares: [0.0; LANES],
            active: Vec::new(),
        }
    }

    /// Returns the number of weights of categories.
    fn rows(&self) -> u64 {
        self.features.iter().map(|feature| feature.rows as u64).fold(0, u64::saturating_add)
    }

    fn mean_label(&self) -> f64 {
        self.label_sum / self.samples.max(1) as f64
    }

    /// Counts the uses of each weight, and sums the labels.
    fn count(&mut self, loader: Loader) -> Result<(), Error> {
        let is_small = self.rows() <= ROWS_MAX;
        if is_small {
            self.uses = vec![0.0; self.dense + self.rows() as usize];
        }
        for loaded in loader {
            let batch = loaded?.batch;
            self.label_sum += batch.labels.iter().copied().map(f64::from).sum::<f64>();
            for sample in (0..batch.size).filter(|_| is_small) {
                self.collect_active(&batch, sample);
                self.active.iter().for_each(|&(at, _)| self.uses[at] += 1.0);
            }
        }
        Ok(())
    }

    /// Allocates the weights. The bias starts at the logit of the base rate.
    fn begin(&mut self) {
        let mean = self.mean_label().clamp(1e-6, 1.0 - 1e-6);
        self.bias = [(mean / (1.0 - mean)).ln() as f32; LANES];
        self.weights = vec![[0.0; LANES]; self.uses.len()];
        self.squares = vec![[0.0; LANES]; self.uses.len()];
    }

    /// Lists the weights that a sample uses, with their inputs.
    fn collect_active(&mut self, batch: &Batch, sample: usize) {
        self.active.clear();
        let dense = &batch.dense[sample * self.dense..][..self.dense];
        let inputs = dense.iter().copied().enumerate().filter(|(_, input)| *input != 0.0);
        self.active.extend(inputs);
        for (number, feature) in self.features.iter().enumerate() {
            let bag = &batch.sparse.values[batch.sparse.bag(number, sample)];
            let bag = &bag[..bag.len().min(feature.length)];
            let input = match feature.pooling {
                Pooling::Mean => 1.0 / bag.len().max(1) as f32,
                Pooling::Sum | Pooling::None => 1.0,
            };
            let ids = bag.iter().filter_map(|&id| usize::try_from(id).ok());
            let known = ids.filter(|&id| id < feature.rows);
            self.active.extend(known.map(|id| (feature.first + id, input)));
        }
    }

    fn logits(&self) -> Lanes {
        let mut logits = self.bias;
        for &(at, input) in &self.active {
            let weights = &self.weights[at];
            logits.iter_mut().zip(weights).for_each(|(logit, weight)| *logit += weight * input);
        }
        logits
    }

    /// Trains on every sample of a batch, with `factor` times the base learning rate.
    fn learn(&mut self, batch: &Batch, factor: f64) {
        let rate = (RATE * factor) as f32;
        for sample in 0..batch.size {
            self.collect_active(batch, sample);
            let label = batch.labels[sample];
            let error = self.logits().map(|logit| sigmoid(logit) - label);
            for &(at, input) in &self.active {
                let uses = self.uses[at];
                let (weights, squares) = (&mut self.weights[at], &mut self.squares[at]);
                for (lane, strength) in STRENGTHS.iter().enumerate() {
                    let penalty = strength / uses * weights[lane];
                    let gradient = error[lane] * input + penalty;
                    squares[lane] += gradient * gradient;
                    weights[lane] -= rate * gradient / (squares[lane].sqrt() + 1e-6);
                }
            }
            for (lane, error) in error.iter().enumerate() {
                self.bias_squares[lane] += error * error;
                self.bias[lane] -= rate * error / (self.bias_squares[lane].sqrt() + 1e-6);
            }
        }
    }

    /// Appends the probabilities of a batch under one strength of the penalty.
    fn predict(&mut self, batch: &Batch, lane: usize, probabilities: &mut Vec<f32>) {
        for sample in 0..batch.size {
            self.collect_active(batch, sample);
            probabilities.push(sigmoid(self.logits()[lane]));
        }
    }
}

fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

#[cfg(test)]
mod tests;
