//! Regression of one number on a few others: an MLP with ReLU and a linear output, trained on the
//! mean squared error.
//!
//! A regression uses the same layers as models, but does not depend on tables and files.

use device::Backend;
use device::MatrixShape;
use device::backend::StepScalars;
use device::optimizer::UpdateRule;
use schema::model::DenseInit;
use schema::random::CounterRng;
use schema::{OptimizerConfig, Precision};

use crate::Error;
use crate::context::{DeviceQueue, RankContext};
use crate::dense::{Dense, DenseStep};
use crate::initial;
use crate::layer::ParameterList;
use crate::layer::logit::{Logit, LogitGiven};
use crate::layer::mlp::{Mlp, MlpGiven};
use crate::memory::{CountingAllocator, MemoryUse};
use crate::profile::Profiler;

/// Stream of random bits that shuffle the rows. Initial weights use the streams of [`initial`].
const ORDER_STREAM: u64 = 101;

/// The shape and training settings of a [`Regression`].
#[derive(Clone, Debug, PartialEq)]
pub struct RegressionConfig {
    /// Number of outputs of each hidden layer.
    pub widths: Vec<usize>,
    /// Optimizer of all parameters.
    pub optimizer: OptimizerConfig,
    pub batch_size: usize,
    /// Seed of the initial weights and of the order of rows.
    pub seed: u64,
}

/// Training rows: inputs and one target per row.
#[derive(Clone, Copy, Debug)]
pub struct RegressionExamples<'a> {
    /// Inputs with the shape `[N, inputs]`, row by row.
    pub inputs: &'a [f32],
    /// Targets with the shape `[N]`.
    pub targets: &'a [f32],
}

/// Mean and standard deviation of a column, used to standardize it.
#[derive(Clone, Copy, Debug)]
struct ColumnScale {
    mean: f32,
    deviation: f32,
}

impl ColumnScale {
    fn from_values(values: impl Iterator<Item = f32> + Clone) -> Self {
        let count = values.clone().count().max(1) as f64;
        let mean = values.clone().map(f64::from).sum::<f64>() / count;
        let square = values.map(|value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count;
        // The deviation of a constant column is 0. Using 1 instead avoids a division by zero.
        let deviation = if square > 0.0 { square.sqrt() } else { 1.0 };
        Self { mean: mean as f32, deviation: deviation as f32 }
    }

    fn scaled(self, value: f32) -> f32 {
        (value - self.mean) / self.deviation
    }
}

/// A regression model with its optimizer state and buffers.
pub struct Regression<B: Backend> {
    context: RankContext<B>,
    config: RegressionConfig,
    inputs: Vec<ColumnScale>,
    target: ColumnScale,
    parameters: Dense<B>,
    hidden: Mlp<B>,
    output: Logit,
    scalars: B::Scalars,
    buffers: RegressionBuffers<B>,
    /// Number of steps and epochs so far.
    steps: u64,
    epochs: u64,
}

/// Device and host buffers for one batch.
struct RegressionBuffers<B: Backend> {
    input: B::Matrix,
    predicted: B::Vector,
    d_predicted: B::Vector,
    d_last: B::Matrix,
    /// Host copies of the rows and of the predictions.
    rows: Vec<f32>,
    read: Vec<f32>,
    gradient: Vec<f32>,
}

impl<B: Backend> Regression<B> {
    /// Creates an MLP with initial weights. `examples` determine the scale of each column.
    ///
    /// # Errors
    /// [`Error::Device`] if the device runs out of memory, [`Error::BatchShape`] if there are no
    /// examples.
    pub fn new(
        device: B,
        config: RegressionConfig,
        examples: RegressionExamples<'_>,
    ) -> Result<Self, Error> {
        let rows = examples.targets.len();
        if rows == 0 || examples.inputs.is_empty() || !examples.inputs.len().is_multiple_of(rows) {
            let (what, expected) = ("rows to learn from", examples.inputs.len());
            return Err(Error::BatchShape { what, expected, got: rows });
        }
        let columns = examples.inputs.len() / rows;
        let column = |at: usize| {
            ColumnScale::from_values(examples.inputs.iter().copied().skip(at).step_by(columns))
        };
        let inputs = (0..columns).map(column).collect();
        let target = ColumnScale::from_values(examples.targets.iter().copied());
        let context = RankContext::alone(device, Profiler::off())?;
        let (widths, batch) = (&config.widths, config.batch_size);
        let last_width = widths.last().copied().unwrap_or(columns);
        let mut list = ParameterList::new(
            CountingAllocator::new(&context.device),
            config.optimizer.kind,
            Precision::F32,
        );
        let hidden = Mlp::new(&mut list, "hidden", columns, widths, batch);
        let output = Logit::new(&mut list, "output", last_width);
        let (mut parameters, initial, mut room) = list.finish();
        let (forward, backward) = (MemoryUse::Activations, MemoryUse::Gradients);
        let buffers = RegressionBuffers {
            input: room.matrix(forward, Precision::F32, MatrixShape::new(batch, columns)),
            predicted: room.vector(forward, batch),
            d_predicted: room.vector(backward, batch),
            d_last: room.matrix(backward, Precision::F32, MatrixShape::new(batch, last_width)),
            rows: Vec::new(),
            read: Vec::new(),
            gradient: Vec::new(),
        };
        let scalars = room.scalars();
        room.finish()?;
        for (number, initial) in initial.into_iter().enumerate() {
            let values = initial.values(context.device.host(), DenseInit::Dlrm, config.seed);
            parameters.set_values(context.device_queue(), number, &values)?;
        }
        let (steps, epochs) = (0, 0);
        Ok(Self {
            context,
            config,
            inputs,
            target,
            parameters,
            hidden,
            output,
            scalars,
            buffers,
            steps,
            epochs,
        })
    }

