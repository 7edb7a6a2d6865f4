//! Rule H13 finds steps in which the host spends long outside operators while nothing else works.
//! The profiler recorded no operator in that time, so the rule cannot name the work.

use std::collections::BTreeMap;

use trace::store::{StringId, TrackId};

use super::h01_host_bound::CAUSES;
use crate::facts::interval::{self, Interval};
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::idle::is_input;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "H13",
    title: "host code outside operators",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[
        limit(
            "time_pct",
            5.0,
            "minimum time of unrecorded host code before the same operator, percent of the window",
        ),
        limit(
            "steps_pct",
            75.0,
            "minimum share of steps with unrecorded host code before that operator, percent",
        ),
        limit("stretch_ns", 100_000.0, "minimum length of a stretch of unrecorded host code"),
        limit(
            "faster",
            2.0,
            "assumed speedup of unrecorded host code that runs on a device, a factor",
        ),
    ],
    page: page!("H13"),
    detect: Detect::Rank(detect),
};

/// Minimum number of steps that the rule needs if no Python frame shows what the host did. A short
/// excerpt of a recording may lack operators by chance.
const STEPS_MIN: usize = 3;

/// A stretch of a step without operators, with the row that ended it.
pub(super) struct SilentStretch {
    pub step: usize,
    pub span: Interval,
    pub ended_by: u32,
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let is_host_only = rank.is_host_only();
    if !is_host_only && rank.scope.device_rows.is_empty() {
        // The host may have waited for a device that was not recorded, so nothing is reported.
        return None;
    }
    let mut by_name: BTreeMap<&str, Vec<SilentStretch>> = BTreeMap::new();
    for stretch in stretches(rank, limits.ns("stretch_ns")) {
        if is_host_only || holds_the_device_up(rank, stretch.span) {
            by_name.entry(rank.name(stretch.ended_by)).or_default().push(stretch);
        }
    }
    let total =
        |found: &[SilentStretch]| found.iter().map(|one| one.span.1 - one.span.0).sum::<i64>();
    let (name, found) = by_name.into_iter().max_by_key(|(_, found)| total(found))?;
    let mut steps: Vec<usize> = found.iter().map(|one| one.step).collect();
    steps.dedup();
    let is_in_most = 100 * steps.len() as i64 >= limits.ns("steps_pct") * rank.step_count();
    let (lost, share) = (total(&found), rank.share(total(&found)));
    if !is_in_most || share < limits.value("time_pct") {
        return None;
    }
    let line = longest_line(rank, &found);
    let has_steps = !rank.scope.window.steps.is_empty();
    let times = if has_steps { steps.len() } else { found.len() };
    if line.is_none() && times < STEPS_MIN {
        return None;
    }
    let whose = if has_steps { "Each step" } else { "The recording" };
    let mut what = format!(
        "{whose} spends {} ({share:.1} % of the window) in code that is no PyTorch operator, before \
         {name}.",
        time(rank.per_step(lost))
    );
    if let Some((line, ns)) = line {
        what += &format!(" {} of it are in {line}.", time(rank.per_step(ns)));
    }
    let cure = "If it prepares data, write it with whole tensors, move it to a DataLoader worker, \
                or prepare the next batch while this one trains.";
    let advice = match line {
        Some(_) => cure.to_owned(),
        None => format!("Record with with_stack=True to see the lines. {cure}"),
    };
    let evidence = rank
        .collect_timed_evidence(found.iter().map(|one| (one.ended_by, one.span.1 - one.span.0)));
    // In pairs of recordings without a device, moving such code to a worker removed all of its
    // time.
    let factor = if is_host_only { 0.0 } else { 1.0 / limits.value("faster").max(1.0) };
    let track = |row: u32| rank.scope.trace.slices.track[row as usize];
    let spans: Vec<_> = found.iter().map(|one| (track(one.ended_by), one.span)).collect();
    let edits = vec![rank.edit_with_spans(Vec::new(), spans.clone(), Action::Scale(factor))];
    let found = RuleFindings::new(what, advice)
        .number("time_per_step_ns", rank.per_step(lost) as f64)
        .number("time_pct", share)
        .rests_on(spans);
    Some(found.shown_by(evidence).saves(lost, edits))
}

