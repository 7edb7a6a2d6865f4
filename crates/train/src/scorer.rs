//! A trained model that only looks forward: evaluation and click probabilities from a checkpoint.

use std::ops::Range;
use std::path::{Path, PathBuf};

use data::{Dataset, FeaturePlan, Fitted};
use device::Cpu;
use schema::{Batch, JobConfig, Rank, ShardingPlan};

use crate::checkpoint::{Checkpoint, SeenData};
use crate::metric::{Accumulator, Groups};
use crate::model::{ForwardModel, RankParameters};
use crate::parameter::{DenseParameter, dense_shapes};
use crate::profile::Profiler;
use crate::run::{lead, start};
use crate::{Error, Evaluation, RankContext, Share};

/// Samples of one forward pass.
const BATCH_SIZE: usize = 4096;

/// A model of one rank, read from a checkpoint of any number of ranks.
pub struct Scorer {
    folder: PathBuf,
    config: JobConfig,
    fitted: Fitted,
    data: SeenData,
    step: u64,
    model: ForwardModel,
    context: RankContext,
}

impl Scorer {
    /// Reads the checkpoint in `folder`.
    ///
    /// # Errors
    /// As [`Checkpoint::open`]; damaged tensors, and weights that are no finite numbers, are
    /// refused by name.
    pub fn load(folder: &Path, threads: usize) -> Result<Self, Error> {
        let checkpoint = Checkpoint::open(folder)?;
        let config = checkpoint.config().clone();
        let fitted = fitted(&checkpoint)?;
        let plan = ShardingPlan::table_wise(&config.model.tables, 1);
        let cpu = Cpu::new(threads);
        let parameters = weights(&checkpoint, &cpu, &plan)?;
        let place = (&plan, Rank(0));
        let model = ForwardModel::restored(&cpu, &config, place, BATCH_SIZE, parameters)?;
        let context = RankContext::alone(cpu, Profiler::off());
        let (folder, data) = (folder.to_owned(), checkpoint.manifest().data);
        Ok(Self { folder, step: checkpoint.step(), config, fitted, data, model, context })
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

    /// The rows the model has seen.
    #[must_use]
    pub fn data(&self) -> SeenData {
        self.data
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

    /// Click probabilities of `batch`, `[B]`, NaN where the model gives none. Labels are not looked
    /// at but must be there, `[B]`.
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
    /// [`Error::OtherTransforms`] if the dataset was prepared with others than the model's;
    /// [`Error::Data`], [`Error::RowOutOfRange`], [`Error::NotEvaluated`].
    pub fn evaluate(
        &mut self,
        dataset: &Dataset,
        rows: Range<u64>,
        observe: &mut dyn FnMut(u64, u64),
    ) -> Result<Evaluation, Error> {
        if !start::have_same_transforms(&self.fitted, dataset.fitted()) {
            let data = dataset.dir().to_owned();
            return Err(Error::OtherTransforms { path: self.folder.clone(), data });
        }
        let total = rows.end - rows.start;
        let loader = lead::in_order(dataset, &self.config.model, BATCH_SIZE, rows)?;
        let (mut accumulator, groups) = (Accumulator::new(), Groups::of(&self.config));
        for loaded in loader {
            let batch = loaded?.batch;
            let share = Share { batch: &batch, first_sample: 0, global_size: batch.size };
            let (probabilities, sum) = self.model.evaluate(&mut self.context, share)?;
            accumulator.push(probabilities, &batch.labels, sum);
            accumulator.push_groups(&groups.in_batch(&batch));
            observe(accumulator.samples(), total);
        }
        match accumulator.not_finite() {
            None => Ok(accumulator.finish()),
            Some(spoilt) => Err(Error::NotEvaluated { data: dataset.dir().to_owned(), spoilt }),
        }
    }
}

/// All weights of a checkpoint. No optimizer state is read, which may be as large as the tables.
fn weights(
    checkpoint: &Checkpoint,
    cpu: &Cpu,
    plan: &ShardingPlan,
) -> Result<RankParameters, Error> {
    let config = checkpoint.config();
    let empty = |(name, shape): (String, Vec<usize>)| DenseParameter::without_state(&name, &shape);
    let mut dense: Vec<_> = dense_shapes(&config.model).into_iter().map(empty).collect();
    checkpoint.read_dense_weights(&mut dense)?;
    let tile = |tile: &schema::Tile| {
        checkpoint.read_tile_weights(&config.model.tables[tile.table.index()].name, tile)
    };
    let tiles = plan.tiles().iter().map(tile).collect::<Result<_, _>>()?;
    let parameters = RankParameters { dense, tiles };
    parameters.check_finite(cpu, (checkpoint.folder(), config))?;
    Ok(parameters)
}

/// What the checkpoint kept of its training data. An imported one may have kept nothing, which is
/// enough where nothing is learnt from the data.
fn fitted(checkpoint: &Checkpoint) -> Result<Fitted, Error> {
    let kept = &checkpoint.manifest().fitted;
    let without_data = || Fitted::without_data(&checkpoint.config().data);
    if let Some(fitted) = kept.is_null().then(without_data).flatten() {
        return Ok(fitted);
    }
    serde_json::from_value(kept.clone()).map_err(|error| Error::Manifest {
        path: checkpoint.folder().to_owned(),
        problem: format!("fitted transforms: {error}"),
    })
}
