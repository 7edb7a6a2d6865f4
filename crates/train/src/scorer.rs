//! A trained model that only looks forward: evaluation and click probabilities from a checkpoint.

use std::ops::Range;
use std::path::Path;

use data::{Dataset, FeaturePlan, Fitted};
use device::Cpu;
use schema::{Batch, JobConfig, Optimizer, Rank, ShardingPlan};

use crate::checkpoint::Checkpoint;
use crate::metric::Accumulator;
use crate::profile::Profiler;
use crate::run::lead;
use crate::run::worker;
use crate::{Error, Evaluation, Model, RankContext, Share};

/// Samples of one forward pass.
const BATCH_SIZE: usize = 4096;

/// A model of one rank, read from a checkpoint of any number of ranks.
pub struct Scorer {
    config: JobConfig,
    fitted: Fitted,
    step: u64,
    model: Model,
    context: RankContext,
}

impl Scorer {
    /// Reads the checkpoint in `folder`.
    ///
    /// # Errors
    /// As [`Checkpoint::open`]; damaged tensors are refused by name.
    pub fn load(folder: &Path, threads: usize) -> Result<Self, Error> {
        let checkpoint = Checkpoint::open(folder)?;
        let mut config = checkpoint.config().clone();
        let fitted = checkpoint.manifest().fitted.clone();
        let fitted = serde_json::from_value(fitted).map_err(|error| Error::Manifest {
            path: folder.to_owned(),
            problem: format!("fitted transforms: {error}"),
        })?;
        let plan = ShardingPlan::table_wise(&config.model.tables, 1);
        let optimizer = config.optimizer;
        // Nothing is updated here: no optimizer state is read, which may be as large as the tables.
        config.optimizer.sparse.kind = Optimizer::Sgd;
        config.optimizer.dense.kind = Optimizer::Sgd;
        let parameters = worker::read(&checkpoint, &config, (&plan, Rank(0)))?;
        let cpu = Cpu::new(threads);
        let place = (&plan, Rank(0));
        let model = Model::restored(&cpu, &config, place, BATCH_SIZE, parameters)?;
        config.optimizer = optimizer;
        let comm = comm::world(1).remove(0);
        let context = RankContext { cpu, comm, profiler: Profiler::off() };
        Ok(Self { step: checkpoint.step(), config, fitted, model, context })
    }

    /// The job that trained the model.
    #[must_use]
    pub fn config(&self) -> &JobConfig {
        &self.config
    }

    /// What is needed to read new files the way the training data was read.
    #[must_use]
    pub fn fitted(&self) -> &Fitted {
        &self.fitted
    }

    /// Steps the model was trained for.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The model's features, for readers and loaders.
    #[must_use]
    pub fn features(&self) -> FeaturePlan {
        lead::feature_plan(&self.config.model)
    }

    /// Most samples of one call of [`Self::score`].
    #[must_use]
    pub fn batch_size(&self) -> usize {
        BATCH_SIZE
    }

    /// Click probabilities of `batch`, `[B]`. Labels are not looked at but must be there, `[B]`.
    ///
    /// # Errors
    /// [`Error::BatchShape`], [`Error::RowOutOfRange`].
    pub fn score(&mut self, batch: &Batch) -> Result<Vec<f32>, Error> {
        let share = Share { batch, first_sample: 0, global_size: batch.size };
        Ok(self.model.score(&mut self.context, share)?.to_vec())
    }

    /// Evaluates on `rows` of `dataset`; `observe` hears (samples done, samples in all).
    ///
    /// # Errors
    /// [`Error::Data`], [`Error::RowOutOfRange`].
    pub fn evaluate(
        &mut self,
        dataset: &Dataset,
        rows: Range<u64>,
        observe: &mut dyn FnMut(u64, u64),
    ) -> Result<Evaluation, Error> {
        let total = rows.end - rows.start;
        let loader = lead::in_order(dataset, &self.config.model, BATCH_SIZE, rows)?;
        let mut accumulator = Accumulator::new();
        for loaded in loader {
            let batch = loaded?.batch;
            let share = Share { batch: &batch, first_sample: 0, global_size: batch.size };
            let (probabilities, sum) = self.model.evaluate(&mut self.context, share)?;
            accumulator.push(probabilities, &batch.labels, sum);
            observe(accumulator.samples(), total);
        }
        Ok(accumulator.finish())
    }
}
