//! The trace files of small, invented recordings.

#![expect(clippy::unwrap_used, reason = "test code fails by panicking")]

mod corruption;
mod execution_trace;
mod failure;
mod kineto;
mod open;
mod recording;
