//! The shared types of rowmill as plain data: configurations, batches, plans, operations and units.
//!
//! This crate does not use files, clocks, threads or the environment, so all other crates may
//! depend on it.

// The derive macros of `table` refer to this crate as `::schema`. Inside the crate, where only
// tests use them, that name needs this alias.
#[cfg(test)]
extern crate self as schema;

pub mod batch;
pub mod config;
mod config_error;
pub mod distribution;
pub mod facts;
pub mod feature_stats;
pub mod file_format;
pub mod host_layout;
pub mod host_tiling;
pub mod layout;
pub mod median;
pub mod model;
pub mod op;
pub mod optimizer;
pub mod pattern;
pub mod plan;
pub mod plan_constraints;
pub mod proposal;
pub mod random;
pub mod reference;
pub mod replica_groups;
pub mod row_scope;
pub mod source;
pub mod stage;
pub mod synthetic;
pub mod table;
pub mod table_storage;
pub mod topology;
pub mod training;
pub mod unit;

pub use batch::{Batch, JaggedTensor};
pub use config::{JobConfig, Optimizers};
pub use config_error::ConfigError;
pub use distribution::{IdLaw, IndexDistribution};
pub use feature_stats::{FeatureStats, FeatureStatsError, FeatureStatsFile, FeatureStatsFileError};
pub use host_layout::{HostLayout, HostLayoutError};
pub use layout::{Layout, LayoutKind, Placement};
pub use model::{DataType, Interaction, Loss, ModelConfig, Pooling, TableConfig, TriangleOrder};
pub use op::{GemmProduct, Op, OpWork, Pass};
pub use optimizer::{
    Granularity, LearningRateSchedule, Optimizer, OptimizerConfig, SplitRowRule, WeightDecayMode,
};
pub use plan::{ShardingPlan, Tile};
pub use plan_constraints::{Constraints, TableConstraints};
pub use replica_groups::{ReplicaGroups, ReplicaGroupsError};
pub use row_scope::RowScope;
pub use source::DataConfig;
pub use stage::{Schedule, Stage, StepGraph};
pub use synthetic::SyntheticConfig;
pub use table::{CellType, Column, ColumnType, ColumnUnit, TableRow};
pub use table_storage::{CachePolicy, TableStorage};
pub use topology::{HardwareSpec, Topology};
pub use training::{Figure, Precision, TrainingConfig};
pub use unit::{Bytes, Nanos, Rank, Share, TableId};
