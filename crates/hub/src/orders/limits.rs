//! Limits of trace orders, which the configuration sets.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::error::Error;
use crate::time::{DAY_S, deserialize_span};

/// Limits of trace orders and of the traces that agents send.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TraceLimits {
    /// The program that analyzes traces. Without it, `rowmill` beside the hub's program.
    pub rowmill: Option<PathBuf>,
    /// For how long orders and traces are kept.
    #[serde(deserialize_with = "deserialize_span")]
    pub kept: Duration,
    /// Largest size of one trace in MiB.
    pub size_mib: u64,
    /// Largest size of all traces in MiB. Further ones are refused.
    pub total_mib: u64,
    /// Largest number of orders in 24 hours.
    pub orders_per_day: usize,
    /// Largest number of periodic traces that are fetched from agents in 24 hours; 0 for none.
    pub periodic_per_day: usize,
    /// Largest number of these traces from one workflow type and user.
    pub periodic_per_workflow: usize,
    /// Largest memory of one analysis in MiB.
    pub memory_mib: u64,
    /// Longest time of one analysis.
    #[serde(deserialize_with = "deserialize_span")]
    pub timeout: Duration,
}

impl Default for TraceLimits {
    fn default() -> Self {
        Self {
            rowmill: None,
            kept: Duration::from_secs(30 * DAY_S),
            size_mib: 512,
            total_mib: 20 << 10,
            orders_per_day: 200,
            periodic_per_day: 100,
            periodic_per_workflow: 4,
            memory_mib: 4096,
            timeout: Duration::from_secs(300),
        }
    }
}

impl TraceLimits {
    /// Checks the values.
    ///
    /// # Errors
    /// If a value is too small.
    pub fn check(&self) -> Result<(), Error> {
        let least = [
            ("size_mib", self.size_mib, 1, "at least 1"),
            ("memory_mib", self.memory_mib, 256, "at least 256"),
            ("kept", self.kept.as_secs(), DAY_S, "at least 1d"),
            ("timeout", self.timeout.as_secs(), 1, "at least 1s"),
        ];
        let Some((key, got, _, expected)) =
            least.into_iter().find(|(_, got, least, _)| got < least)
        else {
            return Ok(());
        };
        let what = format!("traces: {key}");
        Err(Error::Value { what, expected, got: got.to_string() })
    }
}
