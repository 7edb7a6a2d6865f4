//! Rule M01 finds communication that is not hidden under compute.

use std::collections::BTreeMap;

use crate::facts::classify::WorkClass;
use crate::facts::interval::{self, Interval};
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "M01",
    title: "exposed communication",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit(
        "exposed_pct",
        10.0,
        "minimum time of communication without compute, percent of the window",
    )],
    page: page!("M01"),
    detect: Detect::Rank(detect),
};

/// The compute that hides communication, and the span in which exposure is measured. The span
/// covers the devices' steps if these are longer than the host's, because their communication ends
/// after the host's step.
struct Exposure<'a, 'b> {
    rank: &'a RankFacts<'b>,
    looked_at: Interval,
    compute: Vec<Interval>,
}

impl<'a, 'b> Exposure<'a, 'b> {
    fn new(rank: &'a RankFacts<'b>) -> Self {
        let window = &rank.scope.window;
        let looked_at = rank.scope.device_span.unwrap_or((window.start, window.end));
        let exposure = Self { rank, looked_at, compute: Vec::new() };
        let compute = rows(rank, WorkClass::Compute).into_iter().map(|row| exposure.span(row));
        Self { compute: interval::union(compute.collect()), ..exposure }
    }

    fn span(&self, row: u32) -> Interval {
        let clip = |at: i64| at.clamp(self.looked_at.0, self.looked_at.1);
        (clip(self.rank.start(row)), clip(self.rank.end(row)))
    }

    /// Returns the time in which at least one of some rows runs while no compute runs.
    fn length(&self, rows: &[u32]) -> i64 {
        let spans = interval::union(rows.iter().map(|row| self.span(*row)).collect());
        interval::length(&interval::difference(&spans, &self.compute))
    }

    fn length_of(&self, row: u32) -> i64 {
        let span = self.span(row);
        span.1 - span.0 - interval::length_within(&self.compute, span)
    }
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let mut rows = rows(rank, WorkClass::Communication);
    if rows.is_empty() {
        return None;
    }
    let exposure = Exposure::new(rank);
    let exposed = exposure.length(&rows);
    let length = exposure.looked_at.1 - exposure.looked_at.0;
    let share = 100.0 * exposed as f64 / length.max(1) as f64;
    if share < limits.value("exposed_pct") {
        return None;
    }
    let mut of_kinds: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for row in &rows {
        of_kinds.entry(kind(rank, *row)).or_default().push(*row);
    }
    // Kernels of one kind may overlap, so the union of their spans counts.
    let of_kinds = of_kinds.into_iter().map(|(name, some)| (name, exposure.length(&some)));
    let mut kinds: Vec<(String, i64)> = of_kinds.collect();
    kinds.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let most =
        kinds.iter().take(2).map(|(name, ns)| format!("{name} {}", time(rank.per_step(*ns))));
    let bare = |row: u32| exposure.length_of(row);
    let waited: i64 = rows.iter().map(|row| rank.waited(*row).min(bare(*row))).sum();
    let unread_ranks = describe_unread_ranks(rank).filter(|_| waited == 0);
    let waiting = match waited {
        0 => unread_ranks.clone().unwrap_or_default(),
        ns => format!(" Kernels spend {} of it waiting for other ranks.", time(rank.per_step(ns))),
    };
    let has_lost_graphs = rank.partial_graphs().is_some();
    let what = format!(
        "Communication runs {} per step without compute ({share:.1} % of {}), most in {}.{waiting}{}",
        time(rank.per_step(exposed)),
        if rank.scope.device_span.is_some() { "the devices' steps" } else { "the window" },
        most.collect::<Vec<_>>().join(" and "),
        // If graph kernels are missing from the recording, compute may run beside the communication
        // unseen.
        if has_lost_graphs { LOST_GRAPHS } else { "" }
    );
    let advice = "Start it earlier or let independent work run beside it: gradient buckets \
                  (bucket_cap_mb, gradient_as_bucket_view), the next batch's input exchange \
                  (TrainPipelineSparseDist), all-to-all split from its wait; or move less \
                  (quantized collectives, fewer bytes).";
    let evidence = rank.collect_timed_evidence(rows.iter().map(|row| (*row, bare(*row))));
    let found = RuleFindings::new(what, advice)
        .number("exposed_per_step_ns", rank.per_step(exposed) as f64)
        .number("exposed_pct", share)
        .number("waited_per_step_ns", rank.per_step(waited) as f64);
    // If the devices lag behind the host, work launched in the window partly runs after it.
    if rank.scope.device_span.is_some() {
        let links = rank.scope.links();
        rows.retain(|row| links.call(*row).is_some_and(|call| rank.scope.starts_inside(call)));
    }
    let edits = vec![rank.edit(rows, Action::Overlap)];
    let found = found.shown_by(evidence).saves(exposed, edits);
    Some(found.sure(match (has_lost_graphs, unread_ranks.is_some()) {
        (false, false) => Confidence::High,
        (true, true) => Confidence::Low,
        _ => Confidence::Medium,
    }))
}

/// Sentence that follows the figures if the recording seems to lack kernels of CUDA graphs.
const LOST_GRAPHS: &str = " The recording seems to lack kernels of CUDA graphs (Q10): compute may \
                           run beside more of it than is seen, so that less can be saved.";

/// Describes what remains unknown because the other ranks of the job were not read.
fn describe_unread_ranks(rank: &RankFacts<'_>) -> Option<String> {
    let distributed = rank.scope.trace.header.distributed.as_ref()?;
    let size = distributed.world_size.filter(|size| *size > 1 && !rank.has_peers())?;
    Some(format!(
        " How much of it is waiting for other ranks cannot be told, because of {size} ranks only rank \
         {} was read. The saving assumes that none of it is.",
        rank.rank()
    ))
}

/// Returns the rows of a class that run in the window, and those that were launched in it but run
/// after it.
fn rows(rank: &RankFacts<'_>, class: WorkClass) -> Vec<u32> {
    let inside = rank.scope.device_rows.iter().zip(&rank.scope.classes);
    let late = rank.scope.late_work.iter().map(|(row, class)| (row, class));
    inside.chain(late).filter(|(_, of)| **of == class).map(|(row, _)| *row).collect()
}

/// Returns the rows of communication kernels in the window.
pub(super) fn communication<'a>(rank: &'a RankFacts<'_>) -> impl Iterator<Item = u32> + 'a {
    let rows = rank.scope.device_rows.iter().zip(&rank.scope.classes);
    rows.filter(|(_, class)| **class == WorkClass::Communication).map(|(row, _)| *row)
}

/// Returns a label made of the collective's name and its process group, as far as they are known.
fn kind(rank: &RankFacts<'_>, row: u32) -> String {
    let strings = &rank.scope.trace.strings;
    match rank.scope.trace.slices.collective.get(row) {
        Some(known) => {
            let group = strings.get(known.group_description);
            let group = if group.is_empty() { strings.get(known.group) } else { group };
            let name = strings.get(known.name);
            if group.is_empty() { name.to_owned() } else { format!("{name} of group {group}") }
        }
        None => crate::tables::kernels::short_name(rank.name(row)).to_owned(),
    }
}
