//! Predicts the time of the trainer's operations on a measured CPU.
//!
//! [`MeasuredSteps`] are training steps of many configurations, operation by operation. A
//! [`CpuModel`] is learnt from them: an operation is a sum of amounts of work (FLOPs, bytes past
//! each cache, rows, ids), each with a non-negative time per unit. Residuals of works of similar
//! size correct it within bounds.

mod fit;
mod measured;
mod model;
mod work;

pub use measured::{Machine, MeasuredStep, MeasuredSteps, STEPS_VERSION};
pub use model::{CpuKindErrors, CpuModel, CpuPrice, Example, MODEL_VERSION, is_judged};
pub use work::{Context, CpuWork};
