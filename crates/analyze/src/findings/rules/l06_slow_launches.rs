//! Rule L06 finds launches that take far longer than the other launches.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::{EventKind, StringId};

use crate::facts::distribution;
use crate::facts::interval;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{agreeing, counted, time};

pub(super) const RULE: Rule = Rule {
    id: "L06",
    title: "slow launches",
    category: FindingCategory::Launch,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[
        limit("call_ns", 50_000.0, "a longer launch is slow"),
        limit(
            "excess_pct",
            1.0,
            "minimum sum of the time of slow launches above that limit, percent of the window",
        ),
    ],
    page: page!("L06"),
    detect: Detect::Rank(detect),
};

/// Parts of the names of calls and profiler rows that may delay launches at the same time.
const HOLDS: [&str; 7] = [
    "cudaMalloc",
    "cudaFree",
    "cuMem",
    "ModuleLoad",
    "Module Loading",
    "LibraryLoad",
    "Lazy Function",
];

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let slowest = limits.ns("call_ns");
    let firsts = first_launches(rank);
    let launches: Vec<u32> = rank
        .calls_named(|name| name.contains("LaunchKernel"))
        .into_iter()
        // A launch into a full queue is long because it waits for the device, so it does not count.
        .filter(|call| rank.pressure().wait(*call).is_none())
        .filter(|call| !firsts.contains(call))
        .collect();
    let mut durations: Vec<i64> = launches.iter().map(|call| rank.duration(*call)).collect();
    durations.sort_unstable();
    let p99 = *durations.get((durations.len() * 99).div_ceil(100).checked_sub(1)?)?;
    let usual = distribution::integer_median(&mut durations)?;
    let slow: Vec<u32> =
        launches.into_iter().filter(|call| rank.duration(*call) > slowest).collect();
    let excess: i64 = slow.iter().map(|call| rank.duration(*call) - slowest).sum();
    let share = rank.share(excess);
    if p99 <= slowest || share < limits.value("excess_pct") {
        return None;
    }
    let holds = rank.names(|name| HOLDS.iter().any(|part| name.contains(part)));
    let trace = rank.scope.trace;
    let held = trace.rows().filter(|row| rank.is_named(&holds, *row));
    let held = interval::union(held.map(|row| rank.scope.clipped(row)).collect());
    let is_held = |call: &&u32| interval::length_within(&held, rank.scope.clipped(**call)) > 0;
    let held_up = slow.iter().filter(is_held).count();
    let what = format!(
        "{} of {} {} more than {} (99th percentile {}, median {}), {} in excess per \
         step; {held_up} coincide with memory calls of the driver or with code being loaded.",
        slow.len(),
        counted(durations.len() as f64, "launch"),
        agreeing(slow.len() as f64, "takes", "take"),
        time(slowest),
        time(p99),
        time(usual),
        time(rank.per_step(excess))
    );
    let advice = "Warm up before measuring (CUDA_MODULE_LOADING=EAGER loads code early), keep the \
                  allocator away from the driver (H07), and give the launching thread a core of \
                  its own.";
    let evidence = rank.collect_evidence(slow.iter().copied());
    let edits = vec![rank.edit(slow, Action::ShortenTo(usual))];
    let found = RuleFindings::new(what, advice)
        .number("p99_ns", p99 as f64)
        .number("p50_ns", usual as f64)
        .number("held_up", held_up as f64);
    Some(found.shown_by(evidence).saves(excess, edits))
}

/// Returns the first launch of each kernel in the trace. The first launch of a kernel loads the
/// kernel's code, which no later step repeats.
fn first_launches(rank: &RankFacts<'_>) -> BTreeSet<u32> {
    let trace = rank.scope.trace;
    let mut firsts: BTreeMap<StringId, (i64, u32)> = BTreeMap::new();
    for row in trace.rows().filter(|row| trace.kind(*row) == EventKind::Kernel) {
        if let Some(call) = rank.scope.links().call(row) {
            let launched = (rank.start(call), call);
            let first = firsts.entry(trace.slices.name[row as usize]).or_insert(launched);
            *first = launched.min(*first);
        }
    }
    firsts.into_values().map(|(_, call)| call).collect()
}
