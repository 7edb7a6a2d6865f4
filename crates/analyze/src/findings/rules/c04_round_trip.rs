//! Rule C04 finds data that goes to the host and comes back to the device within a step.

use crate::facts::calls::Direction;
use crate::facts::job::{Copy, RankFacts};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{bytes, counted, time};

pub(super) const RULE: Rule = Rule {
    id: "C04",
    title: "round trip over the host",
    category: FindingCategory::Copy,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[
        limit(
            "bytes",
            4096.0,
            "minimum size of a copy; smaller ones often have equal sizes by chance",
        ),
        limit("trips_per_step", 1.0, "minimum number of round trips per step"),
    ],
    page: page!("C04"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let trips = trips(rank, limits.value("bytes") as u64);
    let per_step = rank.count_per_step(trips.len());
    if trips.is_empty() || per_step < limits.value("trips_per_step") {
        return None;
    }
    let copies: Vec<&Copy> = trips.iter().flat_map(|(out, back)| [*out, *back]).collect();
    let rows: Vec<u32> = copies.iter().map(|copy| copy.row).collect();
    let calls: Vec<u32> = copies.iter().filter_map(|copy| copy.call).collect();
    // The device cannot use the data from the start of the copy to the host until the end of the
    // copy back.
    let time_ns: i64 =
        trips.iter().map(|(out, back)| rank.end(back.row) - rank.start(out.row)).sum();
    let moved: u64 = trips.iter().map(|(out, _)| out.bytes).sum();
    let what = format!(
        "{} per step data of one size goes to the host and comes back ({} in all), {} per step \
         from leaving to return.",
        counted(per_step, "time"),
        bytes(moved),
        time(rank.per_step(time_ns))
    );
    let advice = "Keep it on the device: replace the NumPy or CPU operator in between by its \
                  device version, or move its result only.";
    let edits = vec![
        rank.edit(calls.clone(), Action::Unblock),
        rank.edit(calls, Action::Scale(0.0)),
        rank.edit(rows.clone(), Action::Scale(0.0)),
    ];
    let found = RuleFindings::new(what, advice)
        .number("trips_per_step", per_step)
        .number("bytes_per_step", moved as f64 / rank.step_count() as f64);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(time_ns, edits))
}

/// Maximum number of copies to the host that are kept as candidates for a round trip.
const WAITING: usize = 256;

/// Pairs each copy to the host with the next copy to the device of the same size, from the same
/// thread and step. Each copy to the device is paired only once.
fn trips<'a>(rank: &'a RankFacts<'_>, least: u64) -> Vec<(&'a Copy, &'a Copy)> {
    let track = |copy: &Copy| copy.call.map(|call| rank.scope.trace.slices.track[call as usize]);
    let step = |copy: &Copy| rank.step_at(rank.start(copy.call.unwrap_or(copy.row)));
    let mut waiting: Vec<&Copy> = Vec::new();
    let mut found = Vec::new();
    for copy in rank.copies().iter().filter(|copy| copy.bytes >= least) {
        match copy.direction {
            Direction::ToHost => {
                // The oldest copy is dropped, because its data is unlikely to return after so many
                // others.
                if waiting.len() == WAITING {
                    waiting.remove(0);
                }
                waiting.push(copy);
            }
            Direction::ToDevice => {
                let is_same = |out: &&Copy| {
                    out.bytes == copy.bytes
                        && track(out) == track(copy)
                        && step(out) == step(copy)
                        && rank.end(out.row) <= rank.start(copy.row)
                };
                if let Some(at) = waiting.iter().position(is_same) {
                    found.push((waiting.remove(at), copy));
                }
            }
            Direction::OnDevice | Direction::Other => {}
        }
    }
    found
}
