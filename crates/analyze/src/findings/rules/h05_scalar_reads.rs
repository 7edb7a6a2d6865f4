//! Rule H05 finds scalars that are read from the device, which makes the host wait for all earlier
//! work.

use crate::facts::calls::{Direction, is_synchronization};
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{agreeing, counted, time};

pub(super) const RULE: Rule = Rule {
    id: "H05",
    title: "scalars read from the device",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[
        limit("reads_per_step", 1.0, "minimum number of reads per step"),
        limit(
            "blocked_pct",
            1.0,
            "minimum time for which the reads block the host, percent of the window",
        ),
    ],
    page: page!("H05"),
    detect: Detect::Rank(detect),
};

const READS: [&str; 5] =
    ["aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"];

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let mut reads = Vec::new();
    let mut blocking = Vec::new();
    let mut to_host: Vec<u32> = rank
        .copies()
        .iter()
        .filter(|copy| copy.direction == Direction::ToHost)
        .filter_map(|copy| copy.call)
        .collect();
    to_host.sort_unstable();
    for read in rank.outermost_named(|name| READS.contains(&name)) {
        // Reading a scalar from a tensor on the host does not wait for a device.
        let blocks = |row: &&u32| {
            let is_call = rank.scope.trace.kind(**row).is_call();
            is_call && (to_host.binary_search(row).is_ok() || is_synchronization(rank.name(**row)))
        };
        let calls: Vec<u32> = rank.tree().subtree(read).iter().filter(blocks).copied().collect();
        if !calls.is_empty() {
            reads.push((read, rank.total(&calls)));
            blocking.extend(calls);
        }
    }
    let blocked: i64 = reads.iter().map(|(_, ns)| ns).sum();
    let per_step = rank.count_per_step(reads.len());
    let share = rank.share(blocked);
    if per_step < limits.value("reads_per_step") || share < limits.value("blocked_pct") {
        return None;
    }
    let what = format!(
        "{} per step {} read from the device; the host is blocked {} per step ({share:.1} \
         % of the window) until all work before each has ended.",
        counted(per_step, "scalar"),
        agreeing(per_step, "is", "are"),
        time(rank.per_step(blocked))
    );
    let advice = "Accumulate on the device and read every k steps; copy into pinned memory with \
                  non_blocking=True and read it a step later; avoid nonzero and boolean masks \
                  where a mask of fixed size does.";
    let edits = vec![rank.edit(blocking, Action::Unblock)];
    let found = RuleFindings::new(what, advice)
        .number("reads_per_step", per_step)
        .number("blocked_per_step_ns", rank.per_step(blocked) as f64);
    Some(found.shown_by(rank.collect_timed_evidence(reads)).saves(blocked, edits))
}
