//! Inference with a trained model: evaluates a checkpoint and computes click probabilities.
//!
//! Tables are read into memory ([`Scorer::load`], for many rows) or mapped ([`Scorer::open`], which
//! reads only the rows that are looked up). Loaded and mapped tables give bitwise equal
//! probabilities.

use std::ops::Range;
use std::path::{Path, PathBuf};

use comm::Communicator;
use data::{Dataset, FeaturePlan, Fitted};
use device::{Backend, Pool};
use schema::{Batch, JaggedTensor, JobConfig, ModelConfig, Rank, ShardingPlan};

use crate::checkpoint::{Checkpoint, MappedTables, SeenData};
use crate::metric::{Accumulator, Groups};
use crate::model::{ForwardModel, RankParameters};
use crate::parameter::{DenseParameter, dense_shapes};
use crate::profile::Profiler;
use crate::run::{loaders, start};
use crate::{Error, Evaluation, RankContext, SampleShare};

mod distributed;

pub use distributed::DistributedScorer;

/// Maximum number of samples of one forward pass.
const BATCH_SIZE: usize = 4096;
/// Bytes of mapped rows that are copied at a time. A batch that needs more is scored in parts.
const ROWS_BYTES: usize = 64 << 20;

/// The model of one rank for inference, read from a checkpoint of any number of ranks.
pub struct Scorer<B: Backend> {
    folder: PathBuf,
    config: JobConfig,
    fitted: Fitted,
    data: SeenData,
    step: u64,
    model: ForwardModel<B>,
    /// The mapped tables, unless the model holds all rows in memory.
    mapped: Option<MappedTables>,
    context: RankContext<B>,
}

/// Whether the tables are read into memory or mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TableLocation {
    InMemory,
    Mapped,
}

impl<B: Backend> Scorer<B> {
    /// Reads the checkpoint in `folder` into memory.
    ///
    /// # Errors
    /// Returns the errors of [`Checkpoint::open`], and errors that name damaged tensors or
    /// non-finite weights.
    pub fn load(folder: &Path, device: B) -> Result<Self, Error> {
        Self::new(folder, RankContext::alone(device, Profiler::off())?, TableLocation::InMemory)
    }

    /// Reads the checkpoint in `folder` as one of the ranks of `comm`. Each rank holds whole
    /// tables.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::load`].
    pub fn join(folder: &Path, device: B, comm: Communicator) -> Result<Self, Error> {
        let context = RankContext::new(device, comm, Profiler::off())?;
        Self::new(folder, context, TableLocation::InMemory)
    }

    /// Opens the checkpoint in `folder` and maps its tables. Damage is detected when a damaged row
    /// is looked up for the first time.
    ///
    /// # Errors
    /// Returns the errors of [`Self::load`] that concern dense parameters.
    pub fn open(folder: &Path, device: B) -> Result<Self, Error> {
        Self::new(folder, RankContext::alone(device, Profiler::off())?, TableLocation::Mapped)
    }

    fn new(folder: &Path, context: RankContext<B>, tables: TableLocation) -> Result<Self, Error> {
        let checkpoint = Checkpoint::open(folder)?;
        // Inference reads the rows of the checkpoint, wherever training kept them.
        let config = JobConfig { storage: None, ..checkpoint.config().clone() };
        let fitted = fitted(&checkpoint)?;
        let (rank, size) = (context.comm.rank(), context.comm.world_size());
        let plan = ShardingPlan::table_wise(&config.model.tables, size as u32);
        let host = context.device.host();
        let mapped = match tables {
            TableLocation::InMemory => None,
            TableLocation::Mapped => Some(MappedTables::map(&checkpoint)?),
        };
        let parameters = read_weights(&checkpoint, host, &plan, rank, mapped.as_ref())?;
        let batch_max = BATCH_SIZE.div_ceil(size);
        let device_queue = context.device_queue();
        let model =
            ForwardModel::restored(device_queue, &config, &plan, rank, batch_max, parameters)?;
        let (folder, data) = (folder.to_owned(), checkpoint.manifest().data);
        let step = checkpoint.step();
        Ok(Self { folder, step, config, fitted, data, model, mapped, context })
    }

