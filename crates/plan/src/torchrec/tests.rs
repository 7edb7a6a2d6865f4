//! Tests against TorchRec's own planner: the expectations of its tests, cases that it planned, and
//! its plan files.

mod estimates;
mod placements;
mod plan_files;
mod planned_cases;
mod problems;

use super::option::ShardingOption;
use super::problem::{
    Pipeline, StorageReservation, TorchrecProblem, TorchrecSetting, TorchrecTable,
};
use super::sharding::ShardingType;
use super::topology::{PlannedDevice, TorchrecTopology};

/// A pooled f32 table of one feature with one id per bag.
fn table(rows: u64, dim: usize) -> TorchrecTable {
    TorchrecTable {
        name: format!("{rows}x{dim}"),
        rows,
        dim,
        weight_bytes: 4,
        ids_per_bag: vec![1.0],
        is_pooled: true,
        is_weighted: false,
        optimizer: None,
        least_columns: None,
        allowed: None,
    }
}

/// Tables on GPUs with TorchRec's defaults.
fn problem(tables: Vec<TorchrecTable>, ranks: u32, ranks_per_host: u32) -> TorchrecProblem {
    let topology = TorchrecTopology::with_defaults(PlannedDevice::Gpu, ranks, ranks_per_host);
    let reservation = StorageReservation::Percentage { share: 0.0 };
    let (samples_per_rank, pipeline) = (512, Pipeline::None);
    let setting = TorchrecSetting { topology, samples_per_rank, pipeline, reservation };
    TorchrecProblem { setting, tables }
}

fn option(problem: &TorchrecProblem, table: usize, sharding: ShardingType) -> ShardingOption {
    ShardingOption::new(table, sharding, sharding.kernel(), problem)
}
