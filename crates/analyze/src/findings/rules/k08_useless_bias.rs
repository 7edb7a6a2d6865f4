//! Rule K08 finds convolutions that add a bias which the following batch norm removes again.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{agreeing, counted, time};

pub(super) const RULE: Rule = Rule {
    id: "K08",
    title: "bias before batch norm",
    category: FindingCategory::Kernel,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[limit(
        "layers_per_step",
        1.0,
        "minimum number of convolutions with a useless bias per step",
    )],
    page: page!("K08"),
    detect: Detect::Rank(detect),
};

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let convolutions = rank
        .outermost_named(|name| ["aten::conv1d", "aten::conv2d", "aten::conv3d"].contains(&name));
    let adds = rank.names(|name| name == "aten::add_");
    let mut layers = Vec::new();
    let mut biases = Vec::new();
    for row in convolutions.into_iter().filter(|row| is_normed(rank, *row)) {
        let inside = rank.tree().subtree(row).iter().copied();
        // Some libraries add the bias inside the convolution's kernel. In such a convolution only
        // the third input shows that there is a bias.
        let added: Vec<u32> = inside.filter(|row| rank.is_named(&adds, *row)).collect();
        let tensors = rank.tensors(row);
        let is_given =
            tensors.is_some_and(|of| of.dims.get(2).is_some_and(|bias| !bias.is_empty()));
        if !added.is_empty() || is_given {
            layers.push(row);
            biases.extend(added);
        }
    }
    let per_step = rank.count_per_step(layers.len());
    if layers.is_empty() || per_step < limits.value("layers_per_step") {
        return None;
    }
    let work: Vec<u32> =
        biases.iter().flat_map(|row| rank.attribution().rows(rank.tree(), *row)).copied().collect();
    let what = format!(
        "{} per step {} a bias that the batch norm behind them subtracts again: {} on \
         the device, {} on the host per step.",
        counted(per_step, "convolution"),
        agreeing(per_step, "adds", "add"),
        time(rank.per_step(rank.total(&work))),
        time(rank.per_step(rank.total(&biases)))
    );
    let advice = "Construct them with bias=False.";
    let high = rank.total(&work).max(rank.total(&biases));
    let edits = vec![
        rank.edit(work, Action::Scale(0.0)),
        rank.edit(rank.whole(&biases), Action::Scale(0.0)),
    ];
    let found = RuleFindings::new(what, advice).number("layers_per_step", per_step);
    Some(found.shown_by(rank.collect_evidence(layers)).saves(high, edits))
}

/// Returns whether the next operator under the same parent is a batch norm.
fn is_normed(rank: &RankFacts<'_>, row: u32) -> bool {
    let behind = rank.tree().range(row).end as usize;
    let next = rank.tree().nodes.get(behind).copied();
    let sibling = next.filter(|next| rank.tree().parent(*next) == rank.tree().parent(row));
    sibling.is_some_and(|next| rank.name(next).starts_with("aten::batch_norm"))
}
