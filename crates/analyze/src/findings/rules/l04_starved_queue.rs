//! Rule L04 finds launching threads that wait for the device although independent work could be
//! launched.

use crate::facts::calls::{Direction, direction, is_pageable, is_synchronization};
use crate::facts::interval;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "L04",
    title: "queue starved by a wait",
    category: FindingCategory::Launch,
    side: CureSide::Host,
    confidence: Confidence::Low,
    limits: &[
        limit("blocked_ns", 100_000.0, "minimum duration of the wait"),
        limit("launches", 10.0, "minimum number of later launches that belong to other regions"),
        limit("idle_pct", 1.0, "minimum idle time after the waits, percent of the window"),
    ],
    page: page!("L04"),
    detect: Detect::Rank(detect),
};

/// A wait of the host, with the idle time of the device that follows from it.
struct Wait {
    call: u32,
    idle_ns: i64,
    launches: usize,
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let waits = waits(rank, limits);
    let lost: i64 = waits.iter().map(|wait| wait.idle_ns).sum();
    let share = rank.share(lost);
    if waits.is_empty() || share < limits.value("idle_pct") {
        return None;
    }
    let rows: Vec<u32> = waits.iter().map(|wait| wait.call).collect();
    let owners = rows.iter().map(|call| rank.range_around(*call).unwrap_or(*call));
    let evidence =
        rank.collect_timed_evidence(owners.zip(rows.iter().map(|call| rank.duration(*call))));
    let launches = waits.iter().map(|wait| wait.launches).max().unwrap_or_default();
    let what = format!(
        "The launching thread waits {} per step for the device in {}, with up to {launches} \
         launches of other regions behind it; the device is idle {} per step afterwards ({share:.1} \
         % of the window).",
        time(rank.per_step(rank.total(&rows))),
        evidence.first().map_or("a call", |evidence| &evidence.name),
        time(rank.per_step(lost))
    );
    let advice = "Move the stage that waits (input distribution, metrics) to a thread and stream \
                  of its own, or launch the independent work before it.";
    let edits = vec![rank.edit(rows.clone(), Action::Unblock)];
    let found = RuleFindings::new(what, advice)
        .number("waits_per_step", rank.count_per_step(rows.len()))
        .number("blocked_per_step_ns", rank.per_step(rank.total(&rows)) as f64)
        .number("idle_per_step_ns", rank.per_step(lost) as f64);
    Some(found.shown_by(evidence).saves(lost, edits))
}

fn waits(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Vec<Wait> {
    let slices = &rank.scope.trace.slices;
    let blocked_ns = limits.ns("blocked_ns");
    let blocks = |call: &u32| {
        let copies = |row: &u32| {
            let name = rank.name(*row);
            direction(name) == Direction::ToHost && is_pageable(name)
        };
        rank.duration(*call) >= blocked_ns
            && (is_synchronization(rank.name(*call))
                || rank.scope.links().work(*call).iter().any(copies))
    };
    let blocking: Vec<u32> = rank.calls().iter().copied().filter(blocks).collect();
    let idle: Vec<_> = rank.gaps().iter().map(|gap| (gap.start_ns, gap.end_ns)).collect();
    let idle = interval::union(idle);
    let mut found = Vec::new();
    for (at, call) in blocking.iter().enumerate() {
        let track = slices.track[*call as usize];
        let same = |other: &&u32| slices.track[**other as usize] == track;
        // Launches after the next wait depend on that wait, so only those before it count.
        let until = blocking[at + 1..].iter().find(same).map(|other| rank.start(*other));
        let until = until.unwrap_or(rank.scope.window.end);
        let region = outermost(rank, *call);
        let is_other = |other: &&u32| {
            slices.track[**other as usize] == track
                && !rank.scope.links().work(**other).is_empty()
                // Launches of the same region may depend on the awaited result, so only other
                // regions count as independent.
                && outermost(rank, **other) != region
        };
        let from = rank.end(*call);
        let first = rank.calls().partition_point(|other| rank.start(*other) < from);
        let behind = rank.calls()[first..].iter().take_while(|other| rank.start(**other) < until);
        let launches = behind.filter(is_other).count();
        if (launches as f64) < limits.value("launches") {
            continue;
        }
        // Launching earlier can fill idle time only for as long as the call waited.
        let later = interval::length_within(&idle, (from, until));
        let idle_ns = later.min(rank.duration(*call));
        found.push(Wait { call: *call, idle_ns, launches });
    }
    found
}

/// Returns the outermost operator or annotation around a call, ignoring annotations of steps.
fn outermost(rank: &RankFacts<'_>, call: u32) -> Option<u32> {
    let is_step = |row: &u32| rank.name(*row).starts_with("ProfilerStep#");
    rank.tree().ancestors(call).filter(|row| !is_step(row)).last()
}
