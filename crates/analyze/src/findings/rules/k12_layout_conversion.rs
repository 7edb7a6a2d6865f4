//! Rule K12 finds kernels that convert images from one memory layout to another.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "K12",
    title: "conversions of layout",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit("time_pct", 5.0, "minimum time of conversions, percent of compute")],
    page: page!("K12"),
    detect: Detect::Rank(detect),
};

const CONVERSIONS: [&str; 6] =
    ["nchwToNhwc", "nhwcToNchw", "NCHWToNHWC", "NHWCToNCHW", "batched_transpose", "nchw_to_nhwc"];

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let conversions = rank.names(|name| CONVERSIONS.iter().any(|part| name.contains(part)));
    let rows: Vec<u32> = rank
        .compute_kernels()
        .map(|kernel| kernel.row)
        .filter(|row| rank.is_named(&conversions, *row))
        .collect();
    let time_ns = rank.total(&rows);
    let share = 100.0 * time_ns as f64 / rank.compute_ns().max(1) as f64;
    if rows.is_empty() || share < limits.value("time_pct") {
        return None;
    }
    let what = format!(
        "{share:.0} % of compute time ({} per step) converts tensors between NCHW and NHWC.",
        time(rank.per_step(time_ns))
    );
    let advice = "Keep model and input in one layout: model.to(memory_format=torch.channels_last) and \
                  the same for the batch; check for operators that fall back.";
    let edits = vec![rank.edit(rows.clone(), Action::Scale(0.0))];
    let found = RuleFindings::new(what, advice).number("time_pct_of_compute", share);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(time_ns, edits))
}
