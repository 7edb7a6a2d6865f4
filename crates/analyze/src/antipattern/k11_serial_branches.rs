//! K11: branches of a model run one after the other, though each alone leaves the device empty.

use std::collections::BTreeMap;

use super::finding::{Confidence, FindingCategory, RuleFindings};
use super::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use super::text::time;
use crate::graph::edit::Action;
use crate::job::{RankFacts, WindowKernel};

pub(super) const RULE: Rule = Rule {
    id: "K11",
    title: "independent branches in sequence",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::Low,
    limits: &[
        limit("branches", 4.0, "fewest modules of one kind side by side"),
        limit("blocks_per_sm", 1.0, "each of their kernels has fewer blocks"),
        limit("time_pct", 1.0, "what runs behind the longest branch, percent of the window"),
    ],
    page: page!("K11"),
    detect: Detect::Rank(detect),
};

const MODULE: &str = "nn.Module: ";
/// Parts of the names of modules whose parts follow on each other.
const CHAINS: [&str; 6] = ["Sequential", "Encoder", "Decoder", "Stack", "Chain", "MLP"];

/// Modules of one kind in one run of their parent, and the kernels of each.
struct Branches {
    modules: Vec<u32>,
    kernels: Vec<Vec<u32>>,
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    if rank.python().nodes.is_empty() {
        return None;
    }
    let groups: Vec<Branches> = branches(rank, limits);
    let lost = |group: &Branches| {
        let each: Vec<i64> = group.kernels.iter().map(|rows| rank.total(rows)).collect();
        each.iter().sum::<i64>() - each.iter().max().copied().unwrap_or_default()
    };
    let high: i64 = groups.iter().map(lost).sum();
    let share = rank.share(high);
    let largest = groups.iter().max_by_key(|group| (lost(group), group.modules.first()))?;
    if share < limits.value("time_pct") {
        return None;
    }
    let what = format!(
        "{} modules such as {} run one after the other on one stream, and no kernel of theirs fills \
         the device: {} per step behind the longest of them ({share:.1} % of the window).",
        largest.modules.len(),
        rank.name(largest.modules[0]).trim_start_matches(MODULE),
        time(rank.per_step(high))
    );
    let advice = "If they do not depend on each other, run them on several streams, batch them into \
                  one operator (bmm, vmap, grouped kernels), or capture them as branches of a CUDA \
                  graph.";
    // All but the longest of each group.
    let hidden = |group: &Branches| {
        let longest = (0..group.kernels.len()).max_by_key(|at| rank.total(&group.kernels[*at]));
        let others = group.kernels.iter().enumerate().filter(|(at, _)| Some(*at) != longest);
        others.flat_map(|(_, rows)| rows.clone()).collect::<Vec<u32>>()
    };
    let rows: Vec<u32> = groups.iter().flat_map(hidden).collect();
    let edits = vec![rank.edit(rows.clone(), Action::Overlap)];
    let found = RuleFindings::new(what, advice)
        .about(kind(rank.name(largest.modules[0])))
        .number("branches_max", largest.modules.len() as f64);
    Some(found.shown_by(rank.proofs(rows)).saves(high, edits))
}

fn branches(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Vec<Branches> {
    let python = rank.python();
    let modules = rank.names(|name| name.starts_with(MODULE));
    let module_above =
        |row: u32| python.ancestors(row).find(|around| rank.is_named(&modules, *around));
    // Modules by the run of their parent and their kind.
    let mut sides: BTreeMap<(u32, &str), Vec<u32>> = BTreeMap::new();
    for row in python.nodes.iter().filter(|row| rank.is_named(&modules, **row)) {
        let parent = module_above(*row);
        let is_chain = |parent: &u32| CHAINS.iter().any(|part| rank.name(*parent).contains(part));
        if let Some(parent) = parent.filter(|parent| !is_chain(parent)) {
            sides.entry((parent, kind(rank.name(*row)))).or_default().push(*row);
        }
    }
    sides.retain(|_, modules| modules.len() as f64 >= limits.value("branches"));
    // The nearest module of each kernel, and those around it.
    let mut kernels: BTreeMap<u32, Vec<&WindowKernel>> = BTreeMap::new();
    for kernel in rank.compute_kernels() {
        let Some(call) = rank.scope.links().call(kernel.row) else { continue };
        let track = rank.scope.trace.slices.track[call as usize];
        let Some(frame) = python.deepest_at(track, rank.start(call)) else { continue };
        let around = std::iter::once(frame).chain(python.ancestors(frame));
        for module in around.filter(|row| rank.is_named(&modules, *row)) {
            kernels.entry(module).or_default().push(kernel);
        }
    }
    let is_small = |kernel: &&WindowKernel| {
        kernel.blocks_per_sm().is_some_and(|blocks| blocks < limits.value("blocks_per_sm"))
    };
    let group = |modules: Vec<u32>| {
        let of = |module: &u32| kernels.get(module).map_or(&[][..], Vec::as_slice);
        let streams: Vec<i32> =
            modules.iter().flat_map(of).map(|kernel| rank.scope.trace.stream(kernel.row)).collect();
        let is_one = streams.windows(2).all(|pair| pair[0] == pair[1]);
        let all_small = modules.iter().all(|m| !of(m).is_empty() && of(m).iter().all(is_small));
        let rows = |module: &u32| of(module).iter().map(|kernel| kernel.row).collect();
        let kernels = modules.iter().map(rows).collect();
        (is_one && all_small).then_some(Branches { modules, kernels })
    };
    sides.into_values().filter_map(group).collect()
}

/// `nn.Module: Tower_3` without its number.
fn kind(name: &str) -> &str {
    name.rsplit_once('_').map_or(name, |(kind, _)| kind)
}
