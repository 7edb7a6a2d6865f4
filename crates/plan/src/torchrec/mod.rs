//! The planner of TorchRec 1.9 as a baseline: its cost model, its search, and its plan files.
//!
//! The cost of a shard is a sum of estimated times, and the cost of a plan is the largest sum of a
//! rank. The arithmetic runs in TorchRec's order, so that equal input gives equal plans. This crate
//! prices plans by the predicted step instead; the baseline shows what that gains.
//!
//! Compute kernels that rowmill lacks are left out: UVM, UVM with a cache, key-value stores,
//! virtual tables and quantized tables. The prefetch time is therefore always 0 and has no field.
//! Pods of several hosts, features with their own batch size and several poolings per sample are
//! left out too.

pub mod cost;
mod cut;
mod error;
pub mod memory;
pub mod option;
mod partition;
pub mod perf;
pub mod plan_form;
pub mod problem;
mod proposals;
pub mod search;
pub mod sharding;
#[cfg(test)]
mod tests;
pub mod topology;

pub use error::{TorchrecError, Unplaced};
pub use option::{Shard, ShardingOption};
pub use perf::ShardPerf;
pub use plan_form::TorchrecPlan;
pub use problem::{Pipeline, StorageReservation, TorchrecProblem, TorchrecSetting, TorchrecTable};
pub use search::{Partitioner, TorchrecResult};
pub use sharding::{ComputeKernel, ShardingType};
pub use topology::{PlannedDevice, TorchrecTopology};

/// Size of an id in bytes. TorchRec's kernels convert ids to 64 bits.
const ID_BYTES: f64 = 8.0;
