//! Rule K02 finds kernels in which a few threads do much work each while most of the device is
//! unused.

use crate::facts::job::{RankFacts, WindowKernel};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::kernels::short_name;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "K02",
    title: "too much work per thread",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit("elements", 32.0, "minimum number of elements per thread"),
        limit(
            "blocks_per_sm",
            2.0,
            "a kernel with fewer blocks per multiprocessor leaves part of the device idle",
        ),
        limit("kernel_ns", 50_000.0, "minimum duration of a kernel"),
        limit(
            "time_pct",
            1.0,
            "minimum time of kernels with too much work per thread, percent of the window",
        ),
    ],
    page: page!("K02"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let most = limits.value("blocks_per_sm");
    let elementwise = rank.names(is_elementwise);
    let coarse: Vec<(&WindowKernel, f64, f64)> = rank
        .compute_kernels()
        .filter(|kernel| kernel.duration >= limits.ns("kernel_ns"))
        .filter(|kernel| rank.is_named(&elementwise, kernel.row))
        .filter_map(|kernel| {
            let blocks = kernel.blocks_per_sm().filter(|blocks| *blocks < most)?;
            let threads = kernel.blocks() * kernel.threads_per_block();
            let each = elements(rank, kernel)? as f64 / threads.max(1) as f64;
            (each >= limits.value("elements")).then_some((kernel, blocks, each))
        })
        .collect();
    let time_ns: i64 = coarse.iter().map(|(kernel, ..)| kernel.duration).sum();
    let share = rank.share(time_ns);
    if coarse.is_empty() || share < limits.value("time_pct") {
        return None;
    }
    let lost = |(kernel, blocks, _): &(&WindowKernel, f64, f64)| {
        // More blocks fill more of the device, but are assumed to save at most nine tenths of a
        // kernel.
        kernel.duration as f64 * (1.0 - blocks / most).min(0.9)
    };
    let high: f64 = coarse.iter().map(lost).sum();
    let elements = coarse.iter().map(|(.., each)| *each).fold(0.0, f64::max);
    let rows: Vec<u32> = coarse.iter().map(|(kernel, ..)| kernel.row).collect();
    let evidence = rank.collect_evidence(rows.iter().copied());
    let what = format!(
        "{} works on up to {elements:.0} elements per thread with fewer than {most} blocks per \
         multiprocessor; such kernels take {} per step ({share:.1} % of the window).",
        evidence.first().map_or("", |evidence| short_name(&evidence.name)),
        time(rank.per_step(time_ns))
    );
    let advice = "Launch more blocks and loop less in each thread (a grid-stride loop over smaller \
                  chunks); for reductions, reduce in two passes.";
    let edits = vec![rank.edit(rows, Action::Scale(1.0 - high / time_ns.max(1) as f64))];
    let found = RuleFindings::new(what, advice).number("elements_per_thread_max", elements);
    Some(found.shown_by(evidence).saves(high as i64, edits))
}

/// Returns whether the name of a kernel shows an element-wise operation or a reduction.
pub(super) fn is_elementwise(name: &str) -> bool {
    ["elementwise", "reduce", "Reduce", "softmax", "triton_poi", "triton_red"]
        .iter()
        .any(|part| name.contains(part))
}

/// Returns the number of elements of the largest tensor of a kernel's operator, if the tensor
/// shapes are known.
pub(super) fn elements(rank: &RankFacts<'_>, kernel: &WindowKernel) -> Option<u64> {
    let tensors = rank.tensors(kernel.owner?)?;
    let sizes = tensors.dims.iter().filter(|dims| !dims.is_empty());
    sizes.map(|dims| dims.iter().product()).max()
}
