//! Predicts steps: a step without times ([`Program`](program::Program)), its costs ([`cost`],
//! [`calibration`]), and their simulation ([`simulate`]).
//!
//! A simulated step is a trace like any other. There is no engine here: programs become graphs of
//! `analyze::graph`, which relaxes them. Pure: no file, clock or environment, and the same input
//! gives the same bytes.

pub mod calibration;
pub mod cost;
pub mod edit;
pub mod effort;
mod error;
pub mod evaluate;
pub mod finding_savings;
pub mod mode;
pub mod overheads;
pub mod prediction;
pub mod program;
pub mod recording;
pub mod simulate;
pub mod step;
pub mod workload;

pub use error::Error;
