//! Rule L03 finds regions that launch the same kernels in every step and are bound by the launches.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use trace::store::{EventKind, StringId};

use crate::facts::calls::{Direction, direction, is_synchronization};
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "L03",
    title: "region for a CUDA graph",
    category: FindingCategory::Launch,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[
        limit("same_pct", 90.0, "minimum share of runs with the same kernels and grids, percent"),
        limit("kernels", 20.0, "minimum number of kernels in the region"),
        limit("graph_launch_ns", 10_000.0, "assumed host time to launch a graph"),
        limit(
            "graph_node_ns",
            100.0,
            "assumed host time that each node adds to the launch of a graph",
        ),
    ],
    page: page!("L03"),
    detect: Detect::Rank(detect),
};

/// Minimum number of steps, because fewer may launch the same kernels by chance.
const STEPS_MIN: usize = 3;

/// All runs of one region, which is an annotation or an operator.
struct Region {
    rows: Vec<u32>,
    kernels: usize,
    host_ns: i64,
    device_ns: i64,
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    // A graph of the whole step saves more than graphs of its parts, so it is tried first.
    if let Some(found) = whole_step(rank, limits) {
        return Some(found);
    }
    let mut regions: Vec<Region> =
        candidates(rank).into_values().filter_map(|rows| region(rank, rows, limits)).collect();
    let gain = |region: &Region| {
        let graph =
            limits.value("graph_launch_ns") + limits.value("graph_node_ns") * region.kernels as f64;
        (region.host_ns - graph as i64 * region.rows.len() as i64).max(0)
    };
    regions.retain(|region| gain(region) > 0);
    let best = regions.iter().max_by_key(|region| (gain(region), region.rows.first()))?;
    let runs = best.rows.len() as i64;
    let what = format!(
        "{} launches the same {} kernels with the same grids each time; the host takes {} for it, \
         the device {}.",
        rank.name(best.rows[0]),
        best.kernels,
        time(best.host_ns / runs),
        time(best.device_ns / runs)
    );
    let advice = "Capture it with CUDA graphs (torch.cuda.graph, make_graphed_callables, or \
                  torch.compile(mode=\"reduce-overhead\")): dense MLPs with their all-reduce are \
                  good candidates; leave embeddings of changing sizes outside.";
    let share = gain(best) as f64 / best.host_ns.max(1) as f64;
    let edits = vec![rank.edit(rank.whole(&best.rows), Action::Scale(1.0 - share))];
    let found = RuleFindings::new(what, advice)
        .number("kernels", best.kernels as f64)
        .number("runs_per_step", rank.count_per_step(best.rows.len()))
        .number("host_ns", (best.host_ns / runs) as f64)
        .number("device_ns", (best.device_ns / runs) as f64);
    Some(found.shown_by(rank.collect_evidence(best.rows.iter().copied())).saves(gain(best), edits))
}

/// Returns all steps together as one candidate if each step launches the same work. If the whole
/// step is a candidate, no part of it needs a graph of its own. Copies to the device do not belong
/// to the candidate, because they can run before the graph.
fn whole_step(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let trace = rank.scope.trace;
    let steps = rank.scope.window.steps.len();
    let is_input = |row: u32| direction(rank.name(row)) == Direction::ToDevice;
    let mut calls: Vec<Vec<u32>> = vec![Vec::new(); steps];
    let mut works: Vec<Vec<u32>> = vec![Vec::new(); steps];
    for call in rank.calls() {
        // A single call outside all steps, or one that a graph cannot contain, rules out a graph of
        // the whole step.
        let at = rank.step_at(rank.start(*call)).filter(|_| !is_bad_call(rank, *call))?;
        let of_call = rank.scope.links().work(*call);
        if of_call.iter().any(|row| direction(rank.name(*row)) == Direction::ToHost) {
            return None;
        }
        calls[at].push(*call);
        works[at].extend(of_call.iter().filter(|row| !is_input(**row)));
    }
    let kernels = works.first()?.len();
    let mut hashes: BTreeMap<u64, usize> = BTreeMap::new();
    works.iter().for_each(|work| *hashes.entry(hash(rank, work)).or_default() += 1);
    let same = hashes.values().max().copied().unwrap_or_default();
    let is_same = 100.0 * same as f64 / steps as f64 >= limits.value("same_pct");
    if steps < STEPS_MIN || !is_same || (kernels as f64) < limits.value("kernels") {
        return None;
    }
    let launching = calls.iter().flatten().copied();
    let is_operator = |row: &u32| trace.kind(*row) == EventKind::Operator;
    let outermost = |call: u32| rank.tree().ancestors(call).filter(is_operator).last();
    let mut rows: Vec<u32> = launching.map(|call| outermost(call).unwrap_or(call)).collect();
    rows.sort_unstable();
    rows.dedup();
    let (host_ns, device_ns) = (rank.total(&rows), works.iter().map(|work| rank.total(work)).sum());
    let count = steps as f64;
    let graph = limits.value("graph_launch_ns") + limits.value("graph_node_ns") * kernels as f64;
    let gain = host_ns - (graph * count) as i64;
    // If the device takes longer than the host, launching faster does not shorten the step.
    if host_ns <= device_ns || gain <= 0 {
        return None;
    }
    let what = format!(
        "Each step launches the same {kernels} kernels, copies and sets with the same grids{}; the host \
         takes {} for the operators that launch them, the device {}.",
        if same == steps { String::new() } else { format!(", in {same} of {steps} steps") },
        time(rank.per_step(host_ns)),
        time(rank.per_step(device_ns))
    );
    let advice = "Capture the whole step, optimizer included, as one CUDA graph (torch.cuda.graph, or \
                  torch.compile(mode=\"reduce-overhead\")): keep its inputs in tensors that stay where \
                  they are, and copy each batch into them before the graph is replayed.";
    let share = gain as f64 / host_ns.max(1) as f64;
    let evidence = rank.collect_evidence(rows.iter().copied());
    let edits = vec![rank.edit(rank.whole(&rows), Action::Scale(1.0 - share))];
    let found = RuleFindings::new(what, advice)
        .about("step")
        .number("kernels", kernels as f64)
        .number("runs_per_step", 1.0)
        .number("host_ns", rank.per_step(host_ns) as f64)
        .number("device_ns", rank.per_step(device_ns) as f64);
    Some(found.shown_by(evidence).saves(gain, edits))
}

