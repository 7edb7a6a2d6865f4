//! Predicts the time of the trainer's operations on a measured CPU.
//!
//! [`MeasuredSteps`] are training steps of many configurations, operation by operation. A
//! [`CpuModel`] is trained on them: the time of an operation is a sum over amounts of work (FLOPs,
//! bytes past each cache, rows, ids), each with a non-negative time per unit. Residuals of works of
//! similar size correct it within bounds.

mod fit;
mod join;
mod kind;
mod learn;
mod measured;
mod model;
mod trees;
mod units;
mod work;

pub use kind::CpuPrice;
pub(super) use kind::KindModel;
pub use learn::{CpuKindErrors, Example, are_judged, is_judged};
pub use measured::{
    EqualTables, Machine, MeasuredStep, MeasuredSteps, MeasuredTables, STEPS_VERSION, TablesRound,
};
pub use model::{CpuModel, MODEL_VERSION};
pub use work::{Context, CpuWork};
