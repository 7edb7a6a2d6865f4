//! Rows whose category has no known meaning: what they are, and which program writes such rows.

use super::issue::{Issue, IssueKind, Severity};
use crate::job::RankFacts;
use crate::percent;
use crate::writer;

/// Share of rows without a known meaning from which on figures are wrong, percent.
const ERROR_PCT: f64 = 25.0;
/// Share below which the rows are only mentioned, percent.
const WARNING_PCT: f64 = 1.0;
/// Categories that are named.
const SHOWN: usize = 8;

pub(super) fn issue(rank: &RankFacts<'_>) -> Option<Issue> {
    let trace = rank.scope.trace;
    let unknown = writer::unknown_rows(trace);
    let share = percent(unknown.count as i64, trace.slices.len() as i64)?;
    if unknown.count == 0 {
        return None;
    }
    let foreign = writer::foreign(trace);
    let kind = IssueKind {
        id: "unknown-rows",
        severity: match share {
            _ if foreign.is_some() => Severity::Error,
            ERROR_PCT.. => Severity::Error,
            WARNING_PCT.. => Severity::Warning,
            _ => Severity::Info,
        },
        matters: "these rows are in no figure: neither busy time nor operators nor savings know them",
        hint: "give the file that PyTorch's profiler wrote, before other tools changed it",
    };
    let whose = foreign
        .map_or_else(String::new, |program| format!("not a PyTorch trace, but one of {program}: "));
    let what = format!("{whose}{}", words(&unknown, trace.slices.len()));
    Some(kind.issue(Some(trace.rank), unknown.count, what).share(Some(share)))
}

fn words(unknown: &writer::UnknownRows, all: usize) -> String {
    let named = unknown.categories.iter().take(SHOWN).map(|(name, count)| match name.as_str() {
        "" => format!("none ({count})"),
        name => format!("{name:?} ({count})"),
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = if unknown.categories.len() > SHOWN { ", ..." } else { "" };
    format!(
        "{} of {all} rows have a category without a known meaning: {named}{more}",
        unknown.count
    )
}
