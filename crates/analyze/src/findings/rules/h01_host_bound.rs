//! Rule H01 finds devices that wait while the host runs operators and calls.

use std::collections::BTreeMap;

use crate::facts::disturbance::Disturbance;
use crate::facts::interval::{self, Interval};
use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::idle::DeviceCause;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "H01",
    title: "device waits for the host",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[
        limit(
            "idle_pct",
            10.0,
            "minimum idle time while the host runs operators and calls, percent of the window",
        ),
        limit("faster", 2.0, "assumed speedup of the host's operators and calls, a factor"),
    ],
    page: page!("H01"),
    detect: Detect::Rank(detect),
};

pub(super) const CAUSES: [DeviceCause; 2] = [DeviceCause::CpuWork, DeviceCause::Runtime];

/// Minimum share of the window, in percent, from which the text mentions excluded idle time.
const LEFT_OUT_PCT: f64 = 1.0;

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    // Idle time during the profiler's work, set-up and first launches does not count, because the
    // job without a profiler does not repeat it.
    let gaps = || rank.gaps().iter().filter(|gap| CAUSES.contains(&gap.cause));
    let each = interval::union(gaps().map(|gap| (gap.start_ns, gap.end_ns)).collect());
    let first_launches = rank.disturbances().intervals(Disturbance::FirstLaunch);
    let apart = interval::union([rank.overhead(), rank.set_up(), &first_launches].concat());
    let own = interval::intersection(&each, &apart);
    let waited = rank.idle_by(&CAUSES) - interval::length(&own);
    let share = rank.share(waited);
    if waited <= 0 || share < limits.value("idle_pct") {
        return None;
    }
    let owners = owners(rank, &apart);
    let frames = rank.scope.frames();
    let names: Vec<&str> = owners.iter().map(|(name, _)| *name).collect();
    let shown = |(name, ns): &(&str, i64)| format!("{name} ({})", time(rank.per_step(*ns)));
    let named: Vec<String> = owners.iter().take(3).map(shown).collect();
    let of_named = owners.iter().take(3).map(|(_, ns)| *ns).sum::<i64>();
    let mut what = format!(
        "The device waits {} per step ({share:.1} % of the window) while the host runs \
         operators and calls{}.",
        time(rank.per_step(waited)),
        match 2 * of_named >= waited {
            true => format!(", most in {}", named.join(", ")),
            false => format!(
                ", in many places, of which the longest, {}, have {:.0} %",
                named.join(", "),
                100.0 * of_named as f64 / waited as f64
            ),
        }
    );
    what += &left_out(rank, &interval::intersection(&each, &interval::union(first_launches)));
    let is_frame = |name: &&str| {
        frames.all().iter().any(|frame| rank.scope.trace.strings.get(frame.name) == *name)
    };
    let of_operators = "Move these operators to the device, call fewer of them (fuse, compile, CUDA \
                  graphs), prepare their inputs in other threads, or run ahead of the device by \
                  removing waits.";
    let of_frames = "Make this Python code faster, replace loops over elements by whole tensors, run it \
                     in other threads or processes while the device works, or run ahead of the \
                     device by removing waits.";
    let advice = if names.first().is_some_and(is_frame) { of_frames } else { of_operators };
    let rows = rank.outermost_named(|name| names.contains(&name));
    let factor = 1.0 / limits.value("faster").max(1.0);
    let is_owner = |frame: u32| {
        let name = frames.all()[frame as usize].name;
        names.contains(&rank.scope.trace.strings.get(name))
    };
    let spans = frames.spans(is_owner).collect();
    let edits = vec![rank.edit_with_spans(rank.whole(&rows), spans, Action::Scale(factor))];
    let found = RuleFindings::new(what, advice)
        .number("idle_per_step_ns", rank.per_step(waited) as f64)
        .number("idle_pct", share)
        .number(
            "untraced_per_step_ns",
            rank.per_step(rank.idle_by(&[DeviceCause::Untraced])) as f64,
        )
        .about(names.first().copied().unwrap_or_default());
    let spans = gaps().flat_map(|gap| {
        let track = gap.call_row.map(|call| rank.scope.trace.slices.track[call as usize]);
        let rest = interval::difference(&[(gap.start_ns, gap.end_ns)], &apart);
        track
            .into_iter()
            .flat_map(move |track| rest.clone().into_iter().map(move |span| (track, span)))
    });
    let found = found.rests_on(spans.collect());
    Some(found.shown_by(rank.collect_evidence(rows)).saves(waited, edits))
}

