//! Reports rows with an unknown category, and the program that writes such rows.

use trace::store::EventKind;

use super::issue::{Issue, IssueKind, Severity};
use crate::facts::job::RankFacts;
use crate::facts::writer;
use crate::percent::percent;

/// Share of rows of unknown meaning, in percent, from which the figures are wrong.
const ERROR_PCT: f64 = 25.0;
/// Share of rows of unknown meaning, in percent, below which they are only mentioned.
const WARNING_PCT: f64 = 1.0;
/// Maximum number of categories in the message.
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
            // If PyTorch wrote all its kinds of rows, the unknown rows are the user's own spans.
            _ if has_all_kinds(rank) => Severity::Info,
            ERROR_PCT.. => Severity::Error,
            WARNING_PCT.. => Severity::Warning,
            _ => Severity::Info,
        },
        matters: "these rows count in no figure: not in busy time, operators or savings",
        hint: "give the file that PyTorch's profiler wrote, before other tools changed it",
    };
    let whose = foreign
        .map_or_else(String::new, |program| format!("not a PyTorch trace, but one of {program}: "));
    let what = format!("{whose}{}", words(&unknown, trace.slices.len()));
    Some(kind.issue(Some(trace.rank), unknown.count, what).share(Some(share)))
}

/// Returns whether the recording has operators, runtime calls and device work.
fn has_all_kinds(rank: &RankFacts<'_>) -> bool {
    let trace = rank.scope.trace;
    let has =
        |is_kind: &dyn Fn(EventKind) -> bool| trace.rows().any(|row| is_kind(trace.kind(row)));
    has(&|kind| kind == EventKind::Operator)
        && has(&|kind| kind.is_call())
        && has(&|kind| kind.is_device_work())
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
