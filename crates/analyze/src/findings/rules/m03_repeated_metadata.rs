//! Rule M03 finds lengths and splits that are exchanged again in every step although they never
//! change.

use std::collections::BTreeMap;

use super::m02_exposed_input::exchanges;
use crate::facts::calls::{Direction, is_synchronization};
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{bytes, time};

pub(super) const RULE: Rule = Rule {
    id: "M03",
    title: "metadata exchanged anew each step",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit("exchanges", 3.0, "minimum number of exchanges of input distribution per step"),
        limit(
            "bytes",
            65_536.0,
            "maximum size of the first exchange of a step, which must contain only metadata",
        ),
        limit("steps", 2.0, "minimum number of steps in which the first exchange is the same"),
    ],
    page: page!("M03"),
    detect: Detect::Rank(detect),
};

/// The first exchange of a step, and the wait of the host for its result.
struct MetadataExchange {
    row: u32,
    copy: u32,
    wait: Option<u32>,
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let mut steps: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for row in exchanges(rank) {
        let launched = rank.scope.links().call(row).map_or(rank.start(row), |c| rank.start(c));
        if let Some(step) = rank.step_at(launched) {
            steps.entry(step).or_default().push(row);
        }
    }
    steps.retain(|_, rows| rows.len() as f64 >= limits.value("exchanges"));
    let firsts: Vec<u32> = steps.values().filter_map(|rows| rows.first().copied()).collect();
    let slices = &rank.scope.trace.slices;
    let size = |row: u32| message_bytes(rank, row);
    let sizes: Option<Vec<u64>> = firsts.iter().map(|row| size(*row)).collect();
    let largest = sizes?.into_iter().max()?;
    let message = |row: &u32| {
        let one = slices.collective.get(*row)?;
        Some((one.elements_in, one.elements_out, one.splits_in, one.splits_out))
    };
    // Equal sizes in every step suggest that the metadata never changes. The values themselves are
    // not recorded.
    let is_same = firsts.windows(2).all(|pair| message(&pair[0]) == message(&pair[1]));
    let found: Vec<MetadataExchange> =
        firsts.iter().filter_map(|row| exchange(rank, *row)).collect();
    let is_metadata = largest as f64 <= limits.value("bytes") && found.len() == firsts.len();
    if !is_same || !is_metadata || (found.len() as f64) < limits.value("steps") {
        return None;
    }
    let waits: Vec<u32> = found.iter().filter_map(|one| one.wait).collect();
    let rows: Vec<u32> = found.iter().flat_map(|one| [one.row, one.copy]).collect();
    let lost = rank.total(&rows) + rank.total(&waits);
    let what = format!(
        "Each step first exchanges {} of lengths or splits, copies them to the host and waits: the \
         same in all {} steps, {} per step.",
        bytes(largest),
        found.len(),
        time(rank.per_step(lost))
    );
    let advice = "Reuse the last result while the batch size is unchanged, or compute the splits \
                  locally (fixed batch sizes, variable_batch_per_feature off).";
    let edits =
        vec![rank.edit(waits, Action::Unblock), rank.edit(rows.clone(), Action::Scale(0.0))];
    let found = RuleFindings::new(what, advice).number("bytes", largest as f64);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(lost, edits))
}

/// Returns an exchange if a copy to the host and a wait follow it before the next exchange.
fn exchange(rank: &RankFacts<'_>, row: u32) -> Option<MetadataExchange> {
    let end = rank.end(row);
    let follows = |copy: &&crate::facts::job::Copy| {
        copy.direction == Direction::ToHost && end <= rank.start(copy.row)
    };
    let copy = rank.copies().iter().find(follows)?;
    let from = rank.start(copy.call?);
    let first = rank.calls().partition_point(|call| rank.start(*call) < from);
    let nearby = rank.calls()[first..].iter().take(32);
    let wait = nearby.copied().find(|call| is_synchronization(rank.name(*call)));
    let is_waiting = copy.is_pageable || wait.is_some();
    is_waiting.then_some(MetadataExchange { row, copy: copy.row, wait: wait.or(copy.call) })
}

/// Returns the bytes of the larger side of a collective's message (input or output).
pub(super) fn message_bytes(rank: &RankFacts<'_>, row: u32) -> Option<u64> {
    let one = rank.scope.trace.slices.collective.get(row)?;
    let elements = one.elements_in.into_iter().chain(one.elements_out).max()?;
    let width = match rank.scope.trace.strings.get(one.dtype) {
        "Double" | "Long" => 8,
        "Float" | "Int" => 4,
        "Half" | "BFloat16" | "Short" => 2,
        "Byte" | "Char" | "Bool" | "Float8_e4m3fn" | "Float8_e5m2" => 1,
        _ => return None,
    };
    Some(elements * width)
}
