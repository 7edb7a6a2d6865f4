//! Checks before a run starts that it fits into memory. For a run that does not fit, a `rows_cap`
//! or a `batch_size` is searched with which the run would fit. `train::memory` estimates how much
//! memory a run needs, and [`crate::machine::available_memory`] reads how much is available.

use data::{ColumnShape, DataShape};
use device::Cpu;
use device::backend::Cuda;
use schema::source::{HoldOut, IdMode};
use schema::{JobConfig, Rank, Schedule};
use serde::Serialize;
use train::memory::{self, MemoryEstimate, MemoryPart, RawData, RunShape, WeightSource};

use crate::args::DeviceName;
use crate::config::ResolvedJob;
use crate::device::ComputeDevice;
use crate::error::{Error, UsageError};
use crate::input::{self, Preparation};
use crate::machine::available_memory::{self, AvailableMemory};
use crate::memory_fix::MemoryFix;
use crate::plan::Tiling;
use crate::render;
use crate::{Session, synthetic};

/// Sizes of the data of a run. The sizes are estimates from the first blocks of the files until
/// [`DataSize::with_prepared`] replaces them.
#[derive(Clone, Debug)]
pub struct DataSize {
    train: DataShape,
    train_rows: u64,
    evaluation: Option<(DataShape, u64)>,
    /// The inputs that still have to be prepared, which also takes memory.
    raw: RawData,
    /// Bytes of memory that generating rows takes.
    generation: u64,
}

impl DataSize {
    /// Probes the inputs of `job`, or describes the rows that would be generated for it.
    pub fn probe(
        job: &JobConfig,
        synthetic_rows: Option<u64>,
        session: &Session,
    ) -> Result<Self, Error> {
        if let Some(rows) = synthetic_rows {
            return Self::describe_generated(job, rows, session);
        }
        let data = &job.data;
        let rows =
            |table: &schema::TableConfig| if table.is_auto() { u64::MAX } else { table.rows };
        let most = job.model.tables.iter().map(rows).fold(0, u64::saturating_add);
        let (train, preparation) = input::probe(&data.train, data, most)?;
        let trained = preparation == Preparation::Needed;
        if data.evaluation.is_empty() {
            let raw = if trained { RawData::Training } else { RawData::Neither };
            return Ok(Self::new(train, data.held_out_shares(), raw));
        }
        let (evaluation, preparation) = input::probe(&data.evaluation, data, most)?;
        let raw = match (trained, preparation) {
            (true, Preparation::Needed) => RawData::Both,
            (true, Preparation::Done) => RawData::Training,
            (false, Preparation::Needed) => RawData::Evaluation,
            (false, Preparation::Done) => RawData::Neither,
        };
        let rows = evaluation.rows;
        let split = Self::new(train, data.held_out_shares(), raw);
        // Evaluation files that are used only once, at the end, need no memory during the training.
        let held_out = split.evaluation.clone().unwrap_or((evaluation, rows));
        Ok(Self { evaluation: Some(held_out), ..split })
    }

    /// Replaces the estimates by the exact sizes of the prepared training data.
    pub fn with_prepared(self, train: &data::Dataset) -> Result<Self, Error> {
        let (train, rows) = (DataShape::read(train)?, self.train.rows);
        let share = |part: u64| (part as f64 / rows.max(1) as f64 * train.rows as f64) as u64;
        let raw = match self.raw {
            RawData::Neither | RawData::Training => RawData::Neither,
            RawData::Evaluation | RawData::Both => RawData::Evaluation,
        };
        let evaluation = match self.evaluation {
            Some((shape, rows)) if raw == RawData::Neither && rows < shape.rows => {
                Some((train.clone(), share(rows)))
            }
            other => other,
        };
        let train_rows = share(self.train_rows);
        Ok(Self { train, train_rows, evaluation, raw, generation: 0 })
    }

