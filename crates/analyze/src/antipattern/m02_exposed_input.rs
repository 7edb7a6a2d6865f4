//! M02: the exchange of the next batch's ids is visible instead of hidden under compute.

use super::finding::{Confidence, FindingCategory, RuleFindings};
use super::m01_exposed_communication::communication;
use super::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use super::text::{counted, time};
use crate::classify::WorkClass;
use crate::graph::edit::Action;
use crate::interval;
use crate::job::RankFacts;

pub(super) const RULE: Rule = Rule {
    id: "M02",
    title: "exposed input distribution",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit("exposed_pct", 1.0, "input exchange without compute, percent of the window")],
    page: page!("M02"),
    detect: Detect::Rank(detect),
};

/// Parts of the names of ranges in which TorchRec exchanges ids.
const INPUT: [&str; 8] = [
    "sparse_data_dist",
    "all2all_data",
    "input_dist",
    "KJTAllToAll",
    "KJTList",
    "SplitsAllToAll",
    "sdd_preprocess",
    "all2all_id",
];

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let rows = exchanges(rank);
    let compute = interval::union(rank.scope.spans(|_, class| class == WorkClass::Compute));
    let bare = |row: u32| {
        let span = rank.scope.clipped(row);
        span.1 - span.0 - interval::length_within(&compute, span)
    };
    let spans = interval::union(rows.iter().map(|row| rank.scope.clipped(*row)).collect());
    let exposed = interval::length(&interval::difference(&spans, &compute));
    let share = rank.share(exposed);
    if rows.is_empty() || share < limits.value("exposed_pct") {
        return None;
    }
    let what = format!(
        "The exchange of input ids runs {} per step without compute ({share:.1} % of the window), in \
         {} per step.",
        time(rank.per_step(exposed)),
        counted(rank.count_per_step(rows.len()), "collective")
    );
    let advice = "Exchange the next batch while this one is computed: TrainPipelineSparseDist, or \
                  start the input distribution earlier on a stream and thread of its own.";
    let proofs = rank.proofs_of(rows.iter().map(|row| (*row, bare(*row))));
    let edits = vec![rank.edit(rows.clone(), Action::Overlap)];
    let found = RuleFindings::new(what, advice)
        .number("collectives_per_step", rank.count_per_step(rows.len()))
        .number("exposed_per_step_ns", rank.per_step(exposed) as f64);
    Some(found.shown_by(proofs).saves(exposed, edits))
}

/// Collectives launched from input distribution, by start.
pub(super) fn exchanges(rank: &RankFacts<'_>) -> Vec<u32> {
    let input = rank.names(|name| INPUT.iter().any(|part| name.contains(part)));
    let is_input = |row: &u32| {
        let call = rank.scope.links().call(*row);
        call.is_some_and(|call| rank.is_within(&input, call))
    };
    communication(rank).filter(is_input).collect()
}
