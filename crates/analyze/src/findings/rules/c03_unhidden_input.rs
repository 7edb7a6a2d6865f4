//! Rule C03 finds input that is copied to the device while nothing else runs there.

use std::collections::BTreeSet;

use crate::facts::calls::Direction;
use crate::facts::classify::WorkClass;
use crate::facts::interval;
use crate::facts::job::{Copy, RankFacts};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "C03",
    title: "input copies in the open",
    category: FindingCategory::Copy,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit(
        "exposed_pct",
        2.0,
        "minimum time of copies without compute or communication, percent of the window",
    )],
    page: page!("C03"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let working: BTreeSet<(i32, i32)> = rank
        .compute_kernels()
        .map(|kernel| (kernel.device, rank.scope.trace.stream(kernel.row)))
        .collect();
    let works = |class| matches!(class, WorkClass::Compute | WorkClass::Communication);
    let hidden = interval::union(rank.scope.spans(|_, class| works(class)));
    let bare = |copy: &Copy| {
        let span = rank.scope.clipped(copy.row);
        span.1 - span.0 - interval::length_within(&hidden, span)
    };
    // A copy on a stream of its own is exposed only if nothing else at all runs at the same time.
    let is_open = |copy: &&Copy| {
        let on_compute_stream = working.contains(&(copy.device, copy.stream));
        on_compute_stream || bare(copy) == rank.duration(copy.row)
    };
    let to_device = rank.copies().iter().filter(|copy| copy.direction == Direction::ToDevice);
    let open: Vec<&Copy> = to_device.filter(is_open).collect();
    let spans = interval::union(open.iter().map(|copy| rank.scope.clipped(copy.row)).collect());
    let exposed = interval::length(&interval::difference(&spans, &hidden));
    let share = rank.share(exposed);
    if share < limits.value("exposed_pct") {
        return None;
    }
    let what = format!(
        "Copies to the device run {} per step ({share:.1} % of the window) while it does nothing else.",
        time(rank.per_step(exposed))
    );
    let advice = "Copy the next batch on a side stream while this one is computed (a prefetching \
                  loader, pinned memory, non_blocking=True and an event to wait for).";
    let rows: Vec<u32> = open.iter().map(|copy| copy.row).collect();
    let evidence = rank.collect_timed_evidence(open.iter().map(|copy| (copy.row, bare(copy))));
    let edits = vec![rank.edit(rows, Action::Overlap)];
    let found = RuleFindings::new(what, advice)
        .number("exposed_per_step_ns", rank.per_step(exposed) as f64)
        .number("exposed_pct", share);
    Some(found.shown_by(evidence).saves(exposed, edits))
}
