//! M04: many small collectives of one group.

use std::collections::BTreeMap;

use trace::store::StringId;

use super::finding::{Category, Confidence, Found};
use super::m01_exposed_communication::communication;
use super::m03_repeated_metadata::message_bytes;
use super::rule::{Detect, Limits, Rule, Side, limit, page};
use super::text::{bytes, each, time};
use crate::graph::edit::Action;
use crate::job::RankFacts;

pub(super) const RULE: Rule = Rule {
    id: "M04",
    title: "storm of small collectives",
    category: Category::Communication,
    side: Side::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit("collectives_per_step", 10.0, "fewest small ones per step in one group"),
        limit("bytes", 131_072.0, "a message below this is small"),
        limit("latency_ns", 20_000.0, "what one large collective takes beside its bytes"),
        limit("gb_per_s", 25.0, "what a large one reaches, GB/s"),
    ],
    page: page!("M04"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &Limits<'_>) -> Option<Found> {
    let mut groups: BTreeMap<(StringId, StringId), Vec<(u32, u64)>> = BTreeMap::new();
    for row in communication(rank) {
        let size = message_bytes(rank, row).filter(|size| (*size as f64) < limits.of("bytes"));
        let one = rank.scope.trace.slices.collective.get(row);
        if let Some((one, size)) = one.zip(size) {
            groups.entry((one.group, one.name)).or_default().push((row, size));
        }
    }
    let ((_, name), small) = groups.into_iter().max_by_key(|(_, small)| small.len())?;
    let per_step = rank.count_per_step(small.len());
    if per_step < limits.of("collectives_per_step") {
        return None;
    }
    let rows: Vec<u32> = small.iter().map(|(row, _)| *row).collect();
    let moved: u64 = small.iter().map(|(_, size)| size).sum();
    let steps = rank.step_count();
    let one_ns =
        limits.of("latency_ns") * steps as f64 + moved as f64 / limits.of("gb_per_s").max(1e-3);
    let taken = rank.total(&rows);
    let lost = (taken - one_ns as i64).max(0);
    let what = format!(
        "{} {} per step of {} on average take {} per step, most of it latency.",
        each(per_step),
        rank.scope.trace.strings.get(name),
        bytes(moved / small.len() as u64),
        time(rank.per_step(taken))
    );
    let advice = "Coalesce them: a larger bucket_cap_mb, one flat buffer, \
                  torch.distributed._coalescing_manager or all_reduce_coalesced.";
    let share = 1.0 - lost as f64 / taken.max(1) as f64;
    let edits = vec![rank.edit(rows.clone(), Action::Scale(share))];
    let found = Found::new(what, advice)
        .number("collectives_per_step", per_step)
        .number("bytes_mean", moved as f64 / small.len() as f64);
    Some(found.shown_by(rank.proofs(rows)).saves(lost, edits))
}
