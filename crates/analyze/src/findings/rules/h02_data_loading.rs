//! Rule H02 finds devices that wait while the next batch is fetched. In a recording without a
//! device, the step itself waits for the batch.

use std::collections::BTreeSet;

use trace::store::TrackId;

use super::h13_unrecorded_host::longest_function;
use crate::facts::interval;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::idle::is_input;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "H02",
    title: "data loading stall",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[
        limit("idle_pct", 5.0, "minimum idle time while a batch is fetched, percent of the window"),
        limit("workers", 4.0, "assumed number of worker processes"),
    ],
    page: page!("H02"),
    detect: Detect::Rank(detect),
};

const SET_WORKERS: &str = "Set num_workers and pin_memory=True on the DataLoader, so that batches are made while the \
                           model works on the one before; keep decoding out of the process that launches \
                           its work.";
const MORE_WORKERS: &str = "Raise num_workers and prefetch_factor, set pin_memory and persistent_workers, and move \
                            decoding and collation off the critical step.";

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let track = |row: u32| rank.scope.trace.slices.track[row as usize];
    let is_host_only = rank.is_host_only();
    let training: BTreeSet<TrackId> = if is_host_only {
        rank.scope.window.steps.iter().map(|step| track(step.row)).collect()
    } else {
        rank.launches().map(|row| track(row.call_row)).collect()
    };
    // Fetches on the threads of loader workers do not block the training thread, so they do not
    // count.
    let rows: Vec<u32> = rank
        .outermost_named(is_input(rank.scope.trace))
        .into_iter()
        .filter(|row| training.contains(&track(*row)))
        .collect();
    // A window may begin or end while a batch is fetched, so idle time at its edges counts too.
    let busy = interval::union(rank.scope.spans(|_, _| true));
    let idle = |row: u32| {
        let span = rank.scope.clipped(row);
        span.1 - span.0 - interval::length_within(&busy, span)
    };
    let waited: i64 = rows.iter().map(|row| idle(*row)).sum();
    let share = rank.share(waited);
    if rows.is_empty() || share < limits.value("idle_pct") {
        return None;
    }
    let evidence = rank.collect_timed_evidence(rows.iter().map(|row| (*row, idle(*row))));
    let single = rank.names(|name| name.contains("_SingleProcessDataLoaderIter"));
    let is_single = rank.whole(&rows).into_iter().any(|row| rank.is_named(&single, row));
    let fetching: i64 = rows.iter().map(|row| rank.scope.clipped(*row)).map(|(a, b)| b - a).sum();
    let mut what = format!(
        "{} waits {} per step ({share:.1} % of the window) while {} fetches the next batch{}.",
        if is_host_only { "The model" } else { "The device" },
        time(rank.per_step(waited)),
        evidence.first().map_or("the host", |evidence| &evidence.name),
        match (is_single, is_training(rank)) {
            (true, true) => ", in the training process itself (num_workers=0)",
            (true, false) => ", in the process that runs the model (num_workers=0)",
            (false, _) => "",
        },
    );
    let spans = rows.iter().map(|row| (track(*row), rank.scope.clipped(*row)));
    if let Some((line, ns)) = longest_function(rank, spans) {
        what += &format!(" {} of the fetching are in {line}.", time(rank.per_step(ns)));
    }
    if 20 * waited < 19 * fetching {
        what += &format!(
            " Fetching takes {} per step: in the rest of it the device works, and decides how long \
             a step takes once fetching does not.",
            time(rank.per_step(fetching))
        );
    }
    let (workers, hidden) = hidden_by_workers(rank, &rows, limits.value("workers").max(1.0));
    if hidden < waited {
        what += &format!(
            " {} can hide {} of it while the model works on the batch before.",
            if workers == 1.0 { "One worker".to_owned() } else { format!("{workers:.0} workers") },
            time(rank.per_step(hidden))
        );
    }
    let advice = if is_single { SET_WORKERS } else { MORE_WORKERS };
    let edits = vec![
        rank.edit(rank.whole(&rows), Action::Scale(0.0)),
        rank.edit(rows.clone(), Action::Unblock),
        rank.edit(following(rank, &rows), Action::CloseGap),
    ];
    let found = RuleFindings::new(what, advice)
        .number("idle_per_step_ns", rank.per_step(waited) as f64)
        .number("fetching_per_step_ns", rank.per_step(fetching) as f64)
        .number("idle_pct", share);
    Some(found.shown_by(evidence).saves(waited.min(hidden), edits))
}

/// Returns whether the recording shows that weights are updated or gradients computed.
fn is_training(rank: &RankFacts<'_>) -> bool {
    let is_of_training =
        |name: &str| name.contains("Optimizer.step") || name.contains("autograd::engine");
    rank.scope.trace.strings.iter().any(is_of_training)
}

/// Returns how many workers would prepare batches while the model runs, and how much fetch time
/// they would hide.
///
/// A program that fetches several times per step without training starts new workers in each step.
/// For such a program one worker is assumed, and nothing of its first fetch is hidden.
fn hidden_by_workers(rank: &RankFacts<'_>, rows: &[u32], workers: f64) -> (f64, i64) {
    let spans = interval::union(rows.iter().map(|row| rank.scope.clipped(*row)).collect());
    let window = &rank.scope.window;
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return (workers, 0) };
    let begins_anew = !is_training(rank) && spans.len() as i64 > rank.step_count();
    let workers = if begins_anew { 1.0 } else { workers };
    // Even with perfect workers, two batches are at least one worker's share of a fetch apart.
    let hidden =
        |fetch: i64, rest: i64| fetch.min(fetch + rest - (fetch as f64 / workers) as i64).max(0);
    let pairs = spans.windows(2);
    let inside: i64 = pairs.map(|two| hidden(two[1].1 - two[1].0, two[1].0 - two[0].1)).sum();
    // The time before the first fetch of the window is assumed to equal that after the last fetch.
    let rest = (window.end - last.1) + (first.0 - window.start);
    let of_first = if begins_anew { 0 } else { hidden(first.1 - first.0, rest) };
    (workers, inside + of_first)
}

/// Returns the next row on the thread of each row. A row that is a pure label has no graph node, so
/// the time to fetch shows as a wait of the next row.
fn following(rank: &RankFacts<'_>, rows: &[u32]) -> Vec<u32> {
    let next = |row: &u32| {
        let behind = rank.tree().range(*row).end as usize;
        let inside = rank.tree().subtree(*row).get(1).copied();
        inside.into_iter().chain(rank.tree().nodes.get(behind).copied())
    };
    let is_same = |row: u32, next: u32| {
        let track = &rank.scope.trace.slices.track;
        track[row as usize] == track[next as usize]
    };
    rows.iter()
        .flat_map(|row| next(row).filter(|next| is_same(*row, *next)).collect::<Vec<_>>())
        .collect()
}
