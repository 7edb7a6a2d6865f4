//! Rule H07 finds calls that allocate and free driver memory after set-up.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{counted, time};

pub(super) const RULE: Rule = Rule {
    id: "H07",
    title: "driver memory allocated or freed in every step",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[limit(
        "time_pct",
        0.5,
        "minimum time of the calls after the first step, percent of the window",
    )],
    page: page!("H07"),
    detect: Detect::Rank(detect),
};

const CALLS: [&str; 12] = [
    "cudaMalloc",
    "cudaMallocAsync",
    "cudaMallocManaged",
    "cudaFree",
    "cudaFreeAsync",
    "cuMemCreate",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemRelease",
    "hipMalloc",
    "hipMallocAsync",
    "hipFree",
];

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let calls = steady_calls(rank, &CALLS);
    let time_ns = rank.total(&calls);
    let share = rank.share(time_ns);
    if calls.is_empty() || share < limits.value("time_pct") {
        return None;
    }
    let what = format!(
        "The allocator calls the driver {} per step after the first one, {} per step ({share:.1} \
         % of the window); freeing waits for the device.",
        counted(rank.count_per_step(calls.len()), "time"),
        time(rank.per_step(time_ns))
    );
    let advice = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, avoid shapes that vary \
                  from step to step, do not call torch.cuda.empty_cache() in the loop, and leave \
                  the allocator some headroom.";
    let edits = vec![
        rank.edit(calls.clone(), Action::Unblock),
        rank.edit(calls.clone(), Action::Scale(0.0)),
    ];
    let found = RuleFindings::new(what, advice)
        .number("calls_per_step", rank.count_per_step(calls.len()))
        .number("time_per_step_ns", rank.per_step(time_ns) as f64);
    Some(found.shown_by(rank.collect_evidence(calls)).saves(time_ns, edits))
}

/// Returns the calls of some names in steps after the first, when set-up is over.
pub(super) fn steady_calls(rank: &RankFacts<'_>, names: &[&str]) -> Vec<u32> {
    let calls = rank.calls_named(|name| names.contains(&name));
    calls.into_iter().filter(|call| rank.is_steady(rank.start(*call))).collect()
}
