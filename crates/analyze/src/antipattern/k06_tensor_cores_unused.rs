//! K06: matrix products and convolutions that run without tensor cores.

use super::finding::{Category, Confidence, Found};
use super::rule::{Detect, Limits, Rule, Side, limit, page};
use super::text::time;
use crate::graph::edit::Action;
use crate::job::{Kernel, RankFacts};
use crate::kernels::short_name;

pub(super) const RULE: Rule = Rule {
    id: "K06",
    title: "tensor cores unused",
    category: Category::Kernel,
    side: Side::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit("time_pct", 20.0, "time of such kernels, percent of compute"),
        limit("speedup_tf32", 2.0, "speed-up taken for TF32, compute capability 8.0 and up"),
        limit("speedup_fp16", 3.0, "speed-up taken for fp16 before 8.0"),
    ],
    page: page!("K06"),
    detect: Detect::Rank(detect),
};

/// Parts of the names of kernels that use tensor cores.
const TENSOR_CORES: [&str; 15] = [
    "s884",
    "h884",
    "i8816",
    "s1688",
    "h1688",
    "s16816",
    "h16816",
    "16832",
    "tensorop",
    "tensor_op",
    "hmma",
    "wgmma",
    "gmma",
    "_tf32",
    "mma_",
];
/// Parts of the names of products and convolutions.
pub(super) const PRODUCTS: [&str; 9] =
    ["gemm", "Gemm", "GEMM", "conv", "Conv", "scudnn", "wgrad", "dgrad", "nvjet"];
/// Operators whose kernels could use tensor cores.
const OPERATORS: [&str; 12] = [
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::linear",
    "aten::matmul",
    "aten::convolution_backward",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_backward_input",
    "aten::cudnn_convolution_backward_weight",
    "aten::_convolution",
    "aten::conv2d",
];

fn detect(rank: &RankFacts<'_>, limits: &Limits<'_>) -> Option<Found> {
    let capability =
        |kernel: &Kernel| rank.device_info(kernel.device).map(|d| d.compute_capability);
    let plain: Vec<&Kernel> = rank
        .compute_kernels()
        .filter(|kernel| capability(kernel).is_some_and(|of| of >= (7, 0)))
        .filter(|kernel| is_product(rank, kernel) && !uses_tensor_cores(rank.name(kernel.row)))
        .collect();
    let time_ns: i64 = plain.iter().map(|kernel| kernel.duration).sum();
    let share = 100.0 * time_ns as f64 / rank.compute_ns().max(1) as f64;
    let first = plain.first().filter(|_| share >= limits.of("time_pct"))?;
    let is_new = capability(first).is_some_and(|of| of >= (8, 0));
    let speedup = limits.of(if is_new { "speedup_tf32" } else { "speedup_fp16" }).max(1.0);
    let rows: Vec<u32> = plain.iter().map(|kernel| kernel.row).collect();
    let proofs = rank.proofs(rows.iter().copied());
    let what = format!(
        "{share:.0} % of compute time ({} per step) goes to matrix products and convolutions \
         without tensor cores, most to {}.",
        time(rank.per_step(time_ns)),
        proofs.first().map_or("", |proof| short_name(&proof.name))
    );
    let advice = if is_new {
        "Allow TF32 (torch.set_float32_matmul_precision(\"high\")) or train under \
         torch.autocast with bfloat16."
    } else {
        "Train under torch.autocast with float16 and a gradient scaler; keep sizes multiples of 8."
    };
    let edits = vec![rank.edit(rows, Action::Scale(1.0 / speedup))];
    let found = Found::new(what, advice)
        .number("time_pct_of_compute", share)
        .number("time_per_step_ns", rank.per_step(time_ns) as f64);
    Some(found.shown_by(proofs).saves((time_ns as f64 * (1.0 - 1.0 / speedup)) as i64, edits))
}

/// Whether a kernel is a matrix product or a convolution.
pub(super) fn is_product(rank: &RankFacts<'_>, kernel: &Kernel) -> bool {
    let name = rank.name(kernel.row);
    let is_named = PRODUCTS.iter().any(|part| name.contains(part));
    let is_moving =
        ["nchwToNhwc", "nhwcToNchw", "im2col", "convert", "copy", "reduce", "embedding"];
    let is_owned = OPERATORS.contains(&rank.owner_name(kernel)) && name.contains("cutlass");
    (is_named || is_owned) && !is_moving.iter().any(|part| name.contains(part))
}

fn uses_tensor_cores(name: &str) -> bool {
    TENSOR_CORES.iter().any(|part| name.contains(part))
}