    /// Trains on every row once, in a new order each time. Returns the mean squared error before
    /// the updates, in units of the targets' variance.
    ///
    /// # Errors
    /// [`Error::BatchShape`] if the number of columns differs, or [`Error::Device`].
    pub fn epoch(&mut self, examples: RegressionExamples<'_>) -> Result<f64, Error> {
        let rows = examples.targets.len();
        let random = CounterRng::new(self.config.seed, ORDER_STREAM).child(self.epochs);
        let mut order: Vec<usize> = (0..rows).collect();
        // Sorting by random bits is a shuffle that depends only on the seed and the epoch.
        order.sort_by_key(|row| random.bits(*row as u64));
        let mut sum = 0.0;
        for batch in order.chunks(self.config.batch_size) {
            sum += self.step(examples, batch)?;
        }
        self.epochs += 1;
        Ok(sum / rows.max(1) as f64)
    }

    /// Predicts the targets of rows `[N, inputs]`.
    ///
    /// # Errors
    /// [`Error::BatchShape`] if the number of columns differs, or [`Error::Device`].
    pub fn predict(&mut self, inputs: &[f32]) -> Result<Vec<f32>, Error> {
        let columns = self.inputs.len();
        let mut predicted = Vec::with_capacity(inputs.len() / columns);
        for rows in inputs.chunks(self.config.batch_size * columns) {
            self.buffers.rows.clear();
            self.put(rows)?;
            let samples = rows.len() / columns;
            // Prediction applies no update, so the factor of the learning rate is 0.
            self.begin(0.0)?;
            self.forward(samples)?;
            let target = self.target;
            let scaled = self.read(samples)?;
            predicted.extend(scaled.iter().map(|value| value * target.deviation + target.mean));
        }
        Ok(predicted)
    }

