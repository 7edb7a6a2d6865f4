//! Rule H03 finds devices that are idle at step boundaries again and again, because of logging,
//! checkpoints or metrics. In a recording without a device, it finds host code outside operators at
//! those boundaries.

use super::h13_unrecorded_host;
use crate::facts::interval::Interval;
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RowEdit, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::idle::{DeviceCause, Gap};
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "H03",
    title: "periodic stall between steps",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[
        limit("idle_pct", 3.0, "minimum idle time at a step boundary, percent of a mean step"),
        limit(
            "times_usual",
            2.0,
            "minimum ratio of the idle time at a step boundary to that at a usual one",
        ),
    ],
    page: page!("H03"),
    detect: Detect::Rank(detect),
};

const CAUSES: [DeviceCause; 3] =
    [DeviceCause::Untraced, DeviceCause::CpuWork, DeviceCause::Runtime];

/// A stall at a step boundary, with the rows that a cure would change.
struct Stall {
    ns: i64,
    owner: Option<String>,
    /// The call or row that ended the stall.
    ended_by: Option<u32>,
    /// Time in which the device was idle, or in which the host ran no operator.
    span: Interval,
}

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let is_host_only = rank.is_host_only();
    let stalls = if is_host_only { silence_of_steps(rank) } else { gaps_at_boundaries(rank) };
    let length = |stall: &Option<Stall>| stall.as_ref().map_or(0, |stall| stall.ns);
    let mut lengths: Vec<i64> = stalls.iter().map(length).collect();
    lengths.sort_unstable();
    // The median boundary is the reference, because stalls that recur every few steps do not change
    // it.
    let usual = *lengths.get(lengths.len().checked_sub(1)? / 2)?;
    let least = (limits.value("idle_pct") / 100.0 * rank.step_ns() as f64) as i64;
    let least = least.max((limits.value("times_usual") * usual as f64) as i64);
    let long: Vec<usize> = (0..stalls.len()).filter(|at| length(&stalls[*at]) > least).collect();
    let period = period(&long)?;
    let stalls: Vec<&Stall> = long.iter().filter_map(|at| stalls[*at].as_ref()).collect();
    let idle_ns: i64 = stalls.iter().map(|stall| stall.ns).sum();
    // The cure shortens a stall only to the idle time that every boundary has.
    let lost = idle_ns - usual * stalls.len() as i64;
    let owner = stalls.iter().find_map(|stall| stall.owner.clone());
    let (mean, usually) = (time(idle_ns / stalls.len() as i64), time(usual));
    let what = if is_host_only {
        format!(
            "Every {period} steps the host spends {mean} in code outside operators, {usually} \
             otherwise."
        )
    } else {
        format!(
            "Every {period} steps the device idles {mean} around the end of a step, {usually} \
             otherwise; the host is in {}.",
            owner.as_deref().unwrap_or("code that was not traced")
        )
    };
    let advice = "Log, evaluate metrics or checkpoint less often, in a background thread, or from \
                  tensors copied asynchronously; do not wait for files between steps.";
    let evidence = rank.collect_timed_evidence(
        stalls.iter().filter_map(|stall| Some((stall.ended_by?, stall.ns))),
    );
    let found = RuleFindings::new(what, advice)
        .number("every_steps", period as f64)
        .number("stall_ns", (idle_ns / stalls.len() as i64) as f64)
        .number("usual_ns", usual as f64)
        .about(owner.clone().unwrap_or_else(|| "untraced".to_owned()))
        .shown_by(evidence);
    Some(if is_host_only {
        let track = |row: u32| rank.scope.trace.slices.track[row as usize];
        let spans: Vec<_> =
            stalls.iter().filter_map(|stall| Some((track(stall.ended_by?), stall.span))).collect();
        let edits = vec![rank.edit_with_spans(Vec::new(), spans.clone(), Action::Scale(0.0))];
        found.rests_on(spans).saves(lost, edits)
    } else {
        found.saves(lost, edits_of_gaps(rank, &stalls, owner.as_deref()))
    })
}

/// Returns, for each step except the first, the longest device gap at the start of the step.
fn gaps_at_boundaries(rank: &RankFacts<'_>) -> Vec<Option<Stall>> {
    let near = rank.step_ns() / 100;
    let stall = |gap: &Gap<'_>| Stall {
        ns: gap.idle_ns,
        owner: gap.owner.map(str::to_owned),
        ended_by: gap.call_row,
        span: (gap.start_ns, gap.end_ns),
    };
    let at = |time: i64| {
        let gaps = rank.gaps_near((time - near, time + near));
        gaps.filter(|gap| CAUSES.contains(&gap.cause)).max_by_key(|gap| gap.idle_ns).map(stall)
    };
    rank.scope.window.steps.iter().skip(1).map(|step| at(step.start)).collect()
}

/// Returns, for each step of a recording without a device, the longest time without operators in or
/// before the step.
fn silence_of_steps(rank: &RankFacts<'_>) -> Vec<Option<Stall>> {
    let mut stalls: Vec<Option<Stall>> = Vec::new();
    stalls.resize_with(rank.scope.window.steps.len(), || None);
    for stretch in h13_unrecorded_host::stretches(rank, 1) {
        let ns = stretch.span.1 - stretch.span.0;
        let Some(stall) = stalls.get_mut(stretch.step) else { continue };
        if stall.as_ref().is_none_or(|longest| longest.ns < ns) {
            let (owner, ended_by) = (None, Some(stretch.ended_by));
            *stall = Some(Stall { ns, owner, ended_by, span: stretch.span });
        }
    }
    stalls
}

/// Returns the edits that model the cure on a device. The operator that the host ran takes no time,
/// and the launches that ended the stalls begin at once.
fn edits_of_gaps(rank: &RankFacts<'_>, stalls: &[&Stall], owner: Option<&str>) -> Vec<RowEdit> {
    let rows: Vec<u32> = stalls.iter().filter_map(|stall| stall.ended_by).collect();
    let named = owner.map_or_else(Vec::new, |owner| {
        let during = |row: &u32| {
            let is_inside =
                |stall: &&Stall| rank.start(*row) < stall.span.1 && stall.span.0 < rank.end(*row);
            stalls.iter().any(is_inside)
        };
        rank.outermost_named(|name| name == owner).into_iter().filter(during).collect()
    });
    vec![
        rank.edit(rank.whole(&named), Action::Scale(0.0)),
        rank.edit(before(rank, &rows), Action::CloseGap),
    ]
}

/// Returns the distance between evenly spaced step indices, if it is at least two steps.
fn period(places: &[usize]) -> Option<usize> {
    let apart: Vec<usize> = places.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let first = *apart.first()?;
    (first > 1 && apart.iter().all(|distance| *distance == first)).then_some(first)
}

/// Returns the launches that ended the stalls and the operators around them. The untraced time of a
/// stall lies directly before one of these rows.
fn before(rank: &RankFacts<'_>, calls: &[u32]) -> Vec<u32> {
    let with_operators = |call: &u32| std::iter::once(*call).chain(rank.tree().ancestors(*call));
    calls.iter().flat_map(with_operators).collect()
}
