//! Rule H06 finds calls within steps that wait for a whole device.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{counted, time};

pub(super) const RULE: Rule = Rule {
    id: "H06",
    title: "waits for the whole device",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[
        limit("waits_per_step", 1.0, "minimum number of waits per step"),
        limit(
            "end_pct",
            1.0,
            "waits in this last part of the window count as the profiler's own, percent of the window",
        ),
    ],
    page: page!("H06"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let window = &rank.scope.window;
    let last = window.end - (window.length() as f64 * limits.value("end_pct") / 100.0) as i64;
    let is_inside = |row: &u32| {
        let start = rank.start(*row);
        start < last && (window.steps.is_empty() || rank.step_at(start).is_some())
    };
    let names = ["cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize"];
    let waits: Vec<u32> =
        rank.calls_named(|name| names.contains(&name)).into_iter().filter(is_inside).collect();
    let per_step = rank.count_per_step(waits.len());
    if waits.is_empty() || per_step < limits.value("waits_per_step") {
        return None;
    }
    // After a synchronization of the whole device, the device is idle from the end of its work
    // until the next launch.
    let follows = |row: &u32| {
        let (start, end) = (rank.start(*row), rank.end(*row));
        let gap = rank.gap_at(end);
        gap.map_or(0, |gap| gap.end_ns - gap.start_ns.max(start))
    };
    let idle_ns: i64 = waits.iter().map(follows).sum();
    let what = format!(
        "The host waits for the whole device {} per step, {} in all, and the device is idle \
         {} per step until it is launched to again.",
        counted(per_step, "time"),
        time(rank.per_step(rank.total(&waits))),
        time(rank.per_step(idle_ns))
    );
    let advice = "Remove torch.cuda.synchronize() from the loop: time with CUDA events, read \
                  results a step later, let streams wait for events instead of the host.";
    let edits = vec![rank.edit(waits.clone(), Action::Unblock)];
    let found = RuleFindings::new(what, advice)
        .number("waits_per_step", per_step)
        .number("blocked_per_step_ns", rank.per_step(rank.total(&waits)) as f64)
        .number("idle_per_step_ns", rank.per_step(idle_ns) as f64);
    Some(found.shown_by(rank.collect_evidence(waits)).saves(idle_ns, edits))
}