    /// Describes `rows` generated samples. Bags have the sizes of `[synthetic]`, else `pooling`
    /// ids. Sequences have their full length.
    pub fn for_batches(config: &JobConfig, rows: u64, pooling: usize) -> Self {
        let model = &config.model;
        let column = |feature: schema::model::Feature<'_>| {
            let size = config.synthetic.bag_sizes.get(feature.name);
            let size = size.map_or(pooling, |size| *size as usize);
            let length = model.tables[feature.table].sequence_length.unwrap_or(size);
            let name = feature.name.to_owned();
            ColumnShape { name, ids_per_row: length as f64, is_list: length != 1 }
        };
        let train = DataShape {
            rows,
            row_group_rows: rows.max(1),
            dense: model.dense_features,
            categorical: model.features().into_iter().map(column).collect(),
            vocabulary: 0,
            text_row_bytes: 0.0,
        };
        Self::new(train, HoldOut::default(), RawData::Neither)
    }

    fn describe_generated(job: &JobConfig, rows: u64, session: &Session) -> Result<Self, Error> {
        let config = synthetic::config_for(job, rows, synthetic::SEED)?;
        let shape = DataShape::from_synthetic(&config);
        let generation = data::synthetic::estimate_memory(&config, session.threads);
        let size = Self::new(shape, job.data.held_out_shares(), RawData::Training);
        Ok(Self { generation, ..size })
    }

    /// Creates the sizes of a run whose held-out rows are the last rows of the training data.
    fn new(train: DataShape, shares: HoldOut, raw: RawData) -> Self {
        let rows = |share: f64| (train.rows as f64 * share) as u64;
        let held_out = rows(shares.total());
        // With rows for validation, the run evaluates only these.
        let evaluated = if shares.validation > 0.0 { rows(shares.validation) } else { held_out };
        let evaluation = (evaluated > 0).then(|| (train.clone(), evaluated));
        Self { train_rows: train.rows - held_out, train, evaluation, raw, generation: 0 }
    }
}

/// All facts on which the memory of a run depends.
#[derive(Clone, Debug)]
pub struct RunSize<'a> {
    pub job: &'a ResolvedJob,
    pub data: DataSize,
    pub tiling: &'a Tiling,
    /// Number of threads of all ranks together, or of the processes on this host.
    pub threads: usize,
    /// The ranks on this host if ranks are processes, or `None` if they are threads of this
    /// process.
    pub processes: Option<Vec<Rank>>,
    pub traced_steps: u64,
    pub weights: WeightSource,
    pub schedule: Schedule,
}

impl<'a> RunSize<'a> {
    /// Estimates the memory that the run needs, and reads how much is available.
    pub fn compare(&self) -> MemoryComparison {
        MemoryComparison {
            estimate: self.estimate(&self.job.config),
            available: available_memory::read(),
        }
    }

    /// Rejects a run that needs more memory than this machine has, and suggests changes with which
    /// it would fit.
    pub fn check(&self, memory: &MemoryComparison) -> Result<(), Error> {
        let (Some(available), Some(peak)) = (&memory.available, memory.estimate.peak()) else {
            return Ok(());
        };
        if peak.total <= available.bytes {
            return Ok(());
        }
        let fix = self.find_fix(&|config| self.estimate(config).total() <= available.bytes);
        let (peak, available) = (Box::new(peak.clone()), available.clone());
        Err(UsageError::Memory { config: self.job.origin.clone(), peak, available, fix }.into())
    }

    /// Rejects a run that needs more memory than is free on its GPU, and suggests changes with
    /// which it would fit.
    pub fn check_device(&self, name: DeviceName, device: &ComputeDevice) -> Result<(), Error> {
        let Some([free, total]) = device.memory(name)? else { return Ok(()) };
        let on_device =
            |config: &JobConfig| self.with_shape(config, |shape| memory::on_device::<Cuda>(&shape));
        let peak = on_device(&self.job.config);
        if peak.total <= free {
            return Ok(());
        }
        let fix = self.find_fix(&|config| on_device(config).total <= free);
        let (config, peak) = (self.job.origin.clone(), Box::new(peak));
        Err(UsageError::DeviceMemory { config, name, peak, free, total, fix }.into())
    }

    /// Estimates the memory of the run with another configuration than the job's.
    fn estimate(&self, config: &JobConfig) -> MemoryEstimate {
        self.with_shape(config, |shape| memory::estimate::<Cpu>(&shape))
    }

