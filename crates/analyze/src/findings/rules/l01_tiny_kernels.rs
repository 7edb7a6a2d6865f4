//! Rule L01 finds kernels that run for less time than the call that launches them, while the device
//! is idle.

use std::collections::BTreeMap;

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;
use trace::store::EventKind;

pub(super) const RULE: Rule = Rule {
    id: "L01",
    title: "storm of tiny kernels",
    category: FindingCategory::Launch,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[
        limit("launch_pct", 50.0, "minimum share of kernel launches that are tiny, percent"),
        limit("idle_pct", 10.0, "minimum idle time of the device, percent of the window"),
        limit("launches_per_step", 10.0, "minimum number of tiny launches per step"),
    ],
    page: page!("L01"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    // The idle time of the breakdown counts all of the window in which no device work runs.
    let idle_ns = rank.breakdown().idle_ns;
    let idle_pct = rank.share(idle_ns);
    if rank.breakdown().device_count == 0 || idle_pct < limits.value("idle_pct") {
        return None;
    }
    let streams = launches_by_stream(rank);
    let launch_count = streams.values().map(Vec::len).sum::<usize>();
    let tiny = tiny(rank, streams);
    let share = 100.0 * tiny.len() as f64 / launch_count.max(1) as f64;
    let per_step = rank.count_per_step(tiny.len());
    if share < limits.value("launch_pct") || per_step < limits.value("launches_per_step") {
        return None;
    }
    let calls: Vec<u32> = tiny.iter().map(|(launch, _)| launch.call).collect();
    let lost = tiny.iter().map(|(launch, period)| (period - rank.duration(launch.work)).max(0));
    let lost: i64 = lost.sum();
    // The time between some launches includes waits, but their median does not.
    let mut periods: Vec<i64> = tiny.iter().map(|(_, period)| *period).collect();
    let middle = periods.len().checked_sub(1)? / 2;
    let each = *periods.select_nth_unstable(middle).1;
    let owners = calls.iter().map(|call| rank.range_around(*call).unwrap_or(*call));
    let evidence = rank.collect_timed_evidence(owners.zip(tiny.iter().map(|(_, period)| *period)));
    let what = format!(
        "{per_step:.0} of {:.0} kernels per step ({share:.0} %) take less time than the call that \
         launches them, and nothing else waits on their stream then. Half of them are launched {} or \
         less behind the kernel before on the stream, and the device is idle {idle_pct:.0} % of the \
         window.",
        rank.count_per_step(launch_count),
        time(each)
    );
    let advice = "Launch less: fuse the operators (torch.compile, foreach and fused variants, a \
                  custom kernel), batch the loop, or replay the region as a CUDA graph.";
    let edits = vec![rank.edit(host_rows(rank, &calls), Action::Scale(0.0))];
    let found = RuleFindings::new(what, advice)
        .number("tiny_launches_per_step", per_step)
        .number("tiny_launch_pct", share)
        .number("launch_period_ns", each as f64)
        .number("idle_pct", idle_pct);
    Some(found.shown_by(evidence).saves(lost.min(idle_ns), edits))
}

/// A call that launched one kernel.
#[derive(Clone, Copy)]
struct KernelLaunch {
    call: u32,
    work: u32,
}

/// Returns the launches of single kernels in the window, by device and stream.
fn launches_by_stream(rank: &RankFacts<'_>) -> BTreeMap<(i32, i32), Vec<KernelLaunch>> {
    let (trace, links) = (rank.scope.trace, rank.scope.links());
    let mut streams: BTreeMap<(i32, i32), Vec<KernelLaunch>> = BTreeMap::new();
    for &work in &rank.scope.device_rows {
        let call = links.call(work).filter(|call| links.work(*call).len() == 1);
        if let Some(call) = call.filter(|_| trace.kind(work) == EventKind::Kernel) {
            let stream = (trace.device(work), trace.stream(work));
            streams.entry(stream).or_default().push(KernelLaunch { call, work });
        }
    }
    streams
}

/// Returns the launches of kernels that are shorter than their call while nothing else waits on
/// their stream, with the time since the previous launch on that stream. They are sorted by the
/// row of the kernel.
fn tiny(
    rank: &RankFacts<'_>,
    streams: BTreeMap<(i32, i32), Vec<KernelLaunch>>,
) -> Vec<(KernelLaunch, i64)> {
    let mut found = Vec::new();
    for mut launches in streams.into_values() {
        launches.sort_by_key(|launch| (rank.start(launch.call), launch.call));
        let mut before: Option<KernelLaunch> = None;
        for launch in launches {
            let start = rank.start(launch.call);
            let last = before.replace(launch);
            // If the previous work has already begun, this launch is alone in the queue.
            let is_alone = last.is_none_or(|last| rank.start(last.work) <= start);
            let call_ns = rank.duration(launch.call);
            if is_alone && rank.duration(launch.work) < call_ns {
                found.push((launch, last.map_or(call_ns, |last| start - rank.start(last.call))));
            }
        }
    }
    found.sort_by_key(|(launch, _)| launch.work);
    found
}

/// Returns the given calls and the operators around them.
pub(super) fn host_rows(rank: &RankFacts<'_>, calls: &[u32]) -> Vec<u32> {
    let is_operator = |row: &u32| rank.scope.trace.kind(*row) == EventKind::Operator;
    let mut rows = calls.to_vec();
    for call in calls {
        rows.extend(rank.tree().ancestors(*call).filter(is_operator));
    }
    rows
}
