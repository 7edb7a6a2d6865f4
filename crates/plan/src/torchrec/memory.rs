//! TorchRec's estimate of the memory of a shard, on the device that holds the tables.

use schema::Optimizer;

use super::ID_BYTES;
use super::cut::ShardCell;
use super::perf::BatchCounts;
use super::problem::{Pipeline, TorchrecSetting, TorchrecTable};
use super::sharding::ShardingType;
use super::topology::PlannedDevice;

/// Estimates the memory of a shard in bytes: weights, optimizer states, ids and vectors.
#[must_use]
pub fn estimate_bytes(
    table: &TorchrecTable,
    sharding: ShardingType,
    cell: &ShardCell,
    setting: &TorchrecSetting,
) -> u64 {
    let rows = cell.rows.end - cell.rows.start;
    let weights = rows * cell.columns.len() as u64 * u64::from(table.weight_bytes);
    let states = (weights as f64 * state_factor(table)).ceil() as u64;
    weights + states + batch_bytes(table, sharding, cell, setting)
}

/// Returns the bytes of optimizer states per byte of weights. TorchRec counts one state for every
/// rule that it does not know, so LAMB counts once.
fn state_factor(table: &TorchrecTable) -> f64 {
    match table.optimizer {
        None | Some(Optimizer::Sgd) => 0.0,
        Some(Optimizer::Adam) => 2.0,
        Some(Optimizer::RowwiseAdagrad) => 1.0 / table.dim as f64,
        Some(Optimizer::Adagrad | Optimizer::SparseAdam | Optimizer::Lamb) => 1.0,
    }
}

fn batch_bytes(
    table: &TorchrecTable,
    sharding: ShardingType,
    cell: &ShardCell,
    setting: &TorchrecSetting,
) -> u64 {
    if cell.rows.is_empty() || cell.columns.is_empty() {
        return 0;
    }
    let counts = BatchCounts::for_shard(table, sharding, setting);
    let vector_bytes = cell.columns.len() as f64 * f64::from(table.weight_bytes);
    let input = (counts.ids * ID_BYTES).ceil() as u64;
    let output = (counts.vectors * vector_bytes).ceil() as u64;
    match setting.pipeline {
        _ if setting.topology.device == PlannedDevice::Cpu => input + output,
        Pipeline::None => input + output,
        Pipeline::SparseDist => 2 * input,
        Pipeline::SparseDistAtPeak => 2 * input + output,
    }
}
