//! Rule M04 finds many small collectives of one process group that could be merged.

use std::collections::BTreeMap;

use trace::store::StringId;

use super::m01_exposed_communication::communication;
use super::m03_repeated_metadata::message_bytes;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::kernels::short_name;
use crate::text::{agreeing, bytes, each, time};

pub(super) const RULE: Rule = Rule {
    id: "M04",
    title: "storm of small collectives",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit(
            "collectives_per_step",
            10.0,
            "minimum number of small collectives per step in one group",
        ),
        limit("bytes", 131_072.0, "maximum size of a small message"),
        limit("small_ns", 50_000.0, "maximum duration of a small collective whose size is unknown"),
        limit("latency_ns", 20_000.0, "assumed latency of one large collective"),
        limit("gb_per_s", 25.0, "assumed bandwidth of one large collective, GB/s"),
    ],
    page: page!("M04"),
    detect: Detect::Rank(detect),
};

/// Key by which collectives can be merged: process group and operation, or stream and kernel name
/// if no arguments were recorded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kin {
    Recorded(StringId, StringId),
    Alike(i32, StringId),
}

/// A small collective as (row, bytes of its message if known).
type Small = (u32, Option<u64>);

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let mut groups: BTreeMap<Kin, Vec<Small>> = BTreeMap::new();
    for row in communication(rank) {
        let size = message_bytes(rank, row);
        // Waiting for other ranks does not show whether a message is small, so it does not count.
        let transfer_ns = rank.duration(row) - rank.waited(row);
        let is_small = match size {
            Some(size) => (size as f64) < limits.value("bytes"),
            None => transfer_ns < limits.ns("small_ns"),
        };
        if is_small {
            groups.entry(kin(rank, row)).or_default().push((row, size));
        }
    }
    let (kin, small) = groups.into_iter().max_by_key(|(_, small)| small.len())?;
    let per_step = rank.count_per_step(small.len());
    if per_step < limits.value("collectives_per_step") {
        return None;
    }
    let rows: Vec<u32> = small.iter().map(|(row, _)| *row).collect();
    let total_ns = rank.total(&rows);
    let lost = (total_ns - merged_ns(rank, &small, limits)).max(0);
    let moved: u64 = small.iter().filter_map(|(_, size)| *size).sum();
    let unknown = small.iter().filter(|(_, size)| size.is_none()).count();
    let name = match kin {
        Kin::Recorded(_, name) => rank.scope.trace.strings.get(name),
        Kin::Alike(_, name) => short_name(rank.scope.trace.strings.get(name)),
    };
    let sizes = match small.len() - unknown {
        0 => format!(
            "of unknown size, counted because each takes less than {},",
            time(limits.ns("small_ns"))
        ),
        known => format!("of {} on average", bytes(moved / known as u64)),
    };
    let what = format!(
        "{} {name} per step {sizes} {} {} per step, most of it latency.",
        each(per_step),
        agreeing(per_step, "takes", "take"),
        time(rank.per_step(total_ns))
    );
    let advice = "Coalesce them: a larger bucket_cap_mb, one flat buffer, \
                  torch.distributed._coalescing_manager or all_reduce_coalesced.";
    let share = 1.0 - lost as f64 / total_ns.max(1) as f64;
    let edits = vec![rank.edit(rows.clone(), Action::Scale(share))];
    let found = RuleFindings::new(what, advice)
        .number("collectives_per_step", per_step)
        .number("unknown_sizes_per_step", rank.count_per_step(unknown))
        .number("bytes_mean", moved as f64 / (small.len() - unknown).max(1) as f64);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(lost, edits))
}

fn kin(rank: &RankFacts<'_>, row: u32) -> Kin {
    let trace = rank.scope.trace;
    match trace.slices.collective.get(row) {
        Some(one) => Kin::Recorded(one.group, one.name),
        None => Kin::Alike(trace.stream(row), trace.slices.name[row as usize]),
    }
}

/// Estimates the time of one merged collective per step, as one latency plus the time of all bytes.
/// For a collective of unknown size, its time beyond one latency counts as the time of its bytes.
fn merged_ns(rank: &RankFacts<'_>, small: &[Small], limits: &RuleLimits<'_>) -> i64 {
    let latency = limits.value("latency_ns");
    let bytes_ns = |(row, size): &Small| match size {
        Some(size) => *size as f64 / limits.value("gb_per_s").max(1e-3),
        None => (rank.duration(*row) as f64 - latency).max(0.0),
    };
    (latency * rank.step_count() as f64 + small.iter().map(bytes_ns).sum::<f64>()) as i64
}
