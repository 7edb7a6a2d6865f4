//! How far a trace can be trusted: what is missing, wrong or odd in it, which analysis that hurts
//! and what to record instead. Judges the recording, never the program.

mod host;
mod job;
mod records;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::Serialize;
use trace::store::Trace;

use crate::job::RankFacts;
use crate::kernels::short_name;
use crate::scope::Scope;

/// How bad an issue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The recording is not whole.
    Broken,
    /// Figures are wrong.
    Error,
    /// Figures may mislead.
    Warning,
    /// Something cannot be said.
    Info,
}

/// What all issues of a job amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing worse than [`Severity::Info`].
    Good,
    /// Warnings.
    Doubtful,
    /// Errors.
    Poor,
    /// Parts of the recording are missing.
    Broken,
}

impl Verdict {
    /// In words, the same wherever it is shown.
    pub fn words(self) -> &'static str {
        match self {
            Self::Good => "good: its figures can be trusted",
            Self::Doubtful => "doubtful: some figures may mislead",
            Self::Poor => "poor: some figures are wrong",
            Self::Broken => "broken: parts of the recording are missing",
        }
    }
}

/// One thing wrong with a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Issue {
    /// Stable name of the kind of issue, such as `lost-device-rows`.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The rank; `None` for the job as a whole.
    pub rank: Option<u32>,
    /// What is wrong, with numbers.
    pub what: String,
    /// The first or worst place; empty where it has none.
    pub place: String,
    /// How many rows, files or steps.
    pub count: u64,
    /// How much of what the text names.
    pub share_pct: Option<f64>,
    /// The analyses that suffer, and how.
    pub matters: &'static str,
    /// What to do about it.
    pub hint: &'static str,
}

/// All issues of a job, worst first, then by kind and rank.
///
/// # Cost
/// `O(n log n)` in the rows of the traces.
pub fn of(ranks: &[RankFacts<'_>]) -> Vec<Issue> {
    let mut issues = job::issues(ranks);
    for rank in ranks {
        issues.extend(records::issues(rank));
        if rank.scope.trace.is_usable() {
            issues.extend(host::issues(rank));
        }
    }
    issues.sort_by_key(|issue| (issue.severity, issue.id, issue.rank));
    issues
}

/// What is wrong with whole recordings and not with the part of them that is looked at: it changes
/// no figure, and no verdict.
///
/// # Cost
/// As [`of`].
pub fn outside(inside: &[Issue], whole: &[RankFacts<'_>]) -> Vec<Issue> {
    let is_new = |issue: &Issue| {
        !inside.iter().any(|known| (known.id, known.rank) == (issue.id, issue.rank))
    };
    let note = |issue: Issue| Issue {
        severity: Severity::Info,
        what: format!("in the whole recording, outside the part that is looked at: {}", issue.what),
        ..issue
    };
    of(whole).into_iter().filter(is_new).map(note).collect()
}

/// What the issues amount to.
pub fn verdict(issues: &[Issue]) -> Verdict {
    match issues.iter().map(|issue| issue.severity).min() {
        Some(Severity::Broken) => Verdict::Broken,
        Some(Severity::Error) => Verdict::Poor,
        Some(Severity::Warning) => Verdict::Doubtful,
        _ => Verdict::Good,
    }
}

/// All issues of one kind and severity, as one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IssueKind {
    /// The kind.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The first rank that has it; `None` where it is the job's.
    pub rank: Option<u32>,
    /// How many ranks have it; 0 where it is the job's.
    pub rank_count: u64,
    /// How many ranks have exactly this.
    pub alike_count: u64,
    /// What is wrong, of the first rank that has it.
    pub what: String,
    /// The analyses that suffer, and how.
    pub matters: &'static str,
    /// What to do about it.
    pub hint: &'static str,
}

/// Issues as [`of`] orders them, one row per kind and severity.
pub fn by_kind(issues: &[Issue]) -> Vec<IssueKind> {
    let kinds = issues.chunk_by(|a, b| (a.severity, a.id) == (b.severity, b.id));
    let kind = |same: &[Issue]| IssueKind {
        id: same[0].id,
        severity: same[0].severity,
        rank: same[0].rank,
        rank_count: ranks(same, |_| true),
        alike_count: ranks(same, |issue| issue.what == same[0].what),
        what: same[0].what.clone(),
        matters: same[0].matters,
        hint: same[0].hint,
    };
    kinds.map(kind).collect()
}

/// How many ranks have such an issue.
fn ranks(issues: &[Issue], is_such: impl Fn(&Issue) -> bool) -> u64 {
    let such = issues.iter().filter(|issue| is_such(issue));
    such.filter_map(|issue| issue.rank).collect::<BTreeSet<_>>().len() as u64
}

impl IssueKind {
    /// What is wrong, and of which ranks of how many.
    pub fn words(&self, of_ranks: u64) -> String {
        match (self.rank, self.rank_count) {
            (Some(rank), 1) if of_ranks > 1 => format!("rank {rank}: {}", self.what),
            (Some(rank), count) if of_ranks > 1 => {
                let (alike, what) = (self.alike_count, &self.what);
                let others = match (alike, count - alike) {
                    (_, 0) => format!("{count} of {of_ranks} ranks have this"),
                    (1, 1) => format!("1 more of {of_ranks} ranks has the like"),
                    (1, similar) => format!("{similar} more of {of_ranks} ranks have the like"),
                    (_, similar) => {
                        format!("{alike} of {of_ranks} ranks have this, {similar} more the like")
                    }
                };
                format!("rank {rank}: {what} ({others})")
            }
            _ => self.what.clone(),
        }
    }
}

/// What is the same for all issues of a kind.
struct Kind {
    id: &'static str,
    severity: Severity,
    matters: &'static str,
    hint: &'static str,
}

impl Kind {
    fn issue(self, rank: Option<u32>, count: u64, what: String) -> Issue {
        Issue {
            id: self.id,
            severity: self.severity,
            rank,
            what,
            place: String::new(),
            count,
            share_pct: None,
            matters: self.matters,
            hint: self.hint,
        }
    }
}

impl Issue {
    fn at(self, place: String) -> Self {
        Self { place, ..self }
    }

    fn share(self, share_pct: Option<f64>) -> Self {
        Self { share_pct, ..self }
    }
}

/// A row in words: name, track and when it starts, from the first nanosecond of the window.
fn place(scope: &Scope<'_>, row: u32) -> String {
    let trace: &Trace = scope.trace;
    let track = trace.track(row);
    let ms = (trace.slices.start(row) - scope.window.start) as f64 / 1e6;
    let name = short_name(trace.name(row));
    format!("{name} on {}/{} at {ms:+.3} ms", track.pid, track.tid)
}

/// Per text of a trace whether a test holds for it, so that each name is looked at once.
fn names(trace: &Trace, is_meant: impl Fn(&str) -> bool) -> Vec<bool> {
    trace.strings.iter().map(is_meant).collect()
}

/// Whether the name of a row is marked in [`names`].
fn is_named(trace: &Trace, names: &[bool], row: u32) -> bool {
    names[trace.slices.name[row as usize].0 as usize]
}

fn milliseconds(ns: i64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}