/// Returns whether the device is idle for most of a stretch, and no rule about operators already
/// counts that idle time.
fn holds_the_device_up(rank: &RankFacts<'_>, span: Interval) -> bool {
    let idle = |is_meant: &dyn Fn(bool) -> bool| {
        let gaps = rank.gaps_near(span).filter(|gap| is_meant(CAUSES.contains(&gap.cause)));
        interval::union(gaps.map(|gap| (gap.start_ns, gap.end_ns)).collect())
    };
    let (all, of_operators) = (idle(&|_| true), idle(&|is_of_operators| is_of_operators));
    let length = span.1 - span.0;
    2 * interval::length_within(&all, span) >= length
        && 2 * interval::length_within(&of_operators, span) < length
}

/// Returns the Python frame that was innermost for the longest time in the stretches, and that
/// time.
fn longest_line<'a>(rank: &RankFacts<'a>, found: &[SilentStretch]) -> Option<(&'a str, i64)> {
    let frames = rank.scope.frames();
    let trace = rank.scope.trace;
    let mut by_name: BTreeMap<StringId, i64> = BTreeMap::new();
    for one in found {
        let track = trace.slices.track[one.ended_by as usize];
        for stretch in frames.within(track, one.span) {
            let name = frames.all()[stretch.frame as usize].name;
            *by_name.entry(name).or_default() += stretch.end - stretch.start;
        }
    }
    let (name, ns) = by_name.into_iter().max_by_key(|(_, ns)| *ns)?;
    Some((trace.strings.get(name), ns))
}

/// Returns the Python function (including its callees) in which threads spent most of some spans,
/// and how long they spent there. The result is `None` if that is less than half of the time, or if
/// frames were not recorded.
pub(super) fn longest_function<'a>(
    rank: &RankFacts<'a>,
    spans: impl Iterator<Item = (TrackId, Interval)>,
) -> Option<(&'a str, i64)> {
    if rank.scope.trace.slices.python.is_empty() {
        return None;
    }
    let frames = rank.scope.frames();
    let strings = &rank.scope.trace.strings;
    let mut by_name: BTreeMap<StringId, i64> = BTreeMap::new();
    let mut whole = 0;
    for (track, span) in spans {
        whole += span.1 - span.0;
        for stretch in frames.within(track, span) {
            // Built-in functions have no file in their name, so their time goes to the Python
            // function that called them.
            let mut stack = frames.stack(stretch.frame);
            if let Some(frame) = stack.find(|frame| strings.get(frame.name).contains(".py")) {
                *by_name.entry(frame.name).or_default() += stretch.end - stretch.start;
            }
        }
    }
    let (name, ns) = by_name.into_iter().max_by_key(|(_, ns)| *ns)?;
    (2 * ns >= whole).then(|| (strings.get(name), ns))
}

/// Returns the stretches of the window in which no thread ran an operator or a call, or fetched a
/// batch.
pub(super) fn stretches(rank: &RankFacts<'_>, least_ns: i64) -> Vec<SilentStretch> {
    let (trace, window) = (rank.scope.trace, &rank.scope.window);
    let mut rows = rank.tree().top_rows(trace);
    // Fetching a batch is not silence here, because rule H02 reports its time.
    rows.extend(rank.outermost_named(is_input(rank.scope.trace)));
    rows.sort_by_key(|row| (rank.start(*row), *row));
    let mut found = Vec::new();
    let mut behind = i64::MIN;
    for row in rows {
        let start = rank.start(row);
        // A window without steps is treated as a single step.
        let is_inside = window.steps.is_empty() && rank.scope.starts_inside(row);
        if let Some(step) = rank.step_at(start).or(is_inside.then_some(0)) {
            // Silence across a step boundary is split there, because the end of one step and the
            // beginning of the next may be silent for different reasons.
            let from = behind.max(window.start);
            let begun = window.steps.get(step).map_or(window.start, |step| step.start);
            for span in [(from, begun), (from.max(begun), start)] {
                if span.1 - span.0 >= least_ns {
                    found.push(SilentStretch { step, span, ended_by: row });
                }
            }
        }
        behind = behind.max(rank.end(row));
    }
    found
}
