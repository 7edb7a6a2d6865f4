//! Rule C01 finds copies from or to pageable memory, which go through a bounce buffer and block the
//! host.

use crate::facts::calls::Direction;
use crate::facts::job::{Copy, RankFacts};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{agreeing, bytes, counted, time};

pub(super) const RULE: Rule = Rule {
    id: "C01",
    title: "copies of pageable memory",
    category: FindingCategory::Copy,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[
        limit("time_pct", 1.0, "minimum time of the copies or their calls, percent of the window"),
        limit("blocked_ns", 100_000.0, "a single call that blocks for this long is reported too"),
        limit("pinned_gb_per_s", 25.0, "assumed bandwidth of a copy from pinned memory, GB/s"),
    ],
    page: page!("C01"),
    detect: Detect::Rank(detect),
};

/// A call is an outlier if it is at least this many times as long as the next longest call. Only
/// windows of at least [`LONE_STEPS`] steps can have an outlier.
const LONE_TIMES: i64 = 4;
const LONE_STEPS: i64 = 3;
/// Host time that even a small asynchronous copy takes.
const CALL_NS: i64 = 10_000;

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let copies: Vec<&Copy> = rank.copies().iter().filter(|copy| copy.is_pageable).collect();
    let call_ns = |copy: &Copy| copy.call.map_or(0, |call| rank.duration(call));
    let time_ns: i64 = copies.iter().map(|copy| rank.duration(copy.row).max(call_ns(copy))).sum();
    let blocked = copies.iter().map(|copy| call_ns(copy)).max()?;
    let share = rank.share(time_ns);
    if share < limits.value("time_pct") && blocked < limits.ns("blocked_ns") {
        return None;
    }
    let pinned = limits.value("pinned_gb_per_s");
    let (lone, told) = lone_call(rank, &copies);
    let others = || copies.iter().filter(|copy| lone.is_none() || copy.call != lone);
    let lost = |copy: &&Copy| {
        let ideal = (copy.bytes as f64 / pinned) as i64;
        let on_device = (rank.duration(copy.row) - ideal).max(0);
        let on_host = (call_ns(copy) - CALL_NS).max(0);
        if copy.direction == Direction::ToHost { on_host } else { on_device.max(on_host) }
    };
    let lost: i64 = others().map(lost).sum();
    let queued: i64 = others().map(|copy| queued_ns(rank, copy)).sum();
    let moved: u64 = copies.iter().map(|copy| copy.bytes).sum();
    let device_ns: i64 = copies.iter().map(|copy| rank.duration(copy.row)).sum();
    let per_step = rank.count_per_step(copies.len());
    let mut what = format!(
        "{} per step {} pageable memory ({} in all at {:.1} GB/s); with {} \
         {} per step ({share:.1} % of the window), and one call blocks the host up to {}.",
        counted(per_step, "copy"),
        agreeing(per_step, "uses", "use"),
        bytes(moved),
        moved as f64 / device_ns.max(1) as f64,
        agreeing(per_step, "its calls it takes", "their calls they take"),
        time(rank.per_step(time_ns)),
        time(blocked)
    );
    if lone.is_some() {
        what += &format!(
            " The saving leaves out that one call with its copy: the next longest takes {}.",
            time(told)
        );
    }
    if rank.share(queued) >= limits.value("time_pct") {
        what += &format!(
            " For {} per step {} wait for work queued before their copies: pinned memory alone does \
             not end that; a copy that does not block does, for the host.",
            time(rank.per_step(queued)),
            if lone.is_some() { "the other calls" } else { "the calls" }
        );
    }
    let advice = "Allocate the host side pinned (pin_memory=True on the DataLoader, or a \
                  preallocated pinned tensor) and copy with non_blocking=True. For .tolist() and \
                  .cpu(), copy into a pinned tensor first and read it later.";
    let rows: Vec<u32> = copies.iter().map(|copy| copy.row).collect();
    let calls: Vec<u32> = others().filter_map(|copy| copy.call).collect();
    let ideal = (moved as f64 / pinned) / device_ns.max(1) as f64;
    // Pinned memory shortens the copy on the device, and a non-blocking copy frees the host.
    let edits = vec![
        rank.edit(others().map(|copy| copy.row).collect(), Action::Scale(ideal.min(1.0))),
        rank.edit(calls.clone(), Action::Unblock),
        rank.edit(calls, Action::ShortenTo(CALL_NS)),
    ];
    let found = RuleFindings::new(what, advice)
        .number("copies_per_step", rank.count_per_step(copies.len()))
        .number("time_per_step_ns", rank.per_step(time_ns) as f64)
        .number("blocked_max_ns", blocked as f64)
        .number("gb_per_s", moved as f64 / device_ns.max(1) as f64);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(lost, edits))
}

/// Returns the time that a copy's call waits for earlier work on the same stream.
fn queued_ns(rank: &RankFacts<'_>, copy: &Copy) -> i64 {
    let Some(call) = copy.call else { return 0 };
    let (start, end) = (rank.start(call), rank.end(call));
    let trace = rank.scope.trace;
    let at = rank.scope.device_rows.partition_point(|row| rank.start(*row) < rank.start(copy.row));
    let is_same =
        |row: &&u32| (trace.device(**row), trace.stream(**row)) == (copy.device, copy.stream);
    let before = rank.scope.device_rows[..at].iter().rev().find(is_same);
    before.map_or(0, |row| rank.end(*row).min(end).saturating_sub(start).max(0))
}

/// Returns a call that is far longer than all others, with the time of the next longest one. A mean
/// that includes such a call represents none of the steps.
fn lone_call(rank: &RankFacts<'_>, copies: &[&Copy]) -> (Option<u32>, i64) {
    let mut calls: Vec<(i64, u32)> = copies
        .iter()
        .filter_map(|copy| copy.call)
        .map(|call| (rank.duration(call), call))
        .collect();
    calls.sort_unstable_by_key(|(ns, call)| (std::cmp::Reverse(*ns), *call));
    match *calls.as_slice() {
        [(longest, call), (next, _), ..]
            if rank.step_count() >= LONE_STEPS && longest >= LONE_TIMES * next =>
        {
            (Some(call), next)
        }
        _ => (None, 0),
    }
}
