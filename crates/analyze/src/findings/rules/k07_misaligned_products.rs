//! Rule K07 finds matrix products whose sizes keep tensor cores from working well.

use crate::facts::job::{RankFacts, Tensors, WindowKernel};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::product::Products;
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::tables::kernels::short_name;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "K07",
    title: "misaligned matrix products",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::Low,
    limits: &[
        limit("time_pct", 1.0, "minimum time of misaligned products, percent of the window"),
        limit("gain_pct", 25.0, "assumed time that alignment saves, percent of the products' time"),
    ],
    page: page!("K07"),
    detect: Detect::Rank(detect),
};

const PAD: &str = "Pad the size that is named (features, vocabulary, hidden width) to a multiple of 8 for fp16 \
                   and bf16, 16 for fp8, 4 for TF32.";
const ATTENTION: &str = " It is a product of attention: part of its time goes to the matrix of weights, which is as \
                         long and wide as the sequence and lies in memory, whatever its alignment.";
const FUSE: &str = "Use fused attention (torch.nn.functional.scaled_dot_product_attention): it never writes the \
                    matrix of weights to memory, and pads inside its kernel. Otherwise pad the sequence, with a \
                    mask, to a multiple of 8.";

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let products = Products::new(rank);
    let bad: Vec<(&WindowKernel, Misaligned)> = rank
        .compute_kernels()
        .filter(|kernel| products.contains(kernel))
        .filter_map(|kernel| {
            let tensors = kernel.owner.and_then(|owner| rank.tensors(owner));
            Some((kernel, misaligned(tensors, rank.name(kernel.row))?))
        })
        .collect();
    let rows: Vec<u32> = bad.iter().map(|(kernel, _)| kernel.row).collect();
    let time_ns = rank.total(&rows);
    let share = rank.share(time_ns);
    let (worst, sizes) = bad.iter().max_by_key(|(kernel, _)| (kernel.duration, kernel.row))?;
    if share < limits.value("time_pct") {
        return None;
    }
    let owner = rank.owner_name(worst).to_owned();
    let what = format!(
        "Matrix products whose sizes are misaligned for tensor cores take {} per step ({share:.1} % of \
         the window); {} has {}.{}",
        time(rank.per_step(time_ns)),
        if owner.is_empty() { short_name(rank.name(worst.row)) } else { &owner },
        sizes.words,
        if sizes.is_attention { ATTENTION } else { "" }
    );
    let gain = (limits.value("gain_pct") / 100.0).min(1.0);
    let edits = vec![rank.edit(rows.clone(), Action::Scale(1.0 - gain))];
    let found = RuleFindings::new(what, if sizes.is_attention { FUSE } else { PAD })
        .about(owner)
        .number("time_per_step_ns", rank.per_step(time_ns) as f64);
    Some(found.shown_by(rank.collect_evidence(rows)).saves((time_ns as f64 * gain) as i64, edits))
}

/// A dimension of a product that is not a multiple of the required alignment.
struct Misaligned {
    words: String,
    /// Whether one matrix is square with sides of the misaligned size, as matrices of attention
    /// weights are.
    is_attention: bool,
}

/// Finds a contiguous dimension of a product that is not a multiple of the alignment of its type.
/// The contiguous dimension is the number of columns of either factor. The number of rows of the
/// first factor does not matter. A kernel that reads only one or two elements at a time was chosen
/// because of such a size.
fn misaligned(tensors: Option<&Tensors>, kernel: &str) -> Option<Misaligned> {
    let alignment = alignment(kernel);
    let is_chosen = matches!(alignment, Some(1 | 2));
    if alignment.is_some_and(|numbers| numbers >= 8) {
        return None;
    }
    let kernel_sizes = || Misaligned {
        words: format!("kernels that read {} at a time", each(alignment)),
        is_attention: false,
    };
    let Some(tensors) = tensors else { return is_chosen.then(kernel_sizes) };
    let matrices = tensors.dims.iter().zip(&tensors.types).filter(|(dims, _)| dims.len() >= 2);
    let matrices: Vec<_> = matrices.collect();
    let step = matrices.last().and_then(|(_, kind)| step(kind, kernel, is_chosen));
    let odd = |step: u64| {
        let last = |dims: &[u64]| dims.last().copied().filter(|size| *size > 1 && size % step != 0);
        // The first tensor of `addmm` may be a matrix too, but the factors are always the last two.
        let factors = &matrices[matrices.len().saturating_sub(2)..];
        let sizes = factors.iter().filter_map(|(dims, _)| last(dims));
        (sizes.min(), factors)
    };
    let Some((size, factors)) = step.map(odd) else { return is_chosen.then(kernel_sizes) };
    let (Some(size), Some(step)) = (size, step) else { return is_chosen.then(kernel_sizes) };
    let text = |dims: &[u64]| dims.iter().map(u64::to_string).collect::<Vec<_>>().join("×");
    let shown: Vec<String> = factors.iter().map(|(dims, _)| text(dims)).collect();
    Some(Misaligned {
        words: format!("{}, and {size} is not a multiple of {step}", shown.join(" · ")),
        is_attention: is_attention(factors.iter().map(|(dims, _)| dims.as_slice()), size),
    })
}

/// Returns the alignment that a data type needs, in elements.
fn step(kind: &str, kernel: &str, is_chosen: bool) -> Option<u64> {
    match kind {
        "c10::Half" | "c10::BFloat16" => Some(8),
        "c10::Float8_e4m3fn" | "c10::Float8_e5m2" => Some(16),
        // For float32, only the kernel name shows whether tensor cores are used.
        "float" if is_chosen || kernel.contains("tf32") => Some(4),
        _ => None,
    }
}

/// Parses how many elements a CUTLASS kernel reads at a time, which its name states as in `align8`.
fn alignment(kernel: &str) -> Option<u64> {
    let (_, behind) = kernel.split_once("align")?;
    let end = behind.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(behind.len());
    behind[..end].parse().ok()
}

fn each(alignment: Option<u64>) -> &'static str {
    if alignment == Some(1) { "one number" } else { "two numbers" }
}

/// Returns whether batched factors produce or use a square matrix with sides of a given size.
fn is_attention<'a>(factors: impl Iterator<Item = &'a [u64]>, size: u64) -> bool {
    let factors: Vec<&[u64]> = factors.collect();
    let [first, second] = factors.as_slice() else { return false };
    let ([_, rows, columns], [_, _, others]) = (*first, *second) else { return false };
    *rows == size && (*columns == size || *others == size)
}
