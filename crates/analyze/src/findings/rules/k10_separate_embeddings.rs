//! Rule K10 finds embedding tables that are looked up by a kernel each.

use std::collections::{BTreeMap, BTreeSet};

use super::l01_tiny_kernels::host_rows;
use super::m07_imbalance::{is_backward, is_embedding};
use crate::facts::job::{RankFacts, WindowKernel};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;
use trace::store::EventKind;

pub(super) const RULE: Rule = Rule {
    id: "K10",
    title: "a kernel per embedding table",
    category: FindingCategory::Kernel,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[limit(
        "kernels_per_step",
        8.0,
        "minimum number of lookups or updates of one shape per step",
    )],
    page: page!("K10"),
    detect: Detect::Rank(detect),
};

/// Parts of the names of kernels that look up many tables at once.
const BATCHED: [&str; 5] = ["split_embedding", "batched", "tbe", "codegen", "grouped"];

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    by_operator(rank, limits).or_else(|| by_kernel(rank, limits))
}

/// Detects separate tables by the host operators of lookups, their backward passes and their sparse
/// updates, one of each per table. One operator for all tables is assumed to cost the host as much
/// as one operator for a single table. Kernels keep their times.
fn by_operator(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let is_lookup = |name: &str| {
        let is_table = name.contains("embedding_bag") || name.contains("EmbeddingBag");
        let is_batched = BATCHED.iter().any(|part| name.contains(part));
        (is_table || name == "aten::embedding" || name.contains("EmbeddingBackward")) && !is_batched
    };
    let mut groups: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    // An optimizer adds a sparse gradient to the rows of a table by indices.
    let updates = rank.outermost_named(|name| name == "aten::index_add_").into_iter();
    let is_operator = |row: &u32| rank.scope.trace.kind(*row) == EventKind::Operator;
    let updates = updates.filter_map(|row| rank.tree().ancestors(row).filter(is_operator).last());
    let rows: BTreeSet<u32> = rank.outermost_named(is_lookup).into_iter().chain(updates).collect();
    for row in rows {
        groups.entry(rank.name(row)).or_default().push(row);
    }
    groups.retain(|_, rows| rank.count_per_step(rows.len()) >= limits.value("kernels_per_step"));
    // Sparse updates without lookups belong to something else, such as a graph network.
    let lookups = groups.iter().filter(|(name, _)| is_lookup(name));
    let most = lookups.map(|(_, rows)| rows).max_by_key(|rows| rows.len())?;
    let per_step = rank.count_per_step(most.len());
    let rows: Vec<u32> = groups.values().flatten().copied().collect();
    let what = format!(
        "{per_step:.0} tables are looked up, differentiated and updated by operators of their own, which \
         take the host {} per step.",
        time(rank.per_step(rank.total(&rows)))
    );
    let advice = "Use one lookup for all tables: one nn.EmbeddingBag with offset ids, torchrec's \
                  EmbeddingBagCollection, or FBGEMM's SplitTableBatchedEmbeddingBagsCodegen.";
    let (mut edits, mut lost) = (Vec::new(), 0.0);
    for rows in groups.values() {
        // One lookup per step remains, because all tables are then looked up together.
        let keep = 1.0 / rank.count_per_step(rows.len());
        lost += rank.total(rows) as f64 * (1.0 - keep);
        edits.push(rank.edit(rank.whole(rows), Action::Scale(keep)));
    }
    let found = RuleFindings::new(what, advice).number("lookups_per_step", per_step);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(lost as i64, edits))
}

/// Detects separate tables by kernels, whose operators have other names or were not recorded.
fn by_kernel(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let separate =
        rank.names(|name| is_embedding(name) && !BATCHED.iter().any(|part| name.contains(part)));
    let is_one = |kernel: &&WindowKernel| rank.is_named(&separate, kernel.row);
    // Lookups with rows of equal width have equal thread blocks, so the block size groups tables
    // that could be batched.
    let mut groups: BTreeMap<(bool, Option<[u32; 3]>), Vec<&WindowKernel>> = BTreeMap::new();
    for kernel in rank.compute_kernels().filter(is_one) {
        let block = kernel.shape.map(|shape| shape.block);
        groups.entry((is_backward(rank, kernel), block)).or_default().push(kernel);
    }
    groups.retain(|_, kernels| {
        rank.count_per_step(kernels.len()) >= limits.value("kernels_per_step")
    });
    let kernels: Vec<&WindowKernel> = groups.into_values().flatten().collect();
    let rows: Vec<u32> = kernels.iter().map(|kernel| kernel.row).collect();
    let calls: Vec<u32> = rows.iter().filter_map(|row| rank.scope.links().call(*row)).collect();
    if rows.is_empty() {
        return None;
    }
    // The loss is the host time of the lookups' operators minus the device time of their kernels.
    let owners: Vec<u32> = calls
        .iter()
        .map(|call| rank.tree().operator(rank.scope.trace, *call).unwrap_or(*call))
        .collect();
    let lost = (rank.total(&owners) - rank.total(&rows)).max(0);
    let per_step = rank.count_per_step(rows.len());
    let what = format!(
        "{per_step:.0} kernels per step look up or update one embedding table each; their operators \
         take the host {} per step, the kernels {}.",
        time(rank.per_step(rank.total(&owners))),
        time(rank.per_step(rank.total(&rows)))
    );
    let advice = "Use table-batched embeddings: torchrec's EmbeddingBagCollection or FBGEMM's \
                  SplitTableBatchedEmbeddingBagsCodegen, with the optimizer fused into the backward.";
    let behind_first = calls.get(1..).unwrap_or_default();
    let edits = vec![rank.edit(host_rows(rank, behind_first), Action::Scale(0.0))];
    let found = RuleFindings::new(what, advice).number("kernels_per_step", per_step);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(lost, edits))
}
