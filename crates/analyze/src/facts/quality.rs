//! Judges how far a trace can be trusted: what it lacks, which analyses are affected, and what to
//! record instead.

mod candidate;
mod graphs;
mod host;
mod issue;
mod job;
pub(crate) mod losses;
mod records;
#[cfg(test)]
mod tests;
mod unknown;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::facts::job::RankFacts;

pub use issue::{Issue, Severity};

/// Overall quality of a job's recordings, which follows from the worst issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QualityVerdict {
    /// No issue is worse than [`Severity::Info`].
    Good,
    Doubtful,
    Poor,
    /// The verdict on a recording of which parts are missing.
    Broken,
}

impl QualityVerdict {
    /// Returns the sentence with which every report explains this verdict.
    pub fn words(self) -> &'static str {
        match self {
            Self::Good => "good: its figures can be trusted",
            Self::Doubtful => "doubtful: some figures may mislead",
            Self::Poor => "poor: some figures are wrong",
            Self::Broken => "broken: parts of the recording are missing",
        }
    }
}

/// Finds all issues of a job, sorted from worst to least, then by kind and rank.
///
/// # Cost
/// The cost is `O(n log n)` in the rows of the traces.
pub fn find_issues(ranks: &[RankFacts<'_>]) -> Vec<Issue> {
    let mut issues = job::issues(ranks);
    issues.extend(candidate::issue(ranks));
    for rank in ranks {
        issues.extend(records::issues(rank));
        if rank.scope.trace.is_usable() {
            issues.extend(host::issues(rank));
            issues.extend(graphs::issue(rank));
        }
    }
    issues.sort_by_key(|issue| (issue.severity, issue.id, issue.loss, issue.rank));
    issues
}

/// Finds the issues that exist only outside the analyzed window. Such issues change neither figures
/// nor the verdict.
///
/// # Cost
/// The cost is that of [`find_issues`].
pub fn outside(inside: &[Issue], whole: &[RankFacts<'_>]) -> Vec<Issue> {
    let is_new = |issue: &Issue| {
        !inside
            .iter()
            .any(|known| (known.id, known.loss, known.rank) == (issue.id, issue.loss, issue.rank))
    };
    let note = |issue: Issue| Issue {
        severity: Severity::Info,
        what: format!("in the recording outside the analyzed window: {}", issue.what),
        ..issue
    };
    find_issues(whole).into_iter().filter(is_new).map(note).collect()
}

/// Returns the verdict that the issues imply.
pub fn verdict(issues: &[Issue]) -> QualityVerdict {
    match issues.iter().map(|issue| issue.severity).min() {
        Some(Severity::Broken) => QualityVerdict::Broken,
        Some(Severity::Error) => QualityVerdict::Poor,
        Some(Severity::Warning) => QualityVerdict::Doubtful,
        _ => QualityVerdict::Good,
    }
}

/// Issues of one kind and severity, merged over the ranks. Losses of different kinds stay separate
/// issues.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IssueKind {
    pub id: &'static str,
    pub severity: Severity,
    /// The first rank with this issue; `None` for an issue of the whole job.
    pub rank: Option<u32>,
    /// Number of ranks with this issue; 0 for an issue of the whole job.
    pub rank_count: u64,
    /// Number of ranks whose issue has exactly the same text as `what`.
    pub alike_count: u64,
    /// Description of the issue with the figures of the first rank.
    pub what: String,
    /// The affected analyses, and how the issue affects them.
    pub matters: &'static str,
    /// Advice to the user about the issue.
    pub hint: &'static str,
}

/// Merges issues into one row per kind and severity, in the order of [`find_issues`].
pub fn by_kind(issues: &[Issue]) -> Vec<IssueKind> {
    let kinds = issues.chunk_by(|a, b| (a.severity, a.id, a.loss) == (b.severity, b.id, b.loss));
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

/// Counts the ranks that have an issue for which `is_such` is true.
fn ranks(issues: &[Issue], is_such: impl Fn(&Issue) -> bool) -> u64 {
    let such = issues.iter().filter(|issue| is_such(issue));
    such.filter_map(|issue| issue.rank).collect::<BTreeSet<_>>().len() as u64
}

impl IssueKind {
    /// Describes the issue and says how many of the ranks have it.
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
