//! Runs the integration tests on trace files of small generated recordings and on public traces.

#![expect(clippy::unwrap_used, reason = "test code fails by panicking")]

mod chakra;
mod corruption;
mod execution_trace;
mod execution_trace_read;
mod export;
mod failure;
mod kineto;
mod kineto_counts;
mod kineto_read;
mod link;
mod merge;
mod open;
mod perfetto;
mod perfetto_read;
mod recording;
mod suite;

use std::path::PathBuf;

/// Returns the path of a fixture below `traces`, or `None` if it is missing.
fn trace_path(name: &str) -> Option<PathBuf> {
    testkit::fixture::path(&format!("traces/{name}"))
}
