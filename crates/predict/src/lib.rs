//! Predicts training steps. A [`Program`](program::Program) is a step without times,
//! [`calibration`] and [`cost`] give its times, and [`simulate`] combines both. Kernel times of
//! hardware that was not recorded come from `kernel_model`.
//!
//! A simulated step is a trace like any other. The simulation engine is `analyze::graph`: programs
//! become dependency graphs, which it relaxes. The crate is pure: it uses no file, clock or
//! environment, and the same input gives the same bytes.

pub mod calibration;
pub mod cost;
pub mod edit;
pub mod effort;
mod error;
pub mod evaluate;
pub mod finding_savings;
pub mod overheads;
pub mod prediction;
pub mod program;
pub mod published;
pub mod recording;
pub mod simulate;
pub mod step;
pub mod workload;

pub use error::Error;
