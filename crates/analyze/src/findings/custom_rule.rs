//! Defines a custom rule as the user writes it in a settings file.

use serde::Deserialize;

use super::finding::Severity;
use crate::error::Error;

/// A rule that the user defines, which reports the rows of a table that meet its conditions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomRule {
    /// Identifier of the rule, which must differ from the ids of the built-in rules.
    pub id: String,
    pub title: String,
    pub table: TraceTable,
    /// Conditions that a row must meet, all of them, such as `name=~gemm total_ns>1000000`.
    #[serde(rename = "where")]
    pub condition: String,
    pub advice: String,
    #[serde(default = "medium")]
    pub severity: Severity,
}

/// A table as `rowmill trace` prints it, whose rows a custom rule tests.
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
