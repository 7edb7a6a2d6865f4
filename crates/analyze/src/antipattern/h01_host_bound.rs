//! H01: the device waits while the host runs operators and calls.

use super::facts::Facts;
use super::finding::{Category, Confidence, Found};
use super::rule::{Detect, Limits, Rule, Side, limit, page};
use super::text::time;
use crate::graph::edit::Action;
use crate::idle::{DeviceCause, IdleOwner};
use crate::interval;

pub(super) const RULE: Rule = Rule {
    id: "H01",
    title: "device waits for the host",
    category: Category::Host,
    side: Side::Host,
    confidence: Confidence::High,
    limits: &[
        limit("idle_pct", 10.0, "idle time while the host works, percent of the window"),
        limit("faster", 2.0, "how much faster its operators are taken to become"),
    ],
    page: page!("H01"),
    detect: Detect::Rank(detect),
};

const CAUSES: [DeviceCause; 2] = [DeviceCause::CpuWork, DeviceCause::Runtime];

fn detect(rank: &Facts<'_>, limits: &Limits<'_>) -> Option<Found> {
    // What the profiler does itself is not the program's, and set-up does not come again.
    let gaps = || rank.gaps().iter().filter(|gap| CAUSES.contains(&gap.cause));
    let each: Vec<_> = gaps().map(|gap| (gap.start_ns, gap.end_ns)).collect();
    let apart = interval::union([rank.overhead(), rank.set_up()].concat());
    let own = interval::intersection(&interval::union(each), &apart);
    let waited = rank.idle_by(&CAUSES) - interval::length(&own);
    let share = rank.share(waited);
    if waited <= 0 || share < limits.of("idle_pct") {
        return None;
    }
    let is_ours = |owner: &&IdleOwner| CAUSES.contains(&owner.cause) && owner.owner.is_some();
    let owners: Vec<&IdleOwner> = rank.idle().owners.iter().filter(is_ours).take(5).collect();
    let names: Vec<&str> = owners.iter().filter_map(|owner| owner.owner.as_deref()).collect();
    let named: Vec<String> = owners
        .iter()
        .take(3)
        .map(|owner| {
            let name = owner.owner.as_deref().unwrap_or_default();
            format!("{name} ({})", time(rank.per_step(owner.idle_ns)))
        })
        .collect();
    let what = format!(
        "The device waits {} per step ({share:.1} % of the window) while the host works, most in {}.",
        time(rank.per_step(waited)),
        named.join(", ")
    );
    let advice = "Move these operators to the device, call fewer of them (fuse, compile, CUDA \
                  graphs), prepare their inputs in other threads, or run ahead of the device by \
                  removing waits.";
    let rows = rank.outermost_named(|name| names.contains(&name));
    let factor = 1.0 / limits.of("faster").max(1.0);
    let edits = vec![rank.edit(rank.whole(&rows), Action::Scale(factor))];
    let found = Found::new(what, advice)
        .number("idle_per_step_ns", rank.per_step(waited) as f64)
        .number("idle_pct", share)
        .about(names.first().copied().unwrap_or_default());
    let spans = gaps().flat_map(|gap| {
        let track = gap.call_row.map(|call| rank.scope.trace.slices.track[call as usize]);
        let rest = interval::difference(&[(gap.start_ns, gap.end_ns)], &apart);
        track
            .into_iter()
            .flat_map(move |track| rest.clone().into_iter().map(move |span| (track, span)))
    });
    let found = found.rests_on(spans.collect());
    Some(found.shown_by(rank.proofs(rows)).saves(waited, edits))
}
