//! What TorchRec's planner gets: tables, a topology and rules of memory. The constructor converts a
//! [`PlanProblem`].

use schema::stage::dense_buckets;
use schema::{Optimizer, Pooling, TableConfig};

use super::ID_BYTES;
use super::error::TorchrecError;
use super::sharding::ShardingType;
use super::topology::{PlannedDevice, TorchrecTopology};
use crate::constraints::{Constraints, TableConstraints};
use crate::problem::PlanProblem;

/// TorchRec's factor from the bytes of dense parameters to those of parameters, gradients and
/// optimizer states.
const DENSE_FACTOR: u64 = 6;
/// Copies of the ids of a batch for which TorchRec's heuristic reserves memory.
const ID_COPIES: u64 = 20;
/// Share of the memory that TorchRec's planner reserves by default.
const RESERVED_SHARE: f64 = 0.15;

/// An embedding table as TorchRec's planner describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchrecTable {
    pub name: String,
    pub rows: u64,
    pub dim: usize,
    /// Size of a weight in bytes. Vectors are exchanged in the same format.
    pub weight_bytes: u32,
    /// Mean number of ids per sample of each feature that uses the table.
    pub ids_per_bag: Vec<f64>,
    pub is_pooled: bool,
    /// Whether every id has a weight.
    pub is_weighted: bool,
    /// The rule whose states count as memory. TorchRec's planner counts none unless the optimizer
    /// was applied to the table before planning.
    pub optimizer: Option<Optimizer>,
    /// Least number of columns of a column part. TorchRec's default is 128.
    pub least_columns: Option<usize>,
    /// Sharding types that are tried, or all but the grid.
    pub allowed: Option<Vec<ShardingType>>,
}

/// Memory that tables may not use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StorageReservation {
    /// A share of the GPU memory.
    Percentage { share: f64 },
    /// A share of the GPU memory, dense parameters and copies of a batch.
    Heuristic { share: f64, dense_parameter_bytes: u64 },
}

/// The batches whose ids and vectors are in GPU memory at the same time. Tables in host memory
/// count one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipeline {
    /// The ids and vectors of one batch.
    None,
    /// The ids of two batches. The vectors do not add to the peak, which is at the end of the dense
    /// forward pass.
    SparseDist,
    /// The ids of two batches and the vectors of one.
    SparseDistAtPeak,
}

/// The part of a problem that all tables share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TorchrecSetting {
    pub topology: TorchrecTopology,
    pub samples_per_rank: u32,
    pub pipeline: Pipeline,
    pub reservation: StorageReservation,
}

/// Tables and the devices among which they are divided.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchrecProblem {
    pub setting: TorchrecSetting,
    /// In the order of the model, which decides between equal choices.
    pub tables: Vec<TorchrecTable>,
}

impl TorchrecProblem {
    /// Converts a problem of this crate for TorchRec's planner, with its default bandwidths and
    /// its default reservation. Every rank gets the samples of the rank with the most.
    ///
    /// # Errors
    /// [`TorchrecError::Unsupported`] for constraints that TorchRec's planner lacks, and
    /// [`TorchrecError::Hosts`] if hosts have different numbers of ranks.
    pub fn from_problem(problem: &PlanProblem<'_>) -> Result<Self, TorchrecError> {
        let (model, ranks) = (&problem.config.model, problem.ranks());
        let ranks_per_host = problem.conditions.topology.ranks_per_host;
        let topology = TorchrecTopology {
            memory_bytes: problem.capacity(),
            ..TorchrecTopology::with_defaults(PlannedDevice::Gpu, ranks, ranks_per_host)
        };
        let optimizer = problem.config.optimizer.sparse.kind;
        let mut features = problem.features.iter();
        let mut tables = Vec::new();
        for table in &model.tables {
            let own = features.by_ref().take(table.features.len());
            let ids_per_bag = own.map(|feature| looked_up(table, feature.ids_per_bag)).collect();
            tables.push(convert(table, ids_per_bag, optimizer, problem.constraints)?);
        }
        let dense: usize = dense_buckets(model, 0).iter().map(|bucket| bucket.elements).sum();
        let reservation = StorageReservation::Heuristic {
            share: RESERVED_SHARE,
            dense_parameter_bytes: 4 * dense as u64,
        };
        let samples = problem.config.training.batch_size.div_ceil(ranks.max(1) as usize);
        let (samples_per_rank, pipeline) = (samples as u32, Pipeline::None);
        let setting = TorchrecSetting { topology, samples_per_rank, pipeline, reservation };
        setting.check()?;
        Ok(Self { setting, tables })
    }