    /// Trains on one batch and returns the sum of its squared errors before the update.
    fn step(&mut self, examples: RegressionExamples<'_>, batch: &[usize]) -> Result<f64, Error> {
        let columns = self.inputs.len();
        self.buffers.rows.clear();
        for &row in batch {
            let from = (row * columns).min(examples.inputs.len());
            let to = (from + columns).min(examples.inputs.len());
            self.put(&examples.inputs[from..to])?;
        }
        self.begin(1.0)?;
        self.steps += 1;
        self.forward(batch.len())?;
        let (target, samples) = (self.target, batch.len() as f32);
        let wanted = batch.iter().map(|row| target.scaled(examples.targets[*row]));
        let mut gradient = std::mem::take(&mut self.buffers.gradient);
        gradient.clear();
        let off = self.read(batch.len())?.iter().zip(wanted).map(|(got, wanted)| got - wanted);
        gradient.extend(off);
        let sum = gradient.iter().map(|off| f64::from(*off).powi(2)).sum();
        // The loss is the mean of the squared errors, so its derivative has the factor 2 ÷ samples.
        gradient.iter_mut().for_each(|off| *off *= 2.0 / samples);
        self.backward(&gradient)?;
        self.buffers.gradient = gradient;
        Ok(sum)
    }

    fn put(&mut self, rows: &[f32]) -> Result<(), Error> {
        let columns = self.inputs.len();
        if !rows.len().is_multiple_of(columns) || rows.is_empty() {
            let what = "inputs of a row";
            return Err(Error::BatchShape { what, expected: columns, got: rows.len() % columns });
        }
        for row in rows.chunks_exact(columns) {
            let scaled = row.iter().zip(&self.inputs).map(|(value, scale)| scale.scaled(*value));
            self.buffers.rows.extend(scaled);
        }
        Ok(())
    }

    fn begin(&mut self, factor: f64) -> Result<(), Error> {
        let rule = UpdateRule::new(&self.config.optimizer, factor, self.steps);
        let rounding = initial::rounding(self.config.seed, self.steps);
        let numbers = StepScalars { dense: rule, sparse: rule, normaliser: 1.0, rounding };
        let DeviceQueue { device, queue } = self.context.device_queue();
        Ok(device.begin(queue, &numbers, &mut self.scalars)?)
    }

    fn forward(&mut self, samples: usize) -> Result<(), Error> {
        let Self { context, parameters, hidden, output, buffers, .. } = self;
        let RegressionBuffers { input, predicted, rows, .. } = buffers;
        let DeviceQueue { device, queue } = context.device_queue();
        device.pack(queue, rows, MatrixShape::new(samples, self.inputs.len()), input)?;
        hidden.forward(context, parameters, input, samples)?;
        output.forward(context, parameters, hidden.output(input), predicted, samples)
    }

    fn read(&mut self, samples: usize) -> Result<&[f32], Error> {
        let DeviceQueue { device, queue } = self.context.device_queue();
        let RegressionBuffers { predicted, read, .. } = &mut self.buffers;
        Ok(device.read(queue, predicted, samples, read)?)
    }

    fn backward(&mut self, gradient: &[f32]) -> Result<(), Error> {
        let Self { context, parameters, hidden, output, buffers, scalars, .. } = self;
        let RegressionBuffers { input, d_predicted, d_last, .. } = buffers;
        let DeviceQueue { device, queue } = context.device_queue();
        device.write(queue, gradient, d_predicted, 0)?;
        let mut step = DenseStep { dense: parameters, scalars };
        let (x, samples) = (hidden.output(input), gradient.len());
        let after_relu = !self.config.widths.is_empty();
        let given = LogitGiven { x, d_y: &*d_predicted, after_relu, samples };
        output.backward(context, step.dense, given, d_last)?;
        let layers = 0..hidden.layer_count();
        let given = MlpGiven { x: input, d_y: d_last, samples, layers };
        hidden.backward(context, &mut step, given, None)?;
        parameters.update_alone(context, scalars, 0..parameters.len())?;
        let end = self.context.device.end(&self.context.queue, &mut self.scalars)?;
        self.context.device.outcome(&mut self.scalars, end)?;
        Ok(())
    }
}
