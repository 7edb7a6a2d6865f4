//! Rule M08 finds collectives that the ranks begin together and end far apart, because the
//! transport is uneven.

use crate::facts::collectives::Matched;
use crate::facts::job::JobFacts;
use crate::findings::finding::{Confidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{counted, time};

pub(super) const RULE: Rule = Rule {
    id: "M08",
    title: "uneven network",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::Medium,
    limits: &[
        limit(
            "spread_ns",
            50_000.0,
            "minimum time between the first and the last end of a collective",
        ),
        limit(
            "spread_pct",
            20.0,
            "minimum time between the first and the last end, percent of the transfer",
        ),
        limit(
            "time_pct",
            1.0,
            "minimum sum of the times between first and last ends, percent of the window",
        ),
    ],
    page: page!("M08"),
    detect: Detect::Job(detect),
};

fn detect(job: &JobFacts<'_>, limits: &RuleLimits<'_>) -> Vec<(Vec<u32>, RuleFindings)> {
    if !job.is_one_job() {
        return Vec::new();
    }
    let is_skewed = |one: &&Matched| {
        let spread = one.end_spread_ns;
        let share = 100.0 * spread as f64 / one.transfer_ns.max(1) as f64;
        one.participants.len() > 1
            && spread >= limits.ns("spread_ns")
            && share >= limits.value("spread_pct")
            // Ranks that also began far apart are late for other reasons, so the ends must spread
            // twice as much as the starts.
            && one.arrival_spread_ns * 2 <= spread
    };
    let skewed: Vec<&Matched> = job.collectives().matched.iter().filter(is_skewed).collect();
    let lost: i64 = skewed.iter().map(|one| one.end_spread_ns).sum();
    let Some(worst) = skewed.iter().max_by_key(|one| one.end_spread_ns) else {
        return Vec::new();
    };
    let last_end = |one: &Matched| one.participants.iter().map(|p| p.end_ns).max();
    let slowest = worst.participants.iter().max_by_key(|p| p.end_ns).map_or(0, |p| p.rank);
    let Some(rank) = job.rank(slowest) else { return Vec::new() };
    if rank.share(lost) < limits.value("time_pct") {
        return Vec::new();
    }
    let what = format!(
        "In {} all ranks begin together, but end up to {} apart; rank {slowest} is last \
         to end the worst of them, {}.",
        counted(skewed.len() as f64, "collective"),
        time(worst.end_spread_ns),
        worst.name
    );
    let advice = "Look at the links of that rank: a NIC that fell back, a congested switch, a wrong \
                  NUMA node. The ranks' programs are not the cause.";
    let mut edits = Vec::new();
    for one in &skewed {
        let late = one.participants.iter().filter(|p| Some(p.end_ns) == last_end(one));
        for p in late.filter_map(|p| Some((job.rank(p.rank)?, p))) {
            let (rank, p) = p;
            let duration_ns = (p.end_ns - p.arrival_ns).max(1);
            let share = 1.0 - one.end_spread_ns as f64 / duration_ns as f64;
            edits.push(rank.edit(vec![p.row], Action::Scale(share.max(0.0))));
        }
    }
    let own = skewed.iter().flat_map(|one| &one.participants).filter(|p| p.rank == slowest);
    let evidence = rank.collect_evidence(own.map(|p| p.row));
    let found = RuleFindings::new(what, advice)
        .about(format!("rank {slowest}"))
        .number("collectives", skewed.len() as f64)
        .number("spread_max_ns", worst.end_spread_ns as f64);
    vec![(vec![slowest], found.shown_by(evidence).saves(lost, edits))]
}