    /// Returns the memory of a rank that tables may use, in bytes.
    ///
    /// # Errors
    /// [`TorchrecError::Reservation`] if more is reserved than there is.
    pub fn bytes_for_tables(&self) -> Result<u64, TorchrecError> {
        let topology = &self.setting.topology;
        let (share, dense) = match self.setting.reservation {
            StorageReservation::Percentage { share } => (share, None),
            StorageReservation::Heuristic { share, dense_parameter_bytes } => {
                (share, Some(dense_parameter_bytes))
            }
        };
        let memory = topology.memory_bytes;
        // TorchRec takes the share from GPU memory only.
        let after_share = match topology.device {
            PlannedDevice::Gpu => ((1.0 - share) * memory as f64) as u64,
            PlannedDevice::Cpu => memory,
        };
        let fixed = dense.map_or(0, |bytes| bytes * DENSE_FACTOR + self.id_bytes() * ID_COPIES);
        after_share
            .checked_sub(fixed)
            .ok_or(TorchrecError::Reservation { memory, needed: memory - after_share + fixed })
    }

    /// Returns the bytes of the ids of a rank's batch.
    fn id_bytes(&self) -> u64 {
        let samples = f64::from(self.setting.samples_per_rank);
        let bags = self.tables.iter().flat_map(|table| &table.ids_per_bag);
        (bags.map(|ids| ids * samples).sum::<f64>() * ID_BYTES).ceil() as u64
    }
}

impl TorchrecSetting {
    /// Checks that hosts have equally many ranks.
    ///
    /// # Errors
    /// [`TorchrecError::Hosts`] if not.
    pub fn check(&self) -> Result<(), TorchrecError> {
        let (ranks, per_host) = (self.topology.ranks, self.topology.ranks_per_host);
        if ranks == 0 || per_host == 0 || !ranks.is_multiple_of(per_host) {
            return Err(TorchrecError::Hosts { ranks, ranks_per_host: per_host });
        }
        Ok(())
    }
}

/// Returns the number of ids of a bag that are looked up.
fn looked_up(table: &TableConfig, ids_per_bag: f64) -> f64 {
    table.sequence_length.map_or(ids_per_bag, |length| ids_per_bag.min(length as f64))
}

fn convert(
    table: &TableConfig,
    ids_per_bag: Vec<f64>,
    optimizer: Optimizer,
    constraints: &Constraints,
) -> Result<TorchrecTable, TorchrecError> {
    let unsupported = |what| Err(TorchrecError::Unsupported { what, table: table.name.clone() });
    if table.is_auto() {
        return unsupported("rows = \"auto\"");
    }
    let every = &constraints.every_table;
    let own = constraints.tables.get(&table.name).unwrap_or(every);
    if own.pinned.is_some() || every.pinned.is_some() {
        return unsupported("a pinned placement");
    }
    if own.most_ranks.or(every.most_ranks).is_some() {
        return unsupported("most_ranks");
    }
    Ok(TorchrecTable {
        name: table.name.clone(),
        rows: table.rows,
        dim: table.dim,
        weight_bytes: table.data_type.bytes() as u32,
        ids_per_bag,
        is_pooled: table.pooling != Pooling::None,
        is_weighted: false,
        optimizer: Some(optimizer),
        least_columns: constraints.least_columns,
        allowed: allowed(own, every),
    })
}

fn allowed(own: &TableConstraints, every: &TableConstraints) -> Option<Vec<ShardingType>> {
    let layouts = own.layouts.as_ref().or(every.layouts.as_ref())?;
    let is_allowed = |sharding: &ShardingType| layouts.contains(&sharding.layout());
    Some(ShardingType::ALL.into_iter().filter(is_allowed).collect())
}
