//! Rule H12 finds operators that cost the host the most time but cost the step nothing.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::{EventKind, StringId};

use crate::facts::job::{JobFacts, RankFacts};
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::critical_path::{Path, PathCategory};
use crate::text::time;

pub(super) const RULE: Rule = Rule {
    id: "H12",
    title: "host time that costs nothing",
    category: FindingCategory::Host,
    side: CureSide::Device,
    confidence: Confidence::Medium,
    limits: &[limit(
        "time_pct",
        5.0,
        "minimum self time of an operator on the host, percent of the window",
    )],
    page: page!("H12"),
    detect: Detect::Job(detect),
};

fn detect(job: &JobFacts<'_>, limits: &RuleLimits<'_>) -> Vec<(Vec<u32>, RuleFindings)> {
    let hotspots = |(rank, path): (&RankFacts<'_>, &Path)| {
        Some((vec![rank.rank()], harmless(rank, path, limits)?))
    };
    // The finding of one rank is enough, because the finding is only informational.
    job.ranks.iter().zip(&job.paths().ranks).filter_map(hotspots).take(1).collect()
}

fn harmless(rank: &RankFacts<'_>, path: &Path, limits: &RuleLimits<'_>) -> Option<RuleFindings> {
    let trace = rank.scope.trace;
    // Operators on the critical path have time of these categories.
    let on_path: BTreeSet<&str> = path
        .contributors
        .iter()
        .filter(|part| {
            use PathCategory::{DataLoading, HostOperator, SynchronizationReturn};
            matches!(part.category, DataLoading | HostOperator | SynchronizationReturn)
        })
        .map(|part| part.name.as_str())
        .collect();
    // PyTorch 1.8 recorded steps as operators, but a step is not a hotspot.
    let left_out = rank.names(|name| on_path.contains(name) || name.starts_with("ProfilerStep#"));
    let is_harmless = |row: &&u32| {
        trace.kind(**row) == EventKind::Operator
            && !rank.is_named(&left_out, **row)
            && rank.scope.starts_inside(**row)
    };
    // The own time of the operators, summed by name.
    let mut named: BTreeMap<StringId, i64> = BTreeMap::new();
    let mut rows = Vec::new();
    for row in rank.tree().nodes.iter().filter(is_harmless) {
        let inside: i64 = rank.tree().children(*row).map(|child| rank.duration(child)).sum();
        let own = (rank.duration(*row) - inside).max(0);
        *named.entry(trace.slices.name[*row as usize]).or_default() += own;
        rows.push((*row, own));
    }
    named.retain(|_, ns| rank.share(*ns) >= limits.value("time_pct"));
    rows.retain(|(row, _)| named.contains_key(&trace.slices.name[*row as usize]));
    let total: i64 = named.values().sum();
    let evidence = rank.collect_timed_evidence(rows);
    let names: Vec<&str> = evidence.iter().take(3).map(|evidence| evidence.name.as_str()).collect();
    let what = format!(
        "{} take {} of the host per step and never lie on the critical path.",
        names.join(", "),
        time(rank.per_step(total))
    );
    let advice = "Leave them: making them faster would not shorten a step.";
    let found =
        RuleFindings::new(what, advice).number("time_per_step_ns", rank.per_step(total) as f64);
    (!named.is_empty()).then(|| found.shown_by(evidence))
}