    /// Returns the configuration of the job that trained the model.
    #[must_use]
    pub fn config(&self) -> &JobConfig {
        &self.config
    }

    /// Returns the transforms fitted on the training data, which new files must go through as well.
    #[must_use]
    pub fn fitted(&self) -> &Fitted {
        &self.fitted
    }

    /// Returns the fingerprints of the model's training and held-out rows.
    #[must_use]
    pub fn data(&self) -> SeenData {
        self.data
    }

    /// Returns the number of steps that the model was trained for.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns the features that readers and loaders must supply to the model.
    #[must_use]
    pub fn features(&self) -> FeaturePlan {
        loaders::feature_plan(&self.config.model)
    }

    /// Returns the largest number of samples per call of [`Self::score`].
    #[must_use]
    pub fn batch_size(&self) -> usize {
        BATCH_SIZE
    }

    /// Computes the click probabilities of `batch`, `[B]`. The probability of a non-finite logit is
    /// NaN. Labels are not used but must be present, `[B]`. A row's probability does not depend on
    /// the other rows of the batch.
    ///
    /// # Errors
    /// [`Error::BatchShape`] or [`Error::RowOutOfRange`]. For mapped tables also
    /// [`Error::Checksum`], [`Error::Value`] and [`Error::FileLength`], which name the damaged
    /// part.
    pub fn score(&mut self, batch: &Batch) -> Result<Vec<f32>, Error> {
        let mut all = Vec::with_capacity(batch.size);
        self.forward(batch, |model, context, share| {
            all.extend_from_slice(model.score(context, share)?);
            Ok(())
        })?;
        Ok(all)
    }

    /// Calls `take` with the batch. If tables are mapped, calls it with one part of the batch after
    /// another, whose ids are indices into the copied rows.
    fn forward<F>(&mut self, batch: &Batch, mut take: F) -> Result<(), Error>
    where
        F: FnMut(&mut ForwardModel<B>, &mut RankContext<B>, SampleShare<'_>) -> Result<(), Error>,
    {
        let whole = SampleShare { batch, first_sample: 0, global_size: batch.size };
        let Some(tables) = &self.mapped else {
            return take(&mut self.model, &mut self.context, whole);
        };
        self.model.check(whole)?;
        // A file that was truncated after it was mapped would raise SIGBUS, so compare lengths
        // first.
        tables.check_lengths()?;
        let parts = self.row_bytes(&batch.sparse).div_ceil(ROWS_BYTES).max(1);
        let samples = batch.size.div_ceil(parts).max(1);
        for first_sample in (0..batch.size).step_by(samples) {
            let end = batch.size.min(first_sample + samples);
            let mut part = batch.slice(first_sample..end);
            let ids = take_ids(&mut part.sparse, &self.config.model);
            let device = &self.context.device;
            let host = device.host();
            let tiles = ids.iter().enumerate().map(|(table, ids)| tables.rows(host, table, ids));
            self.model.look_up_in(device, tiles.collect::<Result<_, _>>()?)?;
            let share = SampleShare { batch: &part, first_sample, global_size: batch.size };
            take(&mut self.model, &mut self.context, share)?;
        }
        Ok(())
    }

    /// Computes the bytes of the rows that `sparse` looks up.
    fn row_bytes(&self, sparse: &JaggedTensor) -> usize {
        let model = &self.config.model;
        let features = model.features().into_iter().enumerate();
        let bytes = features.map(|(number, feature)| {
            let table = &model.tables[feature.table];
            let ids = (sparse.feature(number).len() as u64).min(table.rows) as usize;
            ids * table.dim * table.data_type.bytes()
        });
        bytes.sum()
    }

    /// Evaluates the model on `rows` of `dataset`. Calls `observe` with the number of evaluated
    /// samples and the total number.
    ///
    /// # Errors
    /// [`Error::OtherTransforms`] if the dataset was prepared with transforms other than the
    /// model's. Also [`Error::Data`], [`Error::RowOutOfRange`] and [`Error::NotEvaluated`].
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
        let loader = loaders::in_order(dataset, &self.config.model, BATCH_SIZE, rows)?;
        let (mut accumulator, groups) = (Accumulator::new(), Groups::new(&self.config));
        for loaded in loader {
            let batch = loaded?.batch;
            if self.context.comm.world_size() > 1 {
                let (probabilities, sum) = self.evaluate_together(&batch)?;
                accumulator.push(&probabilities, &batch.labels, sum);
            } else {
                self.forward(&batch, |model, context, share| {
                    let (probabilities, sum) = model.evaluate(context, share)?;
                    accumulator.push(probabilities, &share.batch.labels, sum);
                    Ok(())
                })?;
            }
            accumulator.push_groups(&groups.in_batch(&batch));
            observe(accumulator.samples(), total);
        }
        match accumulator.not_finite() {
            None => Ok(accumulator.finish()),
            Some(reason) => Err(Error::NotEvaluated { data: dataset.dir().to_owned(), reason }),
        }
    }
}

