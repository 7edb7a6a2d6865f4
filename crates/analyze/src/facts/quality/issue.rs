//! Defines an issue, which is a defect of a recording together with its description.

use schema::{CellType, TableRow};
use serde::Serialize;
use trace::store::{Loss, Trace};

use crate::facts::scope::Scope;
use crate::tables::kernels::short_name;

/// Severity of an issue, which depends on its effect on the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The recording lacks a part of what happened.
    Broken,
    Error,
    Warning,
    /// Some analysis lacks the data that it needs.
    Info,
}

/// A defect of a trace or of a whole job.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct Issue {
    /// Stable name of the kind of issue, such as `lost-device-rows`.
    pub id: &'static str,
    pub severity: Severity,
    /// The rank with the issue, or `None` if the issue concerns the whole job.
    pub rank: Option<u32>,
    /// Description of the defect with its figures.
    pub what: String,
    /// The first or worst place of the defect; empty if the issue has no place.
    pub place: String,
    /// Number of affected rows, files or steps.
    pub count: u64,
    /// Share of the things that the text names, in percent.
    pub share_pct: Option<f64>,
    /// The kind of loss, if the reader could not read a part of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// The affected analyses, and how the issue affects them.
    pub matters: &'static str,
    /// Advice to the user about the issue.
    pub hint: &'static str,
}

/// The parts that all issues of one kind have in common.
pub(super) struct IssueKind {
    pub id: &'static str,
    pub severity: Severity,
    pub matters: &'static str,
    pub hint: &'static str,
}

impl IssueKind {
    /// Creates an issue of this kind without a place, a share or a loss. Callers set the place, the
    /// share and the loss where they apply.
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

/// Describes where a row is, by its name, its track, and its start relative to the window.
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
