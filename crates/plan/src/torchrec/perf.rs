//! TorchRec's estimate of the times that a shard adds to a step.

use super::ID_BYTES;
use super::cut::ShardCell;
use super::problem::{TorchrecSetting, TorchrecTable};
use super::sharding::{ComputeKernel, ShardingType};
use super::topology::TorchrecTopology;

/// Columns that use a whole block of FBGEMM's kernel.
const FULL_BLOCK: usize = 128;
/// Columns that use half a block.
const HALF_BLOCK: usize = 64;
const HALF_BLOCK_PENALTY: f64 = 1.15;
const QUARTER_BLOCK_PENALTY: f64 = 1.75;
/// Least number of columns that a lookup of whole rows reads.
const LOOKUP_COLUMNS: usize = 32;
/// Time of a backward pass relative to the forward pass.
const BACKWARD_FACTOR: f64 = 2.0;
/// Time of the gradients of weights of ids, relative to the forward pass.
const WEIGHT_GRADIENT_FACTOR: f64 = 1.1;
/// Time of the copies after an all-gather, relative to one pass over the gathered bytes.
const COPY_FACTOR: f64 = 2.455;
/// Time of a dense update, relative to one pass over the table.
const DENSE_UPDATE_FACTOR: f64 = 9.22;

/// Estimated times of a shard in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShardPerf {
    pub forward_compute: f64,
    pub forward_exchange: f64,
    pub backward_compute: f64,
    pub backward_exchange: f64,
    /// Time of the exchange of ids, which TorchRec leaves out of the total.
    pub input_exchange: f64,
}

impl ShardPerf {
    /// Returns the time by which TorchRec compares shards, in milliseconds.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.forward_compute
            + self.backward_compute
            + self.forward_exchange
            + self.backward_exchange
    }

    /// Adds the times of another shard.
    pub fn add(&mut self, other: &Self) {
        self.forward_compute += other.forward_compute;
        self.forward_exchange += other.forward_exchange;
        self.backward_compute += other.backward_compute;
        self.backward_exchange += other.backward_exchange;
        self.input_exchange += other.input_exchange;
    }
}

/// Bytes that a shard moves in a forward pass.
struct ShardTraffic {
    ids: f64,
    rows: f64,
    vectors: f64,
}

/// The times of exchanges of vectors, in milliseconds.
struct ExchangeTimes {
    forward: f64,
    backward: f64,
}

/// Number of ids and of vectors.
pub struct BatchCounts {
    pub ids: f64,
    /// One for each sample with a bag that is not empty, or one for each id without pooling.
    pub vectors: f64,
}

impl BatchCounts {
    /// Counts the ids and vectors of a table in the samples of one rank.
    #[must_use]
    pub fn for_rank(table: &TorchrecTable, setting: &TorchrecSetting) -> Self {
        let samples = f64::from(setting.samples_per_rank);
        let ids = table.ids_per_bag.iter().fold(0.0, |sum, ids| sum + ids * samples);
        let bags = table.ids_per_bag.iter().fold(0.0, |sum, ids| sum + ids.min(1.0) * samples);
        Self { ids, vectors: if table.is_pooled { bags } else { ids } }
    }

    /// Counts the ids that a shard looks up and the vectors that it sends. A shard serves the
    /// samples of all ranks, and shards of the same columns share the ids evenly. Pooling gives a
    /// partial sum on each of these shards.
    #[must_use]
    pub fn for_shard(
        table: &TorchrecTable,
        sharding: ShardingType,
        setting: &TorchrecSetting,
    ) -> Self {
        let Self { ids, vectors } = Self::for_rank(table, setting);
        let ranks = f64::from(setting.topology.ranks);
        let (served, blocks) = match sharding {
            ShardingType::DataParallel => (1.0, 1.0),
            ShardingType::TableWise | ShardingType::ColumnWise | ShardingType::TableColumnWise => {
                (ranks, 1.0)
            }
            ShardingType::RowWise => (ranks, ranks),
            ShardingType::TableRowWise | ShardingType::GridShard => {
                (ranks, f64::from(setting.topology.ranks_per_host))
            }
        };
        let vectors = if table.is_pooled { vectors } else { vectors / blocks };
        Self { ids: ids / blocks * served, vectors: vectors * served }
    }
}

