//! Rule K09 finds optimizers that update parameters one by one, with several kernels for each.

use std::collections::BTreeSet;

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "K09",
    title: "unfused optimizer",
    category: FindingCategory::Kernel,
    side: CureSide::Host,
    confidence: Confidence::High,
    limits: &[
        limit("kernels", 32.0, "minimum number of kernels per optimizer step"),
        limit("fused_kernels", 8.0, "assumed number of kernels of a fused or foreach optimizer"),
    ],
    page: page!("K09"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let regions = rank.outermost_named(|name| {
        name.starts_with("Optimizer.step#") || name.contains("_single_tensor_")
    });
    // In a recording without a device, the operators themselves are the work.
    let is_host_alone = rank.scope.device_rows.is_empty();
    let kernels = |row: u32| match is_host_alone {
        true => operators(rank, row),
        false => rank.attribution().rows(rank.tree(), row).len(),
    };
    let is_many = |row: &u32| kernels(*row) as f64 > limits.value("kernels");
    let single = rank.names(|name| name.contains("_single_tensor_"));
    let is_single = |row: &u32| rank.is_named(&single, *row);
    let is_unfused = |row: &u32| is_many(row) || is_single(row);
    let seen: Vec<u32> = regions.iter().copied().filter(is_unfused).collect();
    let count: usize = seen.iter().map(|row| kernels(*row)).sum();
    if count == 0 {
        return None;
    }
    let each = count / seen.len();
    // The last optimizer step counts even if its kernels run after the window, because its host
    // time is inside.
    let names: BTreeSet<&str> = seen.iter().map(|row| rank.name(*row)).collect();
    let is_such = |row: &u32| names.contains(rank.name(*row));
    let many: Vec<u32> = regions.into_iter().filter(is_such).collect();
    let host_ns = rank.total(&many);
    let keep = (limits.value("fused_kernels") / each as f64).min(1.0);
    let verb = if is_host_alone { "runs" } else { "launches" };
    let noun = if is_host_alone { "operators" } else { "kernels" };
    let what = format!(
        "{} {verb} {each} {noun} each time, {} of the host per step; a fused one needs about {:.0}.",
        rank.name(many[0]),
        time(rank.per_step(host_ns)),
        limits.value("fused_kernels")
    );
    let advice = "Construct the optimizer with fused=True or foreach=True, or use apex's or \
                  FBGEMM's fused variant.";
    let edits = vec![rank.edit(rank.whole(&many), Action::Scale(keep))];
    let found = RuleFindings::new(what, advice)
        .number("kernels_each", each as f64)
        .number("host_per_step_ns", rank.per_step(host_ns) as f64);
    let high = (host_ns as f64 * (1.0 - keep)) as i64;
    Some(found.shown_by(rank.collect_evidence(many)).saves(high, edits))
}

/// Counts the leaf operators inside a row. The count is 0 if the row contains a fused or foreach
/// implementation.
fn operators(rank: &RankFacts<'_>, row: u32) -> usize {
    let is_many_at_once = |row: &u32| {
        let name = rank.name(*row);
        ["_fused_", "_foreach_", "Fused"].iter().any(|part| name.contains(part))
    };
    let inside = rank.tree().subtree(row);
    if inside.iter().any(is_many_at_once) {
        return 0;
    }
    inside.iter().filter(|row| rank.tree().children(**row).next().is_none()).count()
}
