//! Rule L07 finds short gaps before kernels that had been launched long before they started.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::idle::{DeviceCause, Gap};
use crate::text::{agreeing, counted, time};

pub(super) const RULE: Rule = Rule {
    id: "L07",
    title: "gaps between kernels",
    category: FindingCategory::Launch,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[
        limit("idle_pct", 5.0, "minimum sum of the gaps between kernels, percent of the window"),
        limit("kernel_ns", 1_000.0, "shortest gap that a device can reach between two kernels"),
    ],
    page: page!("L07"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let is_short = |gap: &&Gap<'_>| gap.cause == DeviceCause::KernelWait;
    let gaps: Vec<&Gap<'_>> = rank.gaps().iter().filter(is_short).collect();
    let devices = i64::from(rank.breakdown().device_count).max(1);
    let idle_ns = gaps.iter().map(|gap| gap.idle_ns).sum::<i64>() / devices;
    let share = rank.share(idle_ns);
    if gaps.is_empty() || share < limits.value("idle_pct") {
        return None;
    }
    let best = limits.ns("kernel_ns");
    // A device cannot start kernels back to back, so only the excess over its shortest gap is lost.
    let lost: i64 = gaps.iter().map(|gap| (gap.idle_ns - best).max(0)).sum();
    let mean = gaps.iter().map(|gap| gap.idle_ns).sum::<i64>() / gaps.len() as i64;
    let per_step = rank.count_per_step(gaps.len());
    let what = format!(
        "{} per step of {} on average {} between kernels that were already launched: {share:.1} \
         % of the window.",
        counted(per_step, "gap"),
        time(mean),
        agreeing(per_step, "lies", "lie")
    );
    let advice = "Fuse kernels or replay them as a CUDA graph, which starts its nodes without the \
                  queue; avoid event waits between kernels of one stream.";
    let rows: Vec<u32> = gaps.iter().filter_map(|gap| gap.ending_row).collect();
    let evidence = rank
        .collect_timed_evidence(gaps.iter().filter_map(|gap| Some((gap.ending_row?, gap.idle_ns))));
    let edits = vec![rank.edit(rows, Action::CloseGap)];
    let found = RuleFindings::new(what, advice)
        .number("gaps_per_step", rank.count_per_step(gaps.len()))
        .number("gap_mean_ns", mean as f64);
    Some(found.shown_by(evidence).saves(lost / devices, edits))
}