/// Estimates the times of a shard.
#[must_use]
pub fn estimate_perf(
    table: &TorchrecTable,
    sharding: ShardingType,
    kernel: ComputeKernel,
    cell: &ShardCell,
    setting: &TorchrecSetting,
) -> ShardPerf {
    let topology = &setting.topology;
    let counts = BatchCounts::for_rank(table, setting);
    let traffic = count_traffic(table, sharding, cell.columns.len(), setting);
    let bandwidth = topology.kernel_bandwidth(kernel);
    let bytes = traffic.ids + traffic.rows + traffic.vectors;
    let forward_compute = bytes * penalty(sharding, cell.columns.len()) / bandwidth;
    let mut backward_compute = forward_compute * BACKWARD_FACTOR;
    if table.is_weighted {
        backward_compute += forward_compute * WEIGHT_GRADIENT_FACTOR;
    }
    let weight_bytes = f64::from(table.weight_bytes);
    let columns = cell.columns.len() as f64;
    let copies = traffic.vectors * COPY_FACTOR / bandwidth;
    let exchange = match sharding {
        ShardingType::DataParallel => {
            let rows = (cell.rows.end - cell.rows.start) as f64;
            all_reduce(rows * columns * weight_bytes, bandwidth, topology)
        }
        ShardingType::TableWise | ShardingType::ColumnWise | ShardingType::TableColumnWise => {
            let time = traffic.vectors / topology.bandwidth_of_all();
            ExchangeTimes { forward: time, backward: time }
        }
        ShardingType::RowWise => {
            let time = traffic.vectors / topology.bandwidth_of_all();
            ExchangeTimes { forward: time, backward: time + copies }
        }
        ShardingType::TableRowWise | ShardingType::GridShard => {
            let within = traffic.vectors / topology.bandwidth_within_hosts;
            let hosts = f64::from(topology.hosts());
            let bytes = counts.vectors * hosts * columns * weight_bytes;
            let between = if hosts > 1.0 { bytes / topology.bandwidth_between_hosts } else { 0.0 };
            ExchangeTimes { forward: within + between, backward: between + within + copies }
        }
    };
    ShardPerf {
        forward_compute,
        forward_exchange: exchange.forward,
        backward_compute,
        backward_exchange: exchange.backward,
        input_exchange: match sharding {
            ShardingType::DataParallel => 0.0,
            _ => {
                let bytes = (counts.ids * f64::from(topology.ranks) * ID_BYTES).ceil();
                bytes / topology.bandwidth_of_all()
            }
        },
    }
}

fn count_traffic(
    table: &TorchrecTable,
    sharding: ShardingType,
    columns: usize,
    setting: &TorchrecSetting,
) -> ShardTraffic {
    let counts = BatchCounts::for_shard(table, sharding, setting);
    let weight_bytes = f64::from(table.weight_bytes);
    let read_columns = if has_whole_rows(sharding) { columns.max(LOOKUP_COLUMNS) } else { columns };
    let weights_of_ids = if table.is_weighted { 2.0 } else { 1.0 };
    ShardTraffic {
        ids: (counts.ids * ID_BYTES).ceil() * weights_of_ids,
        rows: counts.ids * read_columns as f64 * weight_bytes,
        vectors: counts.vectors * columns as f64 * weight_bytes,
    }
}

/// Whether TorchRec's formula for lookups of all rows of a table applies.
fn has_whole_rows(sharding: ShardingType) -> bool {
    use ShardingType::{ColumnWise, TableColumnWise, TableWise};
    matches!(sharding, TableWise | ColumnWise | TableColumnWise)
}

/// Returns the factor by which narrow rows waste the blocks of the kernel.
fn penalty(sharding: ShardingType, columns: usize) -> f64 {
    if !has_whole_rows(sharding) || columns >= FULL_BLOCK {
        1.0
    } else if columns >= HALF_BLOCK {
        HALF_BLOCK_PENALTY
    } else {
        QUARTER_BLOCK_PENALTY
    }
}

/// Estimates the sum of the gradients of a replicated table, and its dense update.
fn all_reduce(bytes: f64, kernel_bandwidth: f64, topology: &TorchrecTopology) -> ExchangeTimes {
    let hosts = (f64::from(topology.ranks) / f64::from(topology.ranks_per_host)).min(2.0);
    let ring = bytes * (2.0 * hosts - 1.0) / hosts / topology.bandwidth_of_all_reduce();
    let ring = if topology.ranks > 2 * topology.ranks_per_host { ring * 2.0 } else { ring };
    ExchangeTimes { forward: 0.0, backward: ring + bytes * DENSE_UPDATE_FACTOR / kernel_bandwidth }
}
