//! A custom rule as the user writes it in a settings file.

use serde::Deserialize;

use super::finding::Severity;
use crate::error::Error;

/// A rule that the user defines: it reports the rows of a table that meet its conditions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomRule {
    /// Must differ from the built-in ids.
    pub id: String,
    pub title: String,
    pub table: TraceTable,
    /// Conditions that a row must all meet: `name=~gemm total_ns>1000000`.
    #[serde(rename = "where")]
    pub condition: String,
    pub advice: String,
    #[serde(default = "medium")]
    pub severity: Severity,
}

/// A table as `rowmill trace` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceTable {
    Breakdown,
    Idle,
    Kernels,
    Ops,
    Launches,
    Queue,
    Memory,
    Steps,
    Collectives,
}

fn medium() -> Severity {
    Severity::Medium
}

pub(super) fn wrong(place: &str, expected: String, got: &str) -> Error {
    Error::Rules { place: place.to_owned(), expected, got: got.to_owned() }
}
