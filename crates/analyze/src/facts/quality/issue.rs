//! A defect of a recording, with its description.

use schema::{CellType, TableRow};
use serde::Serialize;
use trace::store::{Loss, Trace};

use crate::facts::scope::Scope;
use crate::tables::kernels::short_name;

/// Severity of an issue, by its effect on the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The recording is incomplete.
    Broken,
    Error,
    Warning,
    /// Some analysis lacks its data.
    Info,
}

/// A defect of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct Issue {
    /// Stable name of the kind of issue, such as `lost-device-rows`.
    pub id: &'static str,
    pub severity: Severity,
    /// The rank; `None` for the job as a whole.
    pub rank: Option<u32>,
    /// What is wrong, with numbers.
    pub what: String,
    /// The first or worst place; empty if the issue has no place.
    pub place: String,
    /// Number of rows, files or steps.
    pub count: u64,
    /// Share of what the text names, in percent.
    pub share_pct: Option<f64>,
    /// The kind of loss, if the reader could not read something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// The affected analyses, and how they are affected.
    pub matters: &'static str,
    /// What to do about it.
    pub hint: &'static str,
}

/// The parts of an issue that all issues of a kind share.
pub(super) struct IssueKind {
    pub id: &'static str,
    pub severity: Severity,
    pub matters: &'static str,
    pub hint: &'static str,
}

impl IssueKind {
    /// Creates an issue of this kind without a place, a share or a loss. Callers set those fields
    /// where they apply.
    pub fn issue(self, rank: Option<u32>, count: u64, what: String) -> Issue {
        Issue {
            id: self.id,
            severity: self.severity,
            rank,
            what,
            place: String::new(),
            count,
            share_pct: None,
            loss: None,
            matters: self.matters,
            hint: self.hint,
        }
    }
}

impl Issue {
    pub(super) fn at(self, place: String) -> Self {
        Self { place, ..self }
    }

    pub(super) fn share(self, share_pct: Option<f64>) -> Self {
        Self { share_pct, ..self }
    }
}

/// Describes a row by name, track, and start relative to the window.
pub(super) fn place(scope: &Scope<'_>, row: u32) -> String {
    let trace: &Trace = scope.trace;
    let track = trace.track(row);
    let ms = (trace.slices.start(row) - scope.window.start) as f64 / 1e6;
    let name = short_name(trace.name(row));
    format!("{name} on {}/{} at {ms:+.3} ms", track.pid, track.tid)
}

pub(super) fn milliseconds(ns: i64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}
