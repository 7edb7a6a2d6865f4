//! Runs training steps on generated batches. This module times whole steps, or records the
//! operations of each step. `rowmill-bench train` and `rowmill predict learn` share this module.

use std::sync::atomic::{AtomicBool, Ordering};

use comm::world;
use device::{Backend, Cpu, Pool};
use schema::{Batch, FeatureStats, IdLaw, JobConfig, Rank, ShardingPlan, TableConfig};
use setup::error::Error;
use setup::synthetic::Laws;
use trace::{Clock, OpSpan, Recorder};
use train::profile::Profiler;
use train::run::run_info;
use train::{Model, RankContext, SampleShare};

use crate::batches::{self, Made};
use crate::sample::{BenchSample, Watch};

/// Number of untimed steps before the first timed one.
pub const WARM_UP: usize = 3;

/// A recorded training step: its duration and the spans of its operations.
#[derive(Clone, Debug)]
pub struct BenchStep {
    pub seconds: f64,
    pub spans: Vec<OpSpan>,
}

/// Records training steps of a configuration. Each step uses a different batch, so steps reuse rows
/// but never whole batches. Recording ends early once `stop` is set.
pub fn record_steps(
    config: &JobConfig,
    pooling: usize,
    count: usize,
    cpu: Cpu,
    stop: &AtomicBool,
) -> Result<Vec<BenchSample<BenchStep>>, Error> {
    let mut steps = BenchSteps::new(config, pooling, WARM_UP + count, cpu)?;
    steps.train(WARM_UP)?;
    let wanted = (0..count).take_while(|_| !stop.load(Ordering::SeqCst));
    wanted.map(|_| steps.record_step()).collect()
}

/// Generates `count` distinct batches for a configuration, with `pooling` ids per bag of pooled
/// features.
///
/// # Errors
/// Returns an error if an id distribution cannot be read.
pub fn make_batches(
    config: &JobConfig,
    pooling: usize,
    host: &Pool,
    count: usize,
) -> Result<Vec<Batch>, Error> {
    let model = &config.model;
    let tables = || model.features().into_iter().map(|feature| &model.tables[feature.table]);
    let mut laws = Laws::default();
    let distribution = |table: &TableConfig| {
        laws.distribution(config.synthetic.law(&table.name).unwrap_or(&IdLaw::Uniform))
    };
    let stats = FeatureStats::with_bag_sizes(config, u32::try_from(pooling).unwrap_or(u32::MAX));
    let length = |(table, stats): (&TableConfig, &FeatureStats)| {
        table.sequence_length.unwrap_or(stats.longest_bag as usize)
    };
    let lengths = tables().zip(&stats).map(length).collect();
    let made = Made {
        rows: tables().map(|table| table.rows).collect(),
        lengths,
        dense_features: model.dense_features,
        batch_size: config.training.batch_size,
        distributions: tables().map(distribution).collect::<Result<_, _>>()?,
    };
    Ok(batches::make_some(host, &made, count))
}

/// A model on one rank that trains on generated batches, with steps that can be recorded.
pub struct BenchSteps<B: Backend> {
    pub context: RankContext<B>,
    model: Model<B>,
    batches: Vec<Batch>,
    /// The clock with which spans are recorded.
    pub clock: Clock,
    /// Number of steps so far, both timed and recorded.
    step: usize,
}

impl<B: Backend> BenchSteps<B> {
    /// Builds the model of `config`, and generates `batches` distinct batches for it.
    ///
    /// # Errors
    /// Returns an error if an id distribution cannot be read, or if the device has too little
    /// memory.
    pub fn new(
        config: &JobConfig,
        pooling: usize,
        batches: usize,
        device: B,
    ) -> Result<Self, Error> {
        let (host, threads) = (device.host(), device.host().threads());
        let batch_size = config.training.batch_size;
        let plan = ShardingPlan::table_wise(&config.model.tables, 1);
        let batches = make_batches(config, pooling, host, batches)?;
        let clock = Clock::start();
        let profiler = Profiler::new(Recorder::new(run_info(&world(1)[0], threads, clock)), clock);
        let context = RankContext::alone(device, profiler)?;
        let trained = Model::initial(context.device_queue(), config, &plan, Rank(0), batch_size)?;
        Ok(Self { context, model: trained, batches, clock, step: 0 })
    }

    /// Trains the next `count` steps and returns the mean loss of the last one. All steps are
    /// started before the first wait for the device.
    ///
    /// # Errors
    /// Returns an error if the loss is not finite, or if the device fails.
    pub fn train(&mut self, count: usize) -> Result<f64, Error> {
        let first = self.step;
        let share = |number: usize| {
            let batch = &self.batches[number % self.batches.len()];
            SampleShare { batch, first_sample: 0, global_size: batch.size }
        };
        // A GPU works asynchronously. All steps are started before the first wait, so that the host
        // can run ahead as it does in training.
        let mut started = Vec::with_capacity(count);
        for number in first..first + count {
            let step = train::RunStep { number: number as u64, factor: 1.0 };
            started.push(self.model.start(&mut self.context, share(number), step)?);
        }
        self.step += count;
        let mut loss = f64::NAN;
        for (number, started) in (first..).zip(started) {
            let share = share(number);
            let sum = self.model.finish(&mut self.context, started, share)?;
            loss = sum / share.global_size as f64;
        }
        if !loss.is_finite() {
            // After a non-finite loss, weights no longer change, so further steps would be faster
            // than real training steps.
            let what = format!("the loss is {loss}, expected a finite number");
            let step = self.step as u64;
            return Err(train::Error::Diverged { step, what, checkpoint: None }.into());
        }
        Ok(loss)
    }

    /// Trains one step and records the spans of its operations.
    ///
    /// # Errors
    /// Returns the errors of [`BenchSteps::train`].
    pub fn record_step(&mut self) -> Result<BenchSample<BenchStep>, Error> {
        // The sample covers the whole step, so that the clocks measured before and after belong to
        // this step alone.
        let number = self.step as u64;
        let watch = Watch::start(self.context.device.host());
        self.context.profiler.begin_step(number);
        self.train(1)?;
        self.context.profiler.end_step().map_err(train::Error::from)?;
        let (seconds, conditions) = watch.stop(self.context.device.host());
        let recorder = self.context.profiler.recorder();
        let spans = recorder.and_then(|recorder| recorder.spans(number)).unwrap_or_default();
        Ok(BenchSample { value: BenchStep { seconds, spans: spans.to_vec() }, conditions })
    }
}
