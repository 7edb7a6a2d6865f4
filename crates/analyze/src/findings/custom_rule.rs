//! A rule of the user's, as it is written.

use serde::Deserialize;

use super::finding::Severity;
use crate::error::Error;

/// A rule of the user's: rows of a table that meet a condition.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomRule {
    /// Its name in reports; no built-in one.
    pub id: String,
    pub title: String,
    pub table: TraceTable,
    /// Conditions on its columns, all of which a row must meet: `name=~gemm total_ns>1000000`.
    #[serde(rename = "where")]
    pub condition: String,
    /// What to do about it.
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
