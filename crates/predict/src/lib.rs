//! Predicts the duration of training steps. A [`Program`](program::Program) is a step without
//! times, [`calibration`] and [`cost`] provide the times of its parts, and [`simulate`] combines
//! both. Kernel times on hardware that was not recorded come from the crate `kernel_model`.
//!
//! A simulated step can be written as a trace and analyzed like a recorded one. The simulation
//! engine is `analyze::graph`, which computes the start times in the dependency graph of a program.
//! The crate is pure: it uses no file, clock or environment, and equal input gives equal bytes.

pub mod calibration;
pub mod cost;
pub mod edit;
pub mod effort;
mod error;
pub mod evaluate;
pub mod finding_edits;
pub mod finding_savings;
pub mod overheads;
pub mod prediction;
pub mod program;
pub mod recording;
pub mod simulate;
pub mod step;
mod tensor_work;
pub mod workload;

pub use error::Error;
