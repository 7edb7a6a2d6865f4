//! The trace files of small, invented recordings.

#![expect(clippy::unwrap_used, reason = "test code fails by panicking")]

mod chakra;
mod corruption;
mod execution_trace;
mod execution_trace_read;
mod failure;
mod kineto;
mod kineto_counts;
mod link;
mod open;
mod export;
mod merge;
mod perfetto;
mod recording;
