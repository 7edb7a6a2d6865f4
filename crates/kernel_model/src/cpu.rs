//! Predicts the time of the trainer's operations on a measured CPU.
//!
//! [`MeasuredSteps`] are training steps of many configurations, timed operation by operation. A
//! [`CpuModel`] is trained on these steps. The model predicts the time of an operation as a sum
//! over amounts of work (FLOPs, bytes past each cache, rows, ids), each multiplied by a
//! non-negative time per unit. Residuals of measured operations of similar size correct the sum
//! within bounds.

mod fit;
mod join;
mod kind;
mod learn;
mod measured;
mod model;
mod trees;
mod units;
mod work;

pub(super) use fit::fit_units;
pub use kind::CpuPrice;
pub(super) use kind::KindModel;
pub use learn::{CpuKindErrors, Example, are_judged, is_judged};
pub use measured::{
    EqualTables, Machine, MeasuredStep, MeasuredSteps, MeasuredTables, STEPS_VERSION, TablesRound,
};
pub use model::{CpuModel, MODEL_VERSION};
pub use work::{Context, CpuWork};
