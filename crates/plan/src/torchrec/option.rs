//! Sharding options: the ways in which a table can be sharded, with the cost of each shard.

use super::cut::{self, ShardCell};
use super::error::TorchrecError;
use super::memory::estimate_bytes;
use super::perf::{ShardPerf, estimate_perf};
use super::problem::{TorchrecProblem, TorchrecSetting, TorchrecTable};
use super::sharding::{ComputeKernel, ShardingType};

/// A part of a table that one rank holds, with its estimated cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    pub cell: ShardCell,
    pub perf: ShardPerf,
    /// Memory that the shard needs.
    pub bytes: u64,
}

/// A way to shard a table, before its shards have ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardingOption {
    /// Position of the table in the model.
    pub table: usize,
    pub sharding: ShardingType,
    pub kernel: ComputeKernel,
    /// Ordered by column part, then by row.
    pub shards: Vec<Shard>,
}

impl ShardingOption {
    /// Estimates the cost of each cell of a table.
    #[must_use]
    pub fn estimate(
        table: usize,
        sharding: ShardingType,
        kernel: ComputeKernel,
        cells: Vec<ShardCell>,
        problem: &TorchrecProblem,
    ) -> Self {
        let (config, setting) = (&problem.tables[table], &problem.setting);
        let estimate = |cell| Shard {
            perf: estimate_perf(config, sharding, kernel, &cell, setting),
            bytes: estimate_bytes(config, sharding, &cell, setting),
            cell,
        };
        Self { table, sharding, kernel, shards: cells.into_iter().map(estimate).collect() }
    }

    /// Cuts a table as TorchRec does, and estimates the cost of each shard.
    #[must_use]
    pub fn new(
        table: usize,
        sharding: ShardingType,
        kernel: ComputeKernel,
        problem: &TorchrecProblem,
    ) -> Self {
        let cells = cut::cut(&problem.tables[table], sharding, &problem.setting);
        Self::estimate(table, sharding, kernel, cells, problem)
    }

    /// Returns the sum of the times of all shards, in milliseconds.
    #[must_use]
    pub fn total_perf(&self) -> f64 {
        self.shards.iter().fold(0.0, |sum, shard| sum + shard.perf.total())
    }

    /// Returns the largest time of a shard, in milliseconds.
    #[must_use]
    pub fn largest_perf(&self) -> f64 {
        self.shards.iter().fold(0.0, |largest, shard| shard.perf.total().max(largest))
    }

    /// Returns the memory of all shards, in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes).sum()
    }

    /// Returns the memory of the largest shard, in bytes.
    #[must_use]
    pub fn largest_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes).max().unwrap_or(0)
    }
}

/// Lists the sharding options of each table, in TorchRec's order.
///
/// # Errors
/// [`TorchrecError::NoOption`] names a table that cannot be sharded in any allowed way.
pub fn list_options(problem: &TorchrecProblem) -> Result<Vec<Vec<ShardingOption>>, TorchrecError> {
    let list = |(id, table): (usize, &TorchrecTable)| {
        let options: Vec<_> = ShardingType::ALL
            .into_iter()
            .filter(|&sharding| is_allowed(table, sharding, &problem.setting))
            .map(|sharding| ShardingOption::new(id, sharding, sharding.kernel(), problem))
            .collect();
        if options.is_empty() {
            return Err(TorchrecError::NoOption { table: table.name.clone() });
        }
        Ok(options)
    };
    problem.tables.iter().enumerate().map(list).collect()
}

fn is_allowed(table: &TorchrecTable, sharding: ShardingType, setting: &TorchrecSetting) -> bool {
    use ShardingType::{GridShard, TableColumnWise, TableRowWise};
    // TorchRec's sharder of tables without pooling has no types that use hosts, and offers row-wise
    // sharding on every device.
    let is_offered = if table.is_pooled {
        setting.topology.device.allows(sharding)
    } else {
        !matches!(sharding, GridShard | TableColumnWise | TableRowWise)
    };
    is_offered
        && table.allowed.as_ref().map_or(sharding != GridShard, |list| list.contains(&sharding))
}
