//! L08: the device idles although its next work was launched long before.

use std::collections::BTreeMap;

use super::finding::{Confidence, FindingCategory, RuleFindings, Severity, severity_of};
use super::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use super::text::{counted, time};
use crate::graph::edit::Action;
use crate::idle::{DeviceCause, Gap};
use crate::job::RankFacts;
use crate::kernels::short_name;

pub(super) const RULE: Rule = Rule {
    id: "L08",
    title: "idle with work queued",
    category: FindingCategory::Launch,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[
        limit("idle_pct", 5.0, "all such gaps, percent of the window"),
        limit("start_ns", 1_000_000.0, "a gap so near the start may hold work from before it"),
    ],
    page: page!("L08"),
    detect: Detect::Rank(detect),
};

const WAITS: &str = "Faster launches do not help: find what holds the queued work back. Look for waits \
                     on events of other streams and on other ranks, copies that block, memory that \
                     is freed or mapped, and work of another process on the device.";
const RECORD: &str = "Record a step once without graphs, or with a newer profiler: kernels that appear \
                      there in these gaps were left out here, and the device does not idle. If none \
                      do, find what holds the queued work back: waits on events of other streams \
                      and on other ranks, and work of another process on the device.";

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let is_stall = |gap: &&Gap| gap.cause == DeviceCause::Dependency;
    // Directly behind the start of a recording, work from before it may run, which has no row.
    let window = &rank.scope.window;
    let is_unknown =
        |gap: &&Gap| window.steps.is_empty() && gap.start_ns - window.start < limits.ns("start_ns");
    let (unknown, gaps): (Vec<&Gap>, Vec<&Gap>) =
        rank.gaps().iter().filter(is_stall).partition(is_unknown);
    let devices = i64::from(rank.breakdown().device_count).max(1);
    let idle_ns = gaps.iter().map(|gap| gap.idle_ns).sum::<i64>() / devices;
    let share = rank.share(idle_ns);
    if gaps.is_empty() || share < limits.value("idle_pct") {
        return None;
    }
    let ending = || gaps.iter().filter_map(|gap| Some((gap.ending_row?, gap.idle_ns)));
    let mut named: BTreeMap<&str, i64> = BTreeMap::new();
    for (row, idle) in ending() {
        let name = short_name(rank.name(row));
        *named.entry(name).or_default() += idle / devices;
    }
    let mut named: Vec<(&str, i64)> = named.into_iter().collect();
    named.sort_by_key(|(_, idle)| std::cmp::Reverse(*idle));
    let first: Vec<String> = named
        .iter()
        .take(3)
        .map(|(name, idle)| format!("{name} ({})", time(rank.per_step(*idle))))
        .collect();
    let is_of_graph = |gap: &&&Gap| gap.ending_row.is_some_and(|row| rank.is_of_graph(row));
    let in_graphs_ns =
        gaps.iter().filter(is_of_graph).map(|gap| gap.idle_ns).sum::<i64>() / devices;
    let is_doubtful = 2 * in_graphs_ns > idle_ns;
    let mut what = format!(
        "{} {} per step ({share:.1} % of the window) in {} although its next work was launched \
         before: most of it before {}.",
        if is_doubtful { "No work of the device was recorded for" } else { "The device idles" },
        time(rank.per_step(idle_ns)),
        counted(rank.count_per_step(gaps.len()), "gap"),
        first.join(", ")
    );
    let left_out: i64 = unknown.iter().map(|gap| gap.idle_ns).sum();
    if left_out > 0 {
        what += &format!(
            " Another {} directly behind the start of the recording are left out: work launched \
             before it, which no recording shows, may have run then.",
            time(left_out)
        );
    }
    if is_doubtful {
        what += &doubt(rank, in_graphs_ns, share);
    }
    let rows: Vec<u32> = ending().map(|(row, _)| row).collect();
    let proofs = rank.proofs_of(ending());
    let found = RuleFindings::new(what, if is_doubtful { RECORD } else { WAITS })
        .number("gaps_per_step", rank.count_per_step(gaps.len()))
        .number("idle_per_step_ns", rank.per_step(idle_ns) as f64)
        .about(named.first().map_or("", |(name, _)| name));
    let found = found.shown_by(proofs);
    // So much of the window is not understood, whatever could be saved of it.
    if is_doubtful {
        return Some(found.sure(Confidence::Low).at_least(severity_of(share)));
    }
    Some(found.saves(idle_ns, vec![rank.edit(rows, Action::CloseGap)]))
}

/// Why what looks idle may not be.
fn doubt(rank: &RankFacts<'_>, in_graphs_ns: i64, share: f64) -> String {
    let ranked = match severity_of(share) {
        Severity::Critical | Severity::High => {
            " It is ranked by how much of the window nothing explains: what could be saved of it, \
             this recording cannot say."
        }
        Severity::Medium | Severity::Info => "",
    };
    format!(
        " {} of it end with work of a graph, of which the profiler may have recorded only a part: {}.\
         {ranked}",
        time(rank.per_step(in_graphs_ns)),
        seen_of_graphs(rank)
    )
}

/// What the launches of graphs recorded, compared from step to step.
fn seen_of_graphs(rank: &RankFacts<'_>) -> String {
    let links = rank.scope.links();
    let steps = &rank.scope.window.steps;
    let mut works: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    let is_graph = |row: &&u32| rank.name(**row).contains("GraphLaunch");
    for call in rank.calls().iter().filter(is_graph) {
        if let Some(at) = rank.step_at(rank.start(*call)) {
            works[at].push(links.work(*call).len());
        }
    }
    let same = works.first().filter(|first| works.len() > 1 && works.iter().all(|of| of == *first));
    let unlike = (0..works.iter().map(Vec::len).max().unwrap_or(0))
        .filter(|at| works.iter().any(|of| of.get(*at) != works[0].get(*at)))
        .count();
    match same {
        Some(counts) if !counts.is_empty() => format!(
            "each of the {} launches of graphs in a step recorded as much work in all {} steps, so \
             that what is missing, if anything, is missing every time",
            counts.len(),
            steps.len()
        ),
        None if works.len() > 1 && unlike > 0 => format!(
            "{unlike} of the launches of graphs in a step recorded more work in one step than in \
             another"
        ),
        _ => "only one step was recorded, with which nothing can be compared".to_owned(),
    }
}
