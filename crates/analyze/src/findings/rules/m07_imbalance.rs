//! Rule M07 finds ranks that have unequal shares of the same kind of work.

use crate::facts::job::{JobFacts, RankFacts, WindowKernel};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::product::Products;
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "M07",
    title: "work spread unevenly over ranks",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[
        limit("ratio", 1.3, "minimum ratio of the largest rank to the mean"),
        limit("time_pct", 1.0, "minimum excess of that rank over the mean, percent of the window"),
    ],
    page: page!("M07"),
    detect: Detect::Job(detect),
};

/// A function that lists the rows of a kind of work.
type ListRows = fn(&RankFacts<'_>) -> Vec<u32>;

/// Kinds of work that a sharding plan can move from one rank to another.
const KINDS: [(&str, ListRows); 3] = [
    ("embedding lookups", |rank| {
        list_rows(rank, |kernel| is_embedding(rank.name(kernel.row)) && !is_backward(rank, kernel))
    }),
    ("embedding updates", |rank| {
        list_rows(rank, |kernel| is_embedding(rank.name(kernel.row)) && is_backward(rank, kernel))
    }),
    ("matrix products", |rank| {
        let products = Products::new(rank);
        list_rows(rank, |kernel| products.contains(kernel))
    }),
];

fn list_rows(rank: &RankFacts<'_>, is_meant: impl Fn(&WindowKernel) -> bool) -> Vec<u32> {
    rank.compute_kernels().filter(|kernel| is_meant(kernel)).map(|kernel| kernel.row).collect()
}

/// Returns whether the name of a kernel shows that it works on embedding tables.
pub(super) fn is_embedding(name: &str) -> bool {
    // A rotary embedding rotates queries and keys of attention, and reads no table.
    let is_table = !name.contains("rotary") && !name.contains("Rotary");
    is_table && ["mbedding", "split_embed", "_tbe_"].iter().any(|part| name.contains(part))
}

/// Returns whether an embedding kernel belongs to the backward pass.
pub(super) fn is_backward(rank: &RankFacts<'_>, kernel: &WindowKernel) -> bool {
    let is_named = |name: &str| {
        ["ackward", "grad", "update_rows", "adagrad"].iter().any(|part| name.contains(part))
    };
    is_named(rank.name(kernel.row)) || is_named(rank.owner_name(kernel))
}

fn detect(job: &JobFacts<'_>, limits: &RuleLimits<'_>) -> Vec<(Vec<u32>, RuleFindings)> {
    if job.ranks.len() < 2 || !job.is_one_job() {
        return Vec::new();
    }
    KINDS.iter().filter_map(|(name, list)| uneven(job, name, *list, limits)).collect()
}

fn uneven(
    job: &JobFacts<'_>,
    name: &str,
    list: ListRows,
    limits: &RuleLimits<'_>,
) -> Option<(Vec<u32>, RuleFindings)> {
    let each: Vec<(Vec<u32>, i64)> = job
        .ranks
        .iter()
        .map(|rank| {
            let rows = list(rank);
            let ns = rank.total(&rows);
            (rows, ns / rank.step_count())
        })
        .collect();
    let mean = each.iter().map(|(_, ns)| ns).sum::<i64>() / each.len() as i64;
    let most = (0..each.len()).max_by_key(|at| (each[*at].1, std::cmp::Reverse(*at)))?;
    let (rank, (rows, ns)) = (&job.ranks[most], &each[most]);
    let ratio = *ns as f64 / mean.max(1) as f64;
    let excess = (ns - mean) * rank.step_count();
    if ratio < limits.value("ratio") || rank.share(excess) < limits.value("time_pct") {
        return None;
    }
    let least = each.iter().map(|(_, ns)| *ns).min().unwrap_or_default();
    let what = format!(
        "Rank {} has {} of {name} per step, {ratio:.1} times the mean of {}; the least loaded \
         rank has {}.",
        rank.rank(),
        time(*ns),
        time(mean),
        time(least)
    );
    let advice = "Shard by measured cost: move or split the largest tables of this rank \
                  (row-wise, column-wise), and plan with pooling factors as they are.";
    // A perfect plan gives each rank the mean, so the most loaded rank is scaled down to it.
    let share = mean as f64 / (*ns).max(1) as f64;
    let edits = vec![rank.edit(rows.clone(), Action::Scale(share))];
    let found = RuleFindings::new(what, advice)
        .about(name)
        .number("ratio", ratio)
        .number("excess_per_step_ns", (ns - mean) as f64);
    Some((
        vec![rank.rank()],
        found.shown_by(rank.collect_evidence(rows.iter().copied())).saves(excess, edits),
    ))
}

#[cfg(test)]
mod tests;
