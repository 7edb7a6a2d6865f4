//! A trained model, forward only: evaluation and click probabilities from a checkpoint.
//!
//! Tables are read into memory ([`Scorer::load`], for many rows) or mapped ([`Scorer::open`], which
//! costs nothing until rows are looked up). The probabilities are bitwise equal.

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
use crate::run::{lead, start};
use crate::{Error, Evaluation, RankContext, SampleShare};

mod crew;

pub use crew::Crew;

/// Samples of one forward pass.
const BATCH_SIZE: usize = 4096;
/// Bytes of mapped rows that are copied out at a time: a batch with more is scored in parts.
const ROWS_BYTES: usize = 64 << 20;

/// A model of one rank, read from a checkpoint of any number of ranks.
pub struct Scorer<B: Backend> {
    folder: PathBuf,
    config: JobConfig,
    fitted: Fitted,
    data: SeenData,
    step: u64,
    model: ForwardModel<B>,
    /// Where rows are looked up, unless the model has them all.
    mapped: Option<MappedTables>,
    context: RankContext<B>,
}

/// Location of the tables' weights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TableLocation {
    InMemory,
    Mapped,
}

impl<B: Backend> Scorer<B> {
    /// Reads the checkpoint in `folder`.
    ///
    /// # Errors
    /// As [`Checkpoint::open`]; damaged tensors, and weights that are no finite numbers, are
    /// refused by name.
    pub fn load(folder: &Path, device: B) -> Result<Self, Error> {
        Self::new(folder, RankContext::alone(device, Profiler::off())?, TableLocation::InMemory)
    }

    /// Reads the checkpoint in `folder` as one of the ranks of `comm`. Each holds whole tables.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn join(folder: &Path, device: B, comm: Communicator) -> Result<Self, Error> {
        let context = RankContext::new(device, comm, Profiler::off())?;
        Self::new(folder, context, TableLocation::InMemory)
    }

    /// Opens the checkpoint in `folder` and maps its tables. What is damaged is noticed when a row
    /// of it is looked up for the first time.
    ///
    /// # Errors
    /// As [`Self::load`], of the dense parameters alone.
    pub fn open(folder: &Path, device: B) -> Result<Self, Error> {
        Self::new(folder, RankContext::alone(device, Profiler::off())?, TableLocation::Mapped)
    }

    fn new(folder: &Path, context: RankContext<B>, tables: TableLocation) -> Result<Self, Error> {
        let checkpoint = Checkpoint::open(folder)?;
        let config = checkpoint.config().clone();
        let fitted = fitted(&checkpoint)?;
        let (rank, size) = (context.comm.rank(), context.comm.world_size());
        let plan = ShardingPlan::table_wise(&config.model.tables, size as u32);
        let host = context.device.host();
        let mapped = match tables {
            TableLocation::InMemory => None,
            TableLocation::Mapped => Some(MappedTables::map(&checkpoint)?),
        };
        let parameters = weights(&checkpoint, host, (&plan, rank), mapped.as_ref())?;
        let batch_max = BATCH_SIZE.div_ceil(size);
        let on = context.on();
        let model = ForwardModel::restored(on, &config, &plan, rank, batch_max, parameters)?;
        let (folder, data) = (folder.to_owned(), checkpoint.manifest().data);
        let step = checkpoint.step();
        Ok(Self { folder, step, config, fitted, data, model, mapped, context })
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
    /// at but must be there, `[B]`. A row's probability does not depend on the rows beside it.
    ///
    /// # Errors
    /// [`Error::BatchShape`], [`Error::RowOutOfRange`]; of mapped tables [`Error::Checksum`],
    /// [`Error::Value`] and [`Error::FileLength`] naming what is damaged.
    pub fn score(&mut self, batch: &Batch) -> Result<Vec<f32>, Error> {
        let mut all = Vec::with_capacity(batch.size);
        self.forward(batch, |model, context, share| {
            all.extend_from_slice(model.score(context, share)?);
            Ok(())
        })?;
        Ok(all)
    }

    /// Calls `take` with the batch; where tables are mapped, with one part of it after the other,
    /// whose ids are positions among the rows that were looked up.
    fn forward<F>(&mut self, batch: &Batch, mut take: F) -> Result<(), Error>
    where
        F: FnMut(&mut ForwardModel<B>, &mut RankContext<B>, SampleShare<'_>) -> Result<(), Error>,
    {
        let whole = SampleShare { batch, first_sample: 0, global_size: batch.size };
        let Some(tables) = &self.mapped else {
            return take(&mut self.model, &mut self.context, whole);
        };
        self.model.check(whole)?;
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

    /// Bytes of the rows that are looked up.
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
            Some(spoilt) => Err(Error::NotEvaluated { data: dataset.dir().to_owned(), spoilt }),
        }
    }
}

impl<B: Backend> Scorer<B> {
    /// Probabilities of all samples of `batch`, of which each rank does its share, and the sum of
    /// their losses.
    fn evaluate_together(&mut self, batch: &Batch) -> Result<(Vec<f32>, f64), Error> {
        let Self { model, context, .. } = self;
        let (rank, size) = (context.comm.rank().index(), context.comm.world_size());
        let cut = |rank: usize| batch.size * rank / size;
        let own = batch.slice(cut(rank)..cut(rank + 1));
        let share = SampleShare { batch: &own, first_sample: cut(rank), global_size: batch.size };
        let (probabilities, sum) = model.evaluate(context, share)?;
        let all = context.comm.control.all_gather(probabilities)?.concat();
        let sums = context.comm.control.all_gather(&[sum.to_bits().cast_signed()])?;
        let sum = sums.iter().flatten().map(|bits| f64::from_bits(bits.cast_unsigned())).sum();
        Ok((all, sum))
    }
}

/// Puts positions among the looked-up rows of each table in place of the ids, and gives the ids by
/// table. A table with no more rows than ids is looked up whole, and its ids stay.
fn take_ids(sparse: &mut JaggedTensor, model: &ModelConfig) -> Vec<Vec<i64>> {
    let features: Vec<usize> = model.features().iter().map(|feature| feature.table).collect();
    let mut counts = vec![0; model.tables.len()];
    for (feature, &table) in features.iter().enumerate() {
        counts[table] += sparse.feature(feature).len() as u64;
    }
    let mut ids = vec![Vec::new(); counts.len()];
    for (feature, &table) in features.iter().enumerate() {
        let rows = model.tables[table].rows;
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

/// All weights of a checkpoint, or of mapped tables no rows. No optimizer state is read, which may
/// be as large as the tables.
fn weights(
    checkpoint: &Checkpoint,
    host: &Pool,
    (plan, rank): (&ShardingPlan, Rank),
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
    let tiles = plan.tiles_of(rank).map(tile).collect::<Result<_, _>>()?;
    let parameters = RankParameters { dense, tiles };
    parameters.check_finite(host, checkpoint.folder(), config)?;
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
