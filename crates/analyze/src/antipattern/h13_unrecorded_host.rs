//! H13: on a recording without a device, each step spends long in code that is no operator. Knows
//! nothing of what that code does: the profiler saw no operator and no span there.

use std::collections::BTreeMap;

use super::finding::{Confidence, FindingCategory, RuleFindings};
use super::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use super::text::time;
use crate::graph::edit::Action;
use crate::interval::Interval;
use crate::job::RankFacts;
use crate::tree;

pub(super) const RULE: Rule = Rule {
    id: "H13",
    title: "host code outside operators",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[
        limit("time_pct", 5.0, "such time before the same operator, percent of the window"),
        limit("steps_pct", 75.0, "steps that have it, percent"),
        limit("stretch_ns", 100_000.0, "shortest stretch that counts, ns"),
    ],
    page: page!("H13"),
    detect: Detect::Rank(detect),
};

/// Fewest steps that show a habit.
const STEPS_MIN: i64 = 3;

/// A stretch of a step without operators, and the row that ended it.
struct SilentStretch {
    step: usize,
    span: Interval,
    ended_by: u32,
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    // With a device, its idle time says what the host's code costs: H01 to H03.
    if !rank.is_host_only() || rank.step_count() < STEPS_MIN {
        return None;
    }
    let mut by_name: BTreeMap<&str, Vec<SilentStretch>> = BTreeMap::new();
    for stretch in stretches(rank, limits.ns("stretch_ns")) {
        by_name.entry(rank.name(stretch.ended_by)).or_default().push(stretch);
    }
    let total =
        |found: &[SilentStretch]| found.iter().map(|one| one.span.1 - one.span.0).sum::<i64>();
    let (name, found) = by_name.into_iter().max_by_key(|(_, found)| total(found))?;
    let mut steps: Vec<usize> = found.iter().map(|one| one.step).collect();
    steps.dedup();
    let is_in_most = 100 * steps.len() as i64 >= limits.ns("steps_pct") * rank.step_count();
    let (lost, share) = (total(&found), rank.share(total(&found)));
    if !is_in_most || share < limits.value("time_pct") {
        return None;
    }
    let what = format!(
        "Each step spends {} ({share:.1} % of the window) in code that is no PyTorch operator, before \
         {name}.",
        time(rank.per_step(lost))
    );
    let advice = "Record with with_stack=True to see the lines. If it prepares data, write it with \
                  whole tensors, move it to a DataLoader worker, or prepare the next batch while this \
                  one trains.";
    let rows: Vec<u32> = found.iter().map(|one| one.ended_by).collect();
    let spans = found.iter().map(|one| (one.ended_by, one.span.1 - one.span.0));
    let proofs = rank.proofs_of(spans);
    let edits = vec![rank.edit(rows, Action::CloseGap)];
    let found = RuleFindings::new(what, advice)
        .number("time_per_step_ns", rank.per_step(lost) as f64)
        .number("time_pct", share);
    Some(found.shown_by(proofs).saves(lost, edits))
}

/// The stretches of steps in which no thread ran an operator or a call.
fn stretches(rank: &RankFacts<'_>, least_ns: i64) -> Vec<SilentStretch> {
    let trace = rank.scope.trace;
    let mut rows = rank.tree().top_rows(trace);
    rows.retain(|row| !tree::is_label(trace, *row));
    rows.sort_by_key(|row| (rank.start(*row), *row));
    let mut found = Vec::new();
    let mut behind = i64::MIN;
    for row in rows {
        let start = rank.start(row);
        if let Some(step) = rank.step_at(start) {
            let from = behind.max(rank.scope.window.steps[step].start);
            if start - from >= least_ns {
                found.push(SilentStretch { step, span: (from, start), ended_by: row });
            }
        }
        behind = behind.max(rank.end(row));
    }
    found
}
