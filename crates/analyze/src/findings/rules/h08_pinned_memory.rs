//! Rule H08 finds pinned memory that is allocated inside the training loop.

use super::h07_driver_memory::steady_calls;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{agreeing, counted, time};

pub(super) const RULE: Rule = Rule {
    id: "H08",
    title: "pinned memory allocated in the loop",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[limit("calls_per_step", 1.0, "minimum number of calls per step after the first one")],
    page: page!("H08"),
    detect: Detect::Rank(detect),
};

const CALLS: [&str; 6] = [
    "cudaHostAlloc",
    "cudaMallocHost",
    "cudaHostRegister",
    "hipHostMalloc",
    "hipHostRegister",
    "cuMemHostAlloc",
];

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let calls = steady_calls(rank, &CALLS);
    let steady = (rank.step_count() - 1).max(1);
    let per_step = calls.len() as f64 / steady as f64;
    if calls.is_empty() || per_step < limits.value("calls_per_step") {
        return None;
    }
    let time_ns = rank.total(&calls);
    let what = format!(
        "{} {} allocated per step, which takes the host {} per step.",
        counted(per_step, "block of pinned memory"),
        agreeing(per_step, "is", "are"),
        time(time_ns / steady)
    );
    let advice = "Allocate pinned buffers once and reuse them; let the DataLoader pin \
                  (pin_memory=True) rather than calling .pin_memory() on every tensor.";
    let edits = vec![rank.edit(calls.clone(), Action::Scale(0.0))];
    let found = RuleFindings::new(what, advice).number("calls_per_step", per_step);
    Some(found.shown_by(rank.collect_evidence(calls)).saves(time_ns, edits))
}
