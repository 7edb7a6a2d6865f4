//! What the operations of rowmill's own trainer take on a CPU that was measured.
//!
//! [`MeasuredSteps`] are training steps of many configurations, operation by operation. A
//! [`CpuModel`] is learnt from them: an operation is a sum of amounts of work (FLOPs, bytes past
//! each cache, rows, ids), each of which takes so long for each unit, and never less than nothing.
//! What works of near sizes had left over corrects that within bounds.

mod fit;
mod measured;
mod model;
mod work;

pub use measured::{Machine, MeasuredStep, MeasuredSteps, STEPS_VERSION};
pub use model::{CpuKindErrors, CpuModel, CpuPrice, Example, MODEL_VERSION, is_judged};
pub use work::{Context, CpuWork};