    fn with_shape<T>(&self, config: &JobConfig, estimate: impl FnOnce(RunShape<'_>) -> T) -> T {
        let DataSize { train, train_rows, evaluation, raw, generation } = &self.data;
        let steps = train::run::total_steps(&config.training, *train_rows);
        estimate(RunShape {
            config,
            plan: &self.tiling.plan(&config.model.tables),
            threads: self.threads,
            processes: self.processes.as_deref(),
            train,
            train_rows: *train_rows,
            evaluation: evaluation.as_ref().map(|(shape, rows)| (shape, *rows)),
            traced_steps: self.traced_steps.min(steps),
            weights: self.weights,
            generation: *generation,
            raw: *raw,
            schedule: self.schedule,
        })
    }

    /// Searches for changes of the configuration with which the run would fit.
    fn find_fix(&self, fits: &dyn Fn(&JobConfig) -> bool) -> MemoryFix {
        if self.weights == WeightSource::Checkpoint {
            return MemoryFix::Resumed;
        }
        let config = &self.job.config;
        let rows_cap = self.find_rows_cap(config, fits);
        let batch_size = smaller_batches(config).find(|&size| fits(&with_batch(config, size)));
        if rows_cap.is_some() || batch_size.is_some() {
            return MemoryFix::Either { rows_cap, batch_size };
        }
        let both = smaller_batches(config).find_map(|batch_size| {
            let rows_cap = self.find_rows_cap(&with_batch(config, batch_size), fits)?;
            Some(MemoryFix::Both { rows_cap, batch_size })
        });
        both.unwrap_or(MemoryFix::Nothing)
    }

    /// Finds the largest `rows_cap` with which `config` fits, among numbers of one digit followed
    /// by zeros. Returns `None` if ids are exact, because smaller tables would not hold them, or if
    /// a plan file fixes the numbers of rows.
    fn find_rows_cap(&self, config: &JobConfig, fits: &dyn Fn(&JobConfig) -> bool) -> Option<u64> {
        if matches!(self.tiling, Tiling::Fixed(_)) || config.data.ids != IdMode::Modulo {
            return None;
        }
        let most = config.model.tables.iter().map(|table| table.rows).max()?;
        let powers = std::iter::successors(Some(1u64), |power| power.checked_mul(10));
        let caps =
            powers.flat_map(|power| (1..10).map_while(move |digit| power.checked_mul(digit)));
        let caps: Vec<u64> = caps.take_while(|&cap| cap < most).collect();
        let fitting = caps.partition_point(|&cap| fits(&with_cap(config, cap)));
        fitting.checked_sub(1).map(|last| caps[last])
    }
}

/// The memory that a run needs, compared with the memory that is available to it.
#[derive(Debug, Serialize)]
pub struct MemoryComparison {
    pub estimate: MemoryEstimate,
    /// Available memory, which is unknown on machines without `/proc`.
    pub available: Option<AvailableMemory>,
}

impl MemoryComparison {
    /// Formats the peak of the estimate as a table with one row per use of memory.
    pub fn table(&self) -> String {
        let Some(peak) = self.estimate.peak() else { return String::new() };
        let row = |part: &MemoryPart| (part.of.name(), part.bytes.to_string());
        let mut rows: Vec<(&str, String)> = peak.parts.iter().map(row).collect();
        rows.push(("in all", peak.total.to_string()));
        if let Some(available) = &self.available {
            rows.push(("available", format!("{} ({})", available.bytes, available.limit)));
        }
        format!("estimated memory, at most while {}:\n{}", peak.when.name(), render::facts(&rows))
    }
}

fn with_cap(config: &JobConfig, cap: u64) -> JobConfig {
    let mut config = config.clone();
    config.model.rows_cap = Some(cap);
    for table in &mut config.model.tables {
        table.rows = table.rows.min(cap);
    }
    config
}

fn with_batch(config: &JobConfig, batch_size: usize) -> JobConfig {
    let mut config = config.clone();
    config.training.batch_size = batch_size;
    config
}

/// Returns the powers of two below the batch size of `config`, in descending order.
fn smaller_batches(config: &JobConfig) -> impl Iterator<Item = usize> {
    let most = config.training.batch_size;
    (0..usize::BITS).rev().map(|bit| 1 << bit).filter(move |&size: &usize| size < most)
}

#[cfg(test)]
mod tests;
