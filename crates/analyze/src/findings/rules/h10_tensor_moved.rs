//! Rule H10 finds tensors that are created on the host and then moved to the device.

use std::collections::BTreeSet;

use crate::facts::calls::Direction;
use crate::facts::interval;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{agreeing, counted, time};

pub(super) const RULE: Rule = Rule {
    id: "H10",
    title: "tensors made on the host and moved",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[limit("moves_per_step", 1.0, "minimum number of moved tensors per step")],
    page: page!("H10"),
    detect: Detect::Rank(detect),
};

/// Operators that fill a tensor with values.
const FILLS: [&str; 8] = [
    "aten::fill_",
    "aten::zero_",
    "aten::normal_",
    "aten::uniform_",
    "aten::random_",
    "aten::bernoulli_",
    "aten::arange",
    "aten::randperm",
];

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let fills = rank.names(|name| FILLS.contains(&name));
    let is_move = |row: u32| {
        let copies = rank.attribution().rows(rank.tree(), row);
        let to_device = |work: &u32| {
            let copy = rank.copies().binary_search_by_key(&(rank.start(*work), *work), |copy| {
                (rank.start(copy.row), copy.row)
            });
            copy.is_ok_and(|at| rank.copies()[at].direction == Direction::ToDevice)
        };
        copies.iter().any(to_device)
    };
    // Count only leaf operators without device work, because these fill a tensor on the host.
    let is_fill = |row: u32| {
        let leaf = rank.tree().subtree(row).last().copied().unwrap_or(row);
        rank.is_named(&fills, leaf) && rank.attribution().rows(rank.tree(), row).is_empty()
    };
    let mut pairs = Vec::new();
    for row in rank.outermost_named(|name| name == "aten::to" || name == "aten::_to_copy") {
        let before = before(rank, row).filter(|before| is_fill(*before));
        // The first move of a tensor in a job also initializes the device, so it does not count.
        let span = |before: &u32| (rank.start(*before), rank.end(row));
        let is_set_up = |before: &u32| interval::length_within(rank.set_up(), span(before)) > 0;
        let pair = before.filter(|before| is_move(row) && !is_set_up(before));
        pairs.extend(pair.map(|before| (before, row)));
    }
    let per_step = rank.count_per_step(pairs.len());
    // Tensors that are created only in the first step belong to set-up.
    let step = |(_, row): &(u32, u32)| rank.step_at(rank.start(*row));
    let steps: BTreeSet<Option<usize>> = pairs.iter().map(step).collect();
    let is_once = 2 * steps.len() as i64 <= rank.step_count() && rank.step_count() > 1;
    if pairs.is_empty() || per_step < limits.value("moves_per_step") || is_once {
        return None;
    }
    let time_ns: i64 = pairs.iter().map(|(a, b)| rank.duration(*a) + rank.duration(*b)).sum();
    let rows: Vec<u32> = pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let what = format!(
        "{} per step {} filled on the host and copied to the device at once, which takes \
         {} per step.",
        counted(per_step, "tensor"),
        agreeing(per_step, "is", "are"),
        time(rank.per_step(time_ns))
    );
    let advice = "Create them where they are used: torch.zeros(…, device=\"cuda\"), or torch.full, \
                  arange and rand with device=; reuse constants from step to step.";
    let moves: Vec<u32> = pairs.iter().map(|(_, row)| *row).collect();
    let calls = rank.whole(&moves);
    let edits =
        vec![rank.edit(calls, Action::Unblock), rank.edit(rank.whole(&rows), Action::Scale(0.2))];
    let found = RuleFindings::new(what, advice).number("moves_per_step", per_step);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(time_ns, edits))
}

/// Returns the row that ran directly before a given row under the same parent.
fn before(rank: &RankFacts<'_>, row: u32) -> Option<u32> {
    let place = rank.tree().position(row)?.checked_sub(1)?;
    let last = *rank.tree().nodes.get(place as usize)?;
    let parent = rank.tree().parent(row);
    let same_track = |other: &u32| {
        let track = &rank.scope.trace.slices.track;
        track[*other as usize] == track[row as usize]
    };
    let mut around = std::iter::once(last).chain(rank.tree().ancestors(last));
    around.find(|other| rank.tree().parent(*other) == parent).filter(same_track)
}
