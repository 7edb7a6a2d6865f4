//! Rule C06 finds gradients that are filled with zeros although they could be dropped.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{counted, time};

pub(super) const RULE: Rule = Rule {
    id: "C06",
    title: "gradients zeroed instead of dropped",
    category: FindingCategory::Copy,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit(
        "fills",
        4.0,
        "minimum number of fills per zero_grad, because a flat gradient buffer needs only one",
    )],
    page: page!("C06"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let regions = rank.outermost_named(|name| name.contains("zero_grad"));
    let zero = rank.names(|name| name == "aten::zero_" || name == "aten::_foreach_zero_");
    let fills: Vec<u32> = regions
        .iter()
        .flat_map(|region| rank.tree().subtree(*region))
        .copied()
        .filter(|row| rank.is_named(&zero, *row))
        .collect();
    let each_time = fills.len() as f64 / regions.len().max(1) as f64;
    if fills.is_empty() || each_time < limits.value("fills") {
        return None;
    }
    let work: Vec<u32> =
        fills.iter().flat_map(|row| rank.attribution().rows(rank.tree(), *row)).copied().collect();
    let host_ns = rank.total(&fills);
    let device_ns = rank.total(&work);
    let what = format!(
        "zero_grad fills {} with zeros each time: {} on the host and {} on the device per \
         step.",
        counted(each_time, "gradient"),
        time(rank.per_step(host_ns)),
        time(rank.per_step(device_ns))
    );
    let advice = "Call optimizer.zero_grad(set_to_none=True) (the default since PyTorch 2.0): the \
                  next backward writes gradients instead of adding to zeros.";
    let edits = vec![
        rank.edit(rank.whole(&fills), Action::Scale(0.0)),
        rank.edit(work, Action::Scale(0.0)),
    ];
    let found = RuleFindings::new(what, advice)
        .number("fills_each", each_time)
        .number("host_per_step_ns", rank.per_step(host_ns) as f64)
        .number("device_per_step_ns", rank.per_step(device_ns) as f64);
    // Host and device run at the same time, so the saving is at most the longer of the two.
    Some(found.shown_by(rank.collect_evidence(fills)).saves(host_ns.max(device_ns), edits))
}
