//! Rule M10 finds communication on a stream that also computes, so that the two can never overlap.

use std::collections::{BTreeMap, BTreeSet};

use super::m01_exposed_communication::communication;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "M10",
    title: "communication on a compute stream",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[
        limit(
            "time_pct",
            1.0,
            "minimum time of communication on such streams, percent of the window",
        ),
        limit(
            "compute_pct",
            10.0,
            "share of all compute from which a stream counts as a compute stream, percent",
        ),
    ],
    page: page!("M10"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let stream = |row: u32| (rank.scope.trace.device(row), rank.scope.trace.stream(row));
    let mut compute: BTreeMap<(i32, i32), i64> = BTreeMap::new();
    for kernel in rank.compute_kernels() {
        *compute.entry(stream(kernel.row)).or_default() += kernel.duration;
    }
    // NCCL's own streams also run a few small kernels, which do not make them compute streams.
    let least = limits.value("compute_pct") / 100.0 * rank.compute_ns() as f64;
    let busy: BTreeSet<(i32, i32)> =
        compute.into_iter().filter(|(_, ns)| *ns as f64 >= least).map(|(one, _)| one).collect();
    // CPU runs of rowmill have a single thread pool instead of streams.
    let is_shared =
        |row: &u32| busy.contains(&stream(*row)) && !rank.name(*row).starts_with("rowmill_");
    let rows: Vec<u32> = communication(rank).filter(is_shared).collect();
    let time_ns = rank.total(&rows);
    let share = rank.share(time_ns);
    if rows.is_empty() || share < limits.value("time_pct") {
        return None;
    }
    let (_, number) = stream(rows[0]);
    let what = format!(
        "Communication of {} per step ({share:.1} % of the window) runs on stream {number}, which \
         computes too: neither can overlap the other.",
        time(rank.per_step(time_ns))
    );
    let advice = "Give it a stream of its own (async_op=True, a process group's own stream) and \
                  wait for its event where the result is needed.";
    let edits = vec![rank.edit(rows.clone(), Action::Overlap)];
    let found = RuleFindings::new(what, advice)
        .number("time_per_step_ns", rank.per_step(time_ns) as f64)
        .number("time_pct", share);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(time_ns, edits))
}
