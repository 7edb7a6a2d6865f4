//! Rule M02 finds exchanges of the next batch's ids that are exposed instead of hidden under
//! compute.

use super::m01_exposed_communication::communication;
use crate::facts::classify::WorkClass;
use crate::facts::interval;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{counted, time};

pub(super) const RULE: Rule = Rule {
    id: "M02",
    title: "exposed input distribution",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit(
        "exposed_pct",
        1.0,
        "minimum time of the input exchange without compute, percent of the window",
    )],
    page: page!("M02"),
    detect: Detect::Rank(detect),
};

/// Annotation of the forward pass in TorchRec's training loop.
const FORWARD: &str = "## forward ##";
const BACKWARD: &str = "## backward ##";

/// Parts of the names of the annotations in which TorchRec exchanges ids.
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
    // An exchange for the next batch is already pipelined, so the same advice would be useless.
    let ahead: i64 = ahead(rank, &rows).into_iter().map(bare).sum();
    let all: i64 = rows.iter().map(|row| bare(*row)).sum();
    let is_pipelined = 2 * ahead > all;
    let mut what = format!(
        "The exchange of input ids runs {} per step without compute ({share:.1} % of the window), in \
         {} per step.",
        time(rank.per_step(exposed)),
        counted(rank.count_per_step(rows.len()), "collective")
    );
    if is_pipelined {
        what += " It already belongs to the next batch, because it begins after the forward \
                 pass of this one.";
    }
    let advice = if is_pipelined {
        "The exchange is pipelined, so its exposed part counts in M01."
    } else {
        "Exchange the next batch while this one is computed: TrainPipelineSparseDist, or start the \
         input distribution earlier on a stream and thread of its own."
    };
    let evidence = rank.collect_timed_evidence(rows.iter().map(|row| (*row, bare(*row))));
    let edits = vec![rank.edit(rows.clone(), Action::Overlap)];
    let found = RuleFindings::new(what, advice)
        .number("collectives_per_step", rank.count_per_step(rows.len()))
        .number("exposed_per_step_ns", rank.per_step(exposed) as f64);
    let found = found.shown_by(evidence);
    Some(if is_pipelined { found } else { found.saves(exposed, edits) })
}

/// Returns the exchanges that were launched after the forward pass of their step, because those
/// belong to the next batch.
fn ahead(rank: &RankFacts<'_>, rows: &[u32]) -> Vec<u32> {
    let ranges = rank.outermost_named(|name| name == FORWARD || name == BACKWARD);
    let steps = &rank.scope.window.steps;
    // End of the forward pass of each training step, which is unknown for a step without a backward
    // pass.
    let forward_end = |at: usize| {
        let inside = |row: &&u32| rank.step_at(rank.start(**row)) == Some(at);
        let range = |name: &str| ranges.iter().filter(inside).find(|row| rank.name(**row) == name);
        range(BACKWARD).and(range(FORWARD)).map(|row| rank.end(*row))
    };
    let ends: Vec<Option<i64>> = (0..steps.len()).map(forward_end).collect();
    let is_ahead = |row: &u32| {
        let call = rank.scope.links().call(*row);
        let launched = call.map(|call| rank.start(call));
        let end = launched.and_then(|at| ends[rank.step_at(at)?]);
        launched.zip(end).is_some_and(|(launched, end)| end <= launched)
    };
    rows.iter().copied().filter(is_ahead).collect()
}

/// Returns the collectives that were launched inside input distribution, sorted by start.
pub(super) fn exchanges(rank: &RankFacts<'_>) -> Vec<u32> {
    let input = rank.names(|name| INPUT.iter().any(|part| name.contains(part)));
    let is_input = |row: &u32| {
        let call = rank.scope.links().call(*row);
        call.is_some_and(|call| rank.is_within(&input, call))
    };
    communication(rank).filter(is_input).collect()
}