/// Returns annotations and outermost operators that run in several steps, by name.
fn candidates(rank: &RankFacts<'_>) -> BTreeMap<StringId, Vec<u32>> {
    let trace = rank.scope.trace;
    // Rule C06 removes the zeroing of gradients, so it does not need a graph.
    let others = rank.names(|name| name.starts_with("ProfilerStep#") || name.contains("zero_grad"));
    let mut named: BTreeMap<StringId, Vec<u32>> = BTreeMap::new();
    for row in &rank.tree().nodes {
        let is_outermost = trace.kind(*row) == EventKind::Operator
            && !rank.tree().ancestors(*row).any(|around| trace.kind(around) == EventKind::Operator);
        let is_range = trace.kind(*row) == EventKind::Annotation || is_outermost;
        if is_range && !rank.is_named(&others, *row) && rank.scope.starts_inside(*row) {
            named.entry(trace.slices.name[*row as usize]).or_default().push(*row);
        }
    }
    let steps = rank.step_count();
    named.retain(|_, rows| rows.len() > 1 && rows.len() as i64 >= steps);
    named
}

fn region(rank: &RankFacts<'_>, rows: Vec<u32>, limits: &RuleLimits<'_>) -> Option<Region> {
    let mut hashes: BTreeMap<u64, usize> = BTreeMap::new();
    let work = |row: &u32| rank.attribution().rows(rank.tree(), *row);
    let kernels = work(rows.first()?).len();
    if (kernels as f64) < limits.value("kernels") {
        return None;
    }
    for row in &rows {
        *hashes.entry(hash(rank, work(row))).or_default() += 1;
    }
    let same = hashes.values().max().copied().unwrap_or_default();
    let is_same = 100.0 * same as f64 / rows.len() as f64 >= limits.value("same_pct");
    if !is_same || rows.iter().any(|row| is_unfit(rank, *row)) {
        return None;
    }
    let host_ns = rank.total(&rows);
    let device_ns = rows.iter().map(|row| rank.total(work(row))).sum();
    (host_ns > device_ns).then_some(Region { rows, kernels, host_ns, device_ns })
}

/// Hashes the names, grids and sizes of device work, in launch order.
fn hash(rank: &RankFacts<'_>, work: &[u32]) -> u64 {
    let slices = &rank.scope.trace.slices;
    let mut hasher = DefaultHasher::new();
    for row in work {
        slices.name[*row as usize].hash(&mut hasher);
        slices.launch_shape.get(*row).map(|shape| shape.grid).hash(&mut hasher);
        slices.bytes.get(*row).hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns whether a graph cannot contain a row, which is true for waits of the host, copies to the
/// host, and existing graphs.
fn is_unfit(rank: &RankFacts<'_>, row: u32) -> bool {
    let is_bad = |row: &u32| rank.scope.trace.kind(*row).is_call() && is_bad_call(rank, *row);
    let copies_out = |row: &u32| direction(rank.name(*row)) == Direction::ToHost;
    rank.tree().subtree(row).iter().any(is_bad)
        || rank.attribution().rows(rank.tree(), row).iter().any(copies_out)
}

fn is_bad_call(rank: &RankFacts<'_>, call: u32) -> bool {
    let name = rank.name(call);
    is_synchronization(name) || name.contains("GraphLaunch")
}