impl<B: Backend> Scorer<B> {
    /// Evaluates `batch` on all ranks, each on its share. Returns all probabilities and the sum of
    /// the losses.
    fn evaluate_together(&mut self, batch: &Batch) -> Result<(Vec<f32>, f64), Error> {
        let Self { model, context, .. } = self;
        let (rank, size) = (context.comm.rank().index(), context.comm.world_size());
        let cut = |rank: usize| batch.size * rank / size;
        let own = batch.slice(cut(rank)..cut(rank + 1));
        let share = SampleShare { batch: &own, first_sample: cut(rank), global_size: batch.size };
        let (probabilities, sum) = model.evaluate(context, share)?;
        let all = context.comm.control.all_gather(probabilities)?.concat();
        // Collectives have no f64 elements, so the bits of the sum are sent as an i64.
        let sums = context.comm.control.all_gather(&[sum.to_bits().cast_signed()])?;
        let sum = sums.iter().flatten().map(|bits| f64::from_bits(bits.cast_unsigned())).sum();
        Ok((all, sum))
    }
}

/// Replaces the ids of each table by indices into its copied rows, and returns the ids to copy, by
/// table. If a table has no more rows than ids, it is copied whole and its ids are kept.
fn take_ids(sparse: &mut JaggedTensor, model: &ModelConfig) -> Vec<Vec<i64>> {
    let features: Vec<usize> = model.features().iter().map(|feature| feature.table).collect();
    let mut counts = vec![0; model.tables.len()];
    for (feature, &table) in features.iter().enumerate() {
        counts[table] += sparse.feature(feature).len() as u64;
    }
    let mut ids = vec![Vec::new(); counts.len()];
    for (feature, &table) in features.iter().enumerate() {
        let rows = model.tables[table].rows;
        // Copying each row once is cheaper than copying one row per id.
        if rows <= counts[table] {
            ids[table] = (0..rows as i64).collect();
            continue;
        }
        let range = sparse.feature(feature);
        let values = &mut sparse.values[range];
        let first = ids[table].len() as i64;
        ids[table].extend_from_slice(values);
        values.iter_mut().zip(first..).for_each(|(value, position)| *value = position);
    }
    ids
}

/// Reads the weights of a checkpoint, or only the dense weights if tables are mapped. Optimizer
/// state is not read, because it may be as large as the tables.
fn read_weights(
    checkpoint: &Checkpoint,
    host: &Pool,
    plan: &ShardingPlan,
    rank: Rank,
    mapped: Option<&MappedTables>,
) -> Result<RankParameters, Error> {
    let config = checkpoint.config();
    let empty = |(name, shape): (String, Vec<usize>)| DenseParameter::without_state(&name, &shape);
    let mut dense: Vec<_> = dense_shapes(&config.model).into_iter().map(empty).collect();
    checkpoint.read_dense_weights(&mut dense)?;
    let tile = |tile: &schema::Tile| match mapped {
        Some(tables) => tables.rows(host, tile.table.index(), &[]),
        None => checkpoint.read_tile_weights(&config.model.tables[tile.table.index()].name, tile),
    };
    let tiles = plan.held_by(rank).map(tile).collect::<Result<_, _>>()?;
    let parameters = RankParameters { dense, tiles };
    parameters.check_finite(host, checkpoint.folder(), config)?;
    Ok(parameters)
}

/// Returns the fitted transforms stored in the checkpoint. An imported checkpoint may lack them,
/// which is valid if no transform is fitted on data.
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
