//! Rule H11 finds Python loops that take a tensor apart, one index at a time.

use crate::facts::job::RankFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "H11",
    title: "indexing in a Python loop",
    category: FindingCategory::Host,
    side: CureSide::Host,
    confidence: Confidence::Medium,
    limits: &[
        limit("repeats", 10.0, "minimum number of repetitions of the same operators in a row"),
        limit("time_pct", 1.0, "minimum time of the loops on the host, percent of the window"),
    ],
    page: page!("H11"),
    detect: Detect::Rank(detect),
};

/// Maximum number of operators in the body of such a loop.
const BODY: usize = 16;

fn detect(rank: &RankFacts<'_>, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let selects = rank.names(|name| name == "aten::select");
    let mut loops: Vec<(Vec<u32>, usize)> = Vec::new();
    let mut add = |siblings: Vec<u32>| {
        if siblings.iter().any(|row| rank.is_named(&selects, *row)) {
            loops.extend(repeats(rank, &siblings, &selects, limits.value("repeats") as usize));
        }
    };
    rank.tree().threads.iter().for_each(|thread| add(rank.tree().roots_of(thread).collect()));
    for row in &rank.tree().nodes {
        let is_parent =
            // A loop that is worth reporting has many rows, so small subtrees are skipped to keep
            // the search fast.
            !rank.scope.trace.kind(*row).is_call() && rank.tree().subtree(*row).len() > 10;
        if is_parent {
            add(rank.tree().children(*row).collect());
        }
    }
    loops.retain(|(rows, _)| rank.scope.starts_inside(rows[0]));
    let span = |(rows, _): &(Vec<u32>, usize)| match rows.last() {
        Some(last) => rank.end(*last) - rank.start(rows[0]),
        None => 0,
    };
    let time_ns: i64 = loops.iter().map(span).sum();
    let share = rank.share(time_ns);
    let (longest, repeated) = loops.iter().max_by_key(|(rows, _)| rows.len())?;
    if share < limits.value("time_pct") {
        return None;
    }
    let body = longest.len() / repeated;
    let names: Vec<&str> = longest[..body].iter().map(|row| rank.name(*row)).collect();
    let what = format!(
        "A loop takes a tensor apart: {} repeat up to {repeated} times in a row; such loops take the \
         host {} per step ({share:.1} % of the window).",
        names.join(", "),
        time(rank.per_step(time_ns))
    );
    let advice = "Work on the whole tensor: index with a tensor of indices (gather, index_select), \
                  unbind once, or vectorize with vmap.";
    // One vectorized operation is assumed to cost as much as a single repetition of the loop.
    let lost = loops.iter().map(|one| span(one) - span(one) / one.1 as i64).sum();
    let rows: Vec<u32> =
        loops.iter().flat_map(|(rows, n)| rows[rows.len() / n..].to_vec()).collect();
    let edits = vec![
        rank.edit(rank.whole(&rows), Action::Scale(0.0)),
        rank.edit(rows.clone(), Action::CloseGap),
    ];
    let found = RuleFindings::new(what, advice)
        .number("repeats_max", *repeated as f64)
        .number("loops_per_step", rank.count_per_step(loops.len()))
        .number("time_per_step_ns", rank.per_step(time_ns) as f64);
    Some(found.shown_by(rank.collect_evidence(rows)).saves(lost, edits))
}

/// Finds sibling operators that repeat a group beginning with a select, and counts the repetitions.
fn repeats(
    rank: &RankFacts<'_>,
    siblings: &[u32],
    selects: &[bool],
    least: usize,
) -> Vec<(Vec<u32>, usize)> {
    let name = |at: usize| rank.scope.trace.slices.name[siblings[at] as usize];
    let is_select = |at: usize| rank.is_named(selects, siblings[at]);
    let mut found = Vec::new();
    let mut at = 0;
    // The distance between two selects is the length of the body, whose names must then repeat.
    while at < siblings.len() {
        let ahead = at + 1..siblings.len().min(at + 1 + BODY);
        let next = if is_select(at) { ahead.clone().find(|next| is_select(*next)) } else { None };
        let Some(body) = next.map(|next| next - at) else {
            at += 1;
            continue;
        };
        let mut end = at + body;
        while end + body <= siblings.len() && (0..body).all(|i| name(at + i) == name(end + i)) {
            end += body;
        }
        let count = (end - at) / body;
        if count >= least.max(2) {
            found.push((siblings[at..end].to_vec(), count));
            at = end;
        } else {
            at += 1;
        }
    }
    found
}
