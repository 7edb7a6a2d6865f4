//! K07: matrix products whose sizes keep tensor cores from working well.

use super::finding::{Confidence, FindingCategory, RuleFindings};
use super::product::is_product;
use super::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use super::text::time;
use crate::graph::edit::Action;
use crate::job::{RankFacts, Tensors, WindowKernel};

pub(super) const RULE: Rule = Rule {
    id: "K07",
    title: "misaligned matrix products",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::Low,
    limits: &[
        limit("time_pct", 1.0, "time of such kernels, percent of the window"),
        limit("gain_pct", 25.0, "what alignment is taken to gain, percent of their time"),
    ],
    page: page!("K07"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let bad: Vec<(&WindowKernel, String)> = rank
        .compute_kernels()
        .filter(|kernel| is_product(rank, kernel))
        .filter_map(|kernel| {
            let tensors = rank.tensors(kernel.owner?)?;
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
    let what = format!(
        "Matrix products of sizes that tensor cores do not like take {} per step ({share:.1} % of the \
         window); {} has {sizes}.",
        time(rank.per_step(time_ns)),
        rank.owner_name(worst)
    );
    let advice = "Pad sizes (features, vocabulary, hidden width) to multiples of 8 for fp16 and bf16, \
                  16 for fp8, 4 for TF32.";
    let gain = (limits.value("gain_pct") / 100.0).min(1.0);
    let owner = rank.owner_name(worst).to_owned();
    let edits = vec![rank.edit(rows.clone(), Action::Scale(1.0 - gain))];
    let found = RuleFindings::new(what, advice)
        .about(owner)
        .number("time_per_step_ns", rank.per_step(time_ns) as f64);
    Some(found.shown_by(rank.proofs(rows)).saves((time_ns as f64 * gain) as i64, edits))
}

/// The sizes of a product of which one that lies side by side in memory is no multiple of what its
/// type needs: the columns of either factor. How many rows the first one has does not matter.
fn misaligned(tensors: &Tensors, kernel: &str) -> Option<String> {
    let matrices = tensors.dims.iter().zip(&tensors.types).filter(|(dims, _)| dims.len() >= 2);
    let matrices: Vec<_> = matrices.collect();
    // Of addmm the first may be a matrix too; the factors come last.
    let factors = &matrices[matrices.len().checked_sub(2)?..];
    let step = match factors[0].1.as_str() {
        "c10::Half" | "c10::BFloat16" => 8,
        "c10::Float8_e4m3fn" | "c10::Float8_e5m2" => 16,
        "float" if kernel.contains("tf32") => 4,
        _ => return None,
    };
    let is_bad = |dims: &[u64]| dims.last().is_some_and(|size| size % step != 0);
    // Such a kernel was chosen because all sizes that matter are multiples.
    let is_aligned = kernel.contains("align8") || kernel.contains("align16");
    if is_aligned || !factors.iter().any(|(dims, _)| is_bad(dims)) {
        return None;
    }
    let text = |dims: &[u64]| dims.iter().map(u64::to_string).collect::<Vec<_>>().join("×");
    Some(format!("{} · {}", text(factors[0].0), text(factors[1].0)))
}
