//! Rule M11 finds host threads that block until a collective has finished.

use crate::facts::calls::is_synchronization;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{counted, time};

pub(super) const RULE: Rule = Rule {
    id: "M11",
    title: "host waits for communication",
    category: FindingCategory::Communication,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[
        limit("time_pct", 1.0, "minimum time blocked in waits, percent of the window"),
        limit("wait_ns", 100_000.0, "minimum duration of a wait without a recorded call"),
    ],
    page: page!("M11"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let is_wait = |name: &str| {
        let words = name.to_lowercase();
        let is_communication =
            ["awaitable", "c10d", "work", "all2all", "request", "dist", "nccl", "wait_tensor"]
                .iter()
                .any(|part| words.contains(part));
        words.contains("wait") && is_communication && !words.contains("dataloader")
    };
    let mut waits = Vec::new();
    let mut calls = Vec::new();
    for row in rank.outermost_named(is_wait) {
        let blocks = |inside: &&u32| {
            rank.scope.trace.kind(**inside).is_call() && is_synchronization(rank.name(**inside))
        };
        let inside: Vec<u32> = rank.tree().subtree(row).iter().filter(blocks).copied().collect();
        // A wait may block without a recorded call, so a long row without children counts too.
        let is_leaf = rank.tree().subtree(row).len() == 1;
        if !inside.is_empty() {
            waits.push((row, rank.total(&inside)));
            calls.extend(inside);
        } else if is_leaf && rank.duration(row) >= limits.ns("wait_ns") {
            waits.push((row, rank.duration(row)));
            calls.push(row);
        }
    }
    let blocked: i64 = waits.iter().map(|(_, ns)| ns).sum();
    let share = rank.share(blocked);
    if waits.is_empty() || share < limits.value("time_pct") {
        return None;
    }
    let what = format!(
        "The host is blocked {} per step ({share:.1} % of the window) in {}.",
        time(rank.per_step(blocked)),
        counted(rank.count_per_step(waits.len()), "wait for communication")
    );
    let advice = "Let the stream wait, not the host: work.wait() of NCCL without \
                  TORCH_NCCL_BLOCKING_WAIT, no .item() on a result, and the wait moved to where the \
                  result is used.";
    let edits =
        vec![rank.edit(calls.clone(), Action::Unblock), rank.edit(calls, Action::Scale(0.0))];
    let found = RuleFindings::new(what, advice)
        .number("waits_per_step", rank.count_per_step(waits.len()))
        .number("blocked_per_step_ns", rank.per_step(blocked) as f64);
    Some(found.shown_by(rank.collect_timed_evidence(waits)).saves(blocked, edits))
}
