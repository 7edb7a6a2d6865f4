//! M01: communication that no compute hides.

use std::collections::BTreeMap;

use super::finding::{Confidence, FindingCategory, RuleFindings};
use super::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use super::text::time;
use crate::classify::WorkClass;
use crate::graph::edit::Action;
use crate::interval;
use crate::job::RankFacts;

pub(super) const RULE: Rule = Rule {
    id: "M01",
    title: "exposed communication",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit("exposed_pct", 10.0, "communication without compute, percent of the window")],
    page: page!("M01"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let exposed = rank.breakdown().exposed_communication_ns;
    let share = rank.share(exposed);
    if share < limits.value("exposed_pct") {
        return None;
    }
    let compute = interval::union(rank.scope.spans(|_, class| class == WorkClass::Compute));
    let bare = |row: u32| {
        let span = rank.scope.clipped(row);
        span.1 - span.0 - interval::length_within(&compute, span)
    };
    let mut rows: Vec<u32> = communication(rank).collect();
    let mut kinds: BTreeMap<String, i64> = BTreeMap::new();
    for row in &rows {
        *kinds.entry(kind(rank, *row)).or_default() += bare(*row);
    }
    let mut kinds: Vec<(String, i64)> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let most =
        kinds.iter().take(2).map(|(name, ns)| format!("{name} {}", time(rank.per_step(*ns))));
    let waited: i64 = rows.iter().map(|row| rank.waited(*row).min(bare(*row))).sum();
    let waiting = match waited {
        0 => unseen(rank).unwrap_or_default(),
        ns => format!(" Kernels spend {} of it waiting for other ranks.", time(rank.per_step(ns))),
    };
    let what = format!(
        "Communication runs {} per step without compute ({share:.1} % of the window), most in \
         {}.{waiting}",
        time(rank.per_step(exposed)),
        most.collect::<Vec<_>>().join(" and ")
    );
    let advice = "Start it earlier or let independent work run beside it: gradient buckets \
                  (bucket_cap_mb, gradient_as_bucket_view), the next batch's input exchange \
                  (TrainPipelineSparseDist), all-to-all split from its wait; or move less \
                  (quantised collectives, fewer bytes).";
    let proofs = rank.proofs_of(rows.iter().map(|row| (*row, bare(*row))));
    let found = RuleFindings::new(what, advice)
        .number("exposed_per_step_ns", rank.per_step(exposed) as f64)
        .number("exposed_pct", share)
        .number("waited_per_step_ns", rank.per_step(waited) as f64);
    // Of devices that lag behind, what was launched in the window: some of it runs behind it.
    if rank.scope.device_span.is_some() {
        let links = rank.scope.links();
        rows.retain(|row| links.call(*row).is_some_and(|call| rank.scope.starts_inside(call)));
    }
    let late = rank.scope.late_work.iter().filter(|(_, class)| *class == WorkClass::Communication);
    rows.extend(late.map(|(row, _)| *row));
    let edits = vec![rank.edit(rows, Action::Overlap)];
    Some(found.shown_by(proofs).saves(exposed, edits))
}

/// What cannot be said where the other ranks of a job are not there.
fn unseen(rank: &RankFacts<'_>) -> Option<String> {
    let known = rank.scope.trace.header.distributed.as_ref()?;
    let size = known.world_size.filter(|size| *size > 1 && !rank.has_peers())?;
    Some(format!(
        " How much of it is waiting for other ranks cannot be told: of {size} ranks only rank {} was \
         read.",
        rank.rank()
    ))
}

/// Rows of communication kernels in the window.
pub(super) fn communication<'a>(rank: &'a RankFacts<'_>) -> impl Iterator<Item = u32> + 'a {
    let rows = rank.scope.device_rows.iter().zip(&rank.scope.classes);
    rows.filter(|(_, class)| **class == WorkClass::Communication).map(|(row, _)| *row)
}

/// The collective and its group, as far as they are known.
fn kind(rank: &RankFacts<'_>, row: u32) -> String {
    let strings = &rank.scope.trace.strings;
    match rank.scope.trace.slices.collective.get(row) {
        Some(known) => {
            let group = strings.get(known.group_description);
            let group = if group.is_empty() { strings.get(known.group) } else { group };
            let name = strings.get(known.name);
            if group.is_empty() { name.to_owned() } else { format!("{name} of group {group}") }
        }
        None => crate::kernels::short_name(rank.name(row)).to_owned(),
    }
}
