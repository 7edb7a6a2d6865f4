//! Rule M06 finds a rank that repeatedly arrives last at collectives, so that all other ranks wait
//! for it.

use crate::facts::job::JobFacts;
use crate::findings::finding::{Confidence, Evidence, FindingCategory, RuleFindings};
use crate::findings::rule::{CureSide, Detect, Rule, RuleLimits, limit, page};
use crate::graph::edit::Action;
use crate::text::{counted, time};

pub(super) const RULE: Rule = Rule {
    id: "M06",
    title: "straggling rank",
    category: FindingCategory::Communication,
    side: CureSide::Device,
    confidence: Confidence::High,
    limits: &[
        limit(
            "last_pct",
            50.0,
            "minimum share of collectives at which the rank arrives last, percent",
        ),
        limit(
            "delay_pct",
            1.0,
            "minimum time by which the rank arrives after the second last one, percent of the window",
        ),
        limit("collectives", 3.0, "minimum number of collectives"),
    ],
    page: page!("M06"),
    detect: Detect::Job(detect),
};

fn detect(job: &JobFacts<'_>, limits: &RuleLimits<'_>) -> Vec<(Vec<u32>, RuleFindings)> {
    if job.ranks.len() < 2 || !job.is_one_job() {
        return Vec::new();
    }
    job.stragglers().ranks.iter().filter_map(|one| late(job, one, limits)).collect()
}

fn late(
    job: &JobFacts<'_>,
    one: &crate::tables::stragglers::Straggler,
    limits: &RuleLimits<'_>,
) -> Option<(Vec<u32>, RuleFindings)> {
    let rank = job.rank(one.rank)?;
    let is_often = one.last_pct? >= limits.value("last_pct");
    let is_long = rank.share(one.caused_delay_ns) >= limits.value("delay_pct");
    if !is_often || !is_long || (one.collectives as f64) < limits.value("collectives") {
        return None;
    }
    let cause = match (one.began_late_ns, one.cause) {
        (Some(late), _) => format!(
            " It begins the window {} later than any other rank: it lags behind from before the recording.",
            time(late)
        ),
        (None, Some(cause)) => format!(
            " It spends {} more than the others on {}{}.",
            time(one.cause_ns),
            cause.name().replace('_', " "),
            if one.cause_name.is_empty() {
                String::new()
            } else {
                format!(", most in {}", one.cause_name)
            }
        ),
        (None, None) => " The window does not show the reason.".to_owned(),
    };
    let what = format!(
        "Rank {} comes last to {} of {}; the others wait {} per step for it.{cause}",
        one.rank,
        one.times_last,
        counted(one.collectives as f64, "collective"),
        time(rank.per_step(one.caused_delay_ns))
    );
    let advice = "Look at this rank first: its findings, its share of the tables (M07), its host \
                  and its device's clocks. What the others wait for is not the network.";
    // Each collective gets an edit of its own, because the rank is late by a different time at
    // each.
    let late =
        job.collectives().matched.iter().filter(|matched| {
            matched.last_rank == Some(one.rank) && matched.participants.len() > 1
        });
    let own = |matched: &crate::facts::collectives::Matched| {
        matched.participants.iter().find(|p| p.rank == one.rank).map(|p| p.row)
    };
    let edits = late
        .clone()
        .filter_map(|matched| {
            let rows = vec![own(matched)?];
            Some(rank.edit(rows, Action::ArriveEarlier(matched.late_by_ns)))
        })
        .collect();
    let evidence: Vec<Evidence> = rank.collect_timed_evidence(
        late.filter_map(|matched| Some((own(matched)?, matched.late_by_ns))),
    );
    let found = RuleFindings::new(what, advice)
        .about(format!("rank {}", one.rank))
        .number("times_last", one.times_last as f64)
        .number("collectives", one.collectives as f64)
        .number("delay_per_step_ns", rank.per_step(one.caused_delay_ns) as f64);
    Some((vec![one.rank], found.shown_by(evidence).saves(one.caused_delay_ns, edits)))
}
