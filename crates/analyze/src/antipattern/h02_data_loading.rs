//! H02: the device waits while the next batch is fetched. In a recording of a job without devices,
//! the step itself waits.

use std::collections::BTreeSet;

use trace::store::TrackId;

use super::finding::{Confidence, FindingCategory, RuleFindings};
use super::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use super::text::time;
use crate::graph::edit::Action;
use crate::idle::INPUT;
use crate::interval;
use crate::job::RankFacts;

pub(super) const RULE: Rule = Rule {
    id: "H02",
    title: "data loading stall",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[limit("idle_pct", 5.0, "idle time while a batch is fetched, percent of the window")],
    page: page!("H02"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let track = |row: u32| rank.scope.trace.slices.track[row as usize];
    let is_host_only = rank.is_host_only();
    let training: BTreeSet<TrackId> = if is_host_only {
        rank.scope.window.steps.iter().map(|step| track(step.row)).collect()
    } else {
        rank.launches().iter().map(|row| track(row.call_row)).collect()
    };
    // What workers fetch on threads of their own blocks nobody.
    let rows: Vec<u32> = rank
        .outermost_named(|name| INPUT.iter().any(|part| name.contains(part)))
        .into_iter()
        .filter(|row| training.contains(&track(*row)))
        .collect();
    // A window may begin with fetching, so its ends count too.
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
    let proofs = rank.proofs_of(rows.iter().map(|row| (*row, idle(*row))));
    let single = rank.names(|name| name.contains("_SingleProcessDataLoaderIter"));
    let is_single = rank.whole(&rows).into_iter().any(|row| rank.is_named(&single, row));
    let fetching: i64 = rows.iter().map(|row| rank.scope.clipped(*row)).map(|(a, b)| b - a).sum();
    let mut what = format!(
        "{} waits {} per step ({share:.1} % of the window) while {} fetches the next batch{}.",
        if is_host_only { "The model" } else { "The device" },
        time(rank.per_step(waited)),
        proofs.first().map_or("the host", |proof| &proof.name),
        if is_single { ", in the training process itself (num_workers=0)" } else { "" },
    );
    if 20 * waited < 19 * fetching {
        what += &format!(
            " Fetching takes {} per step: in the rest of it the device works, and decides how long \
             a step takes once fetching does not.",
            time(rank.per_step(fetching))
        );
    }
    let advice = if is_single {
        "Set num_workers and pin_memory=True on the DataLoader, so that batches are made while the \
         model trains; keep decoding out of the training process."
    } else {
        "Raise num_workers and prefetch_factor, set pin_memory and persistent_workers, and move \
         decoding and collation off the critical step."
    };
    let edits = vec![
        rank.edit(rank.whole(&rows), Action::Scale(0.0)),
        rank.edit(rows.clone(), Action::Unblock),
        rank.edit(following(rank, &rows), Action::CloseGap),
    ];
    let found = RuleFindings::new(what, advice)
        .number("idle_per_step_ns", rank.per_step(waited) as f64)
        .number("fetching_per_step_ns", rank.per_step(fetching) as f64)
        .number("idle_pct", share);
    Some(found.shown_by(proofs).saves(waited, edits))
}

/// What ran next on the thread of each row: a range that only names its time has no node, and its
/// time is the wait of what follows.
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
