//! H03: the device idles around the ends of steps, again and again: logging, checkpoints, metrics.

use super::finding::{Confidence, FindingCategory, RuleFindings};
use super::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use super::text::time;
use crate::graph::edit::Action;
use crate::idle::{DeviceCause, Gap};
use crate::job::RankFacts;

pub(super) const RULE: Rule = Rule {
    id: "H03",
    title: "periodic stall between steps",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[
        limit("idle_pct", 3.0, "idle time at such a boundary, percent of a mean step"),
        limit("times_usual", 2.0, "how much longer than at the usual boundary"),
    ],
    page: page!("H03"),
    detect: Detect::Rank(detect),
};

const CAUSES: [DeviceCause; 3] =
    [DeviceCause::Untraced, DeviceCause::CpuWork, DeviceCause::Runtime];

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let steps = &rank.scope.window.steps;
    let boundaries: Vec<i64> = steps.iter().skip(1).map(|step| step.start).collect();
    let step_ns = rank.step_ns();
    // The longest gap at each boundary, on any device.
    let near = step_ns / 100;
    let at = |time: &i64| {
        let gaps = rank.gaps_near((time - near, time + near));
        gaps.filter(|gap| CAUSES.contains(&gap.cause)).max_by_key(|gap| gap.idle_ns)
    };
    let gaps: Vec<Option<&Gap>> = boundaries.iter().map(at).collect();
    let length = |gap: &Option<&Gap>| gap.map_or(0, |gap| gap.idle_ns);
    let mut lengths: Vec<i64> = gaps.iter().map(length).collect();
    lengths.sort_unstable();
    let usual = *lengths.get(lengths.len().checked_sub(1)? / 2)?;
    let least = (limits.value("idle_pct") / 100.0 * step_ns as f64) as i64;
    let least = least.max((limits.value("times_usual") * usual as f64) as i64);
    let long: Vec<usize> = (0..gaps.len()).filter(|at| length(&gaps[*at]) > least).collect();
    let period = period(&long)?;
    let stalls: Vec<&Gap> = long.iter().filter_map(|at| gaps[*at]).collect();
    let idle_ns: i64 = stalls.iter().map(|gap| gap.idle_ns).sum();
    let lost = idle_ns - usual * stalls.len() as i64;
    let owner = stalls.iter().find_map(|gap| gap.owner.clone());
    let what = format!(
        "Every {period} steps the device idles {} around the end of a step, {} otherwise; the host \
         is in {}.",
        time(idle_ns / stalls.len() as i64),
        time(usual),
        owner.as_deref().unwrap_or("code that was not traced")
    );
    let advice = "Log, evaluate metrics or checkpoint less often, in a background thread, or from \
                  tensors copied asynchronously; do not wait for files between steps.";
    let rows: Vec<u32> = stalls.iter().filter_map(|gap| gap.call_row).collect();
    let proofs = rank.proofs_of(stalls.iter().filter_map(|gap| Some((gap.call_row?, gap.idle_ns))));
    let named = owner.as_deref().map_or_else(Vec::new, |owner| {
        let during = |row: &u32| {
            stalls.iter().any(|gap| rank.start(*row) < gap.end_ns && gap.start_ns < rank.end(*row))
        };
        rank.outermost_named(|name| name == owner).into_iter().filter(during).collect()
    });
    let edits = vec![
        rank.edit(rank.whole(&named), Action::Scale(0.0)),
        rank.edit(before(rank, &rows), Action::CloseGap),
    ];
    let found = RuleFindings::new(what, advice)
        .number("every_steps", period as f64)
        .number("stall_ns", (idle_ns / stalls.len() as i64) as f64)
        .number("usual_ns", usual as f64)
        .about(owner.unwrap_or_else(|| "untraced".to_owned()));
    Some(found.shown_by(proofs).saves(lost, edits))
}

/// The distance of places that stand evenly apart, two or more steps.
fn period(places: &[usize]) -> Option<usize> {
    let apart: Vec<usize> = places.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let first = *apart.first()?;
    (first > 1 && apart.iter().all(|distance| *distance == first)).then_some(first)
}

/// The launches that ended the stalls and the operators they began: what untraced time came before.
fn before(rank: &RankFacts<'_>, calls: &[u32]) -> Vec<u32> {
    let with_operators = |call: &u32| std::iter::once(*call).chain(rank.tree().ancestors(*call));
    calls.iter().flat_map(with_operators).collect()
}
