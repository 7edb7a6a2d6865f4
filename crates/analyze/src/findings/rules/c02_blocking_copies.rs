//! Rule C02 finds copies and memsets whose calls wait until the work is done.

use crate::facts::calls::{self, Direction};
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{agreeing, counted, each, time};

pub(super) const RULE: Rule = Rule {
    id: "C02",
    title: "copies that block the host",
    category: FindingCategory::Copy,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[limit("calls_per_step", 1.0, "minimum number of blocking calls per step")],
    page: page!("C02"),
    detect: Detect::Rank(detect),
};

const CALLS: [&str; 14] = [
    "cudaMemcpy",
    "cudaMemcpy2D",
    "cudaMemcpy3D",
    "cudaMemcpyPeer",
    "cudaMemset",
    "cudaMemset2D",
    "cuMemcpy",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoD_v2",
    "hipMemcpy",
    "hipMemcpyWithStream",
    "hipMemcpyDtoH",
    "hipMemset",
];

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let all = rank.calls_named(|name| CALLS.contains(&name));
    // A host that reads a result on the host side must wait for the copy, whichever call it uses.
    let (reads, calls): (Vec<u32>, Vec<u32>) = all.into_iter().partition(|call| {
        let mut works = rank.scope.links().work(*call).iter();
        works.any(|work| calls::direction(rank.name(*work)) == Direction::ToHost)
    });
    let per_step = rank.count_per_step(calls.len());
    if calls.is_empty() || per_step < limits.value("calls_per_step") {
        return None;
    }
    let time_ns = rank.total(&calls);
    let mut what = format!(
        "{} per step {} the host {} per step.",
        counted(per_step, "copy or set"),
        agreeing(
            per_step,
            "uses a call that returns only when it is done; it blocks",
            "use calls that return only when they are done; they block"
        ),
        time(rank.per_step(time_ns))
    );
    if !reads.is_empty() {
        let reads_per_step = rank.count_per_step(reads.len());
        what += &format!(
            " {} more {}.",
            each(reads_per_step),
            agreeing(
                reads_per_step,
                "brings results to the host, which has to wait for it; it is not counted",
                "bring results to the host, which has to wait for them; they are not counted"
            )
        );
    }
    let advice = "Use the asynchronous calls on a stream: tensor.copy_(…, non_blocking=True) from \
                  pinned memory, cudaMemcpyAsync and cudaMemsetAsync in extensions.";
    let edits = vec![
        rank.edit(calls.clone(), Action::Unblock),
        rank.edit(calls.clone(), Action::ShortenTo(10_000)),
    ];
    let found = RuleFindings::new(what, advice)
        .number("calls_per_step", per_step)
        .number("blocked_per_step_ns", rank.per_step(time_ns) as f64);
    Some(found.shown_by(rank.collect_evidence(calls)).saves(time_ns, edits))
}