/// Describes the idle time that the finding does not count: in host code without rows, before the
/// first and after the last device work, and in first launches of kernels.
fn left_out(rank: &RankFacts<'_>, first_launches: &[Interval]) -> String {
    let untraced = rank.idle_by(&[DeviceCause::Untraced]);
    let (head, tail) = (rank.idle_by(&[DeviceCause::Head]), rank.idle_by(&[DeviceCause::Tail]));
    let stalled = interval::length(first_launches);
    let is_shown = |ns: i64| rank.share(ns) >= LEFT_OUT_PCT;
    let mut text = String::new();
    if is_shown(untraced) {
        text += &format!(
            " It waits another {} per step while the host runs untraced code, directly in annotated \
             ranges or outside all rows of the trace.",
            time(rank.per_step(untraced))
        );
    }
    let edges = [
        (head, "from the start of the window to its first work of the device"),
        (tail, "from its last work of the device to the end of the window"),
    ];
    let edges = edges.iter().filter(|(ns, _)| is_shown(*ns));
    let edges: Vec<String> =
        edges.map(|(ns, place)| format!("the {} {place}", time(*ns))).collect();
    if !edges.is_empty() {
        text += &format!(" Not counted are {}.", edges.join(" and "));
    }
    if is_shown(stalled) {
        text += &stall(rank, stalled);
    }
    text
}

/// Returns a text with the idle time during first launches of kernels and the longest such launch.
fn stall(rank: &RankFacts<'_>, ns: i64) -> String {
    let firsts = rank.disturbances().intervals(Disturbance::FirstLaunch);
    let is_first = |call: &&u32| {
        let span = rank.scope.clipped(**call);
        rank.name(**call).contains("LaunchKernel")
            && interval::length_within(&firsts, span) == span.1 - span.0
    };
    let calls = rank.calls().iter().filter(is_first);
    let longest = calls.max_by_key(|call| (rank.duration(**call), **call)).map(|call| {
        let around = rank.range_around(*call).map_or("", |row| rank.name(row));
        format!(", {} of it in one {} of {around}", time(rank.duration(*call)), rank.name(*call))
    });
    format!(
        " It waits another {} per step while kernels are launched for the first time, which loads \
         their code{}: a running job does that once.",
        time(rank.per_step(ns)),
        longest.unwrap_or_default()
    )
}

/// Returns the operators and calls that own most of the idle time, without the excluded times
/// `apart`.
fn owners<'a>(rank: &'a RankFacts<'_>, apart: &[Interval]) -> Vec<(&'a str, i64)> {
    let mut named: BTreeMap<&str, i64> = BTreeMap::new();
    for owner in rank.idle().owners.iter().filter(|owner| CAUSES.contains(&owner.cause)) {
        if let Some(name) = &owner.owner {
            *named.entry(name).or_default() += owner.idle_ns;
        }
    }
    for gap in rank.gaps().iter().filter(|gap| CAUSES.contains(&gap.cause)) {
        let own = gap.owner.and_then(|name| named.get_mut(name));
        if let Some(own) = own {
            *own -= interval::length_within(apart, (gap.start_ns, gap.end_ns));
        }
    }
    let mut named: Vec<(&str, i64)> = named.into_iter().filter(|(_, ns)| *ns > 0).collect();
    named.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    named.truncate(5);
    named
}
