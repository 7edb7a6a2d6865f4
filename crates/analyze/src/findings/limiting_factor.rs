//! Explains why a remedy saves less than the total time of its rows, by finding what limits the
//! step once they are gone and which rank waits for which.

use std::collections::BTreeMap;

use super::finding::{Finding, FindingCategory, LimitingFactor, WaitFor};
use crate::facts::job::JobFacts;
use crate::graph::critical_path::{Reach, RelaxedGraph, by_party, walk_back};
use crate::text::time;

/// Findings whose rows take less than this share of a step, in percent, get no explanation.
const ROWS_PCT: f64 = 5.0;
/// A saving below this share of the total time of its rows needs an explanation.
const CONTRADICTS: f64 = 0.2;
/// Maximum number of ranks that the explanation names.
const NAMED: usize = 2;

/// Returns whether a finding saves so much less than the time of its rows that it needs an
/// explanation.
pub(super) fn contradicts(finding: &Finding, step_ns: i64) -> bool {
    finding.saving.is_some_and(|saving| {
        let high_pct = 100.0 * saving.high_ns as f64 / step_ns.max(1) as f64;
        high_pct >= ROWS_PCT && (saving.mid_ns as f64) < CONTRADICTS * saving.high_ns as f64
    })
}

/// Finds what limits the step of one rank on a graph that was edited and relaxed.
pub(super) fn find_limiting_factor(
    job: &JobFacts<'_>,
    edited: RelaxedGraph<'_>,
    at: usize,
) -> LimitingFactor {
    let RelaxedGraph { measured, times, .. } = edited;
    let path = walk_back(edited, at, Reach::Rank);
    let spent = path.map(|stretch| (stretch.category, stretch.end - stretch.start));
    let [(_, host), (_, mut device), (_, wait)] = by_party(spent);
    // Devices that lag behind the host finish after the window, in a time in which only they work.
    let behind = measured.length_ns(at, times) - measured.host_ns(at, times);
    device += behind.max(0);
    let whole = (host + device + wait).max(1) as f64;
    let share = |ns: i64| (1e3 * ns as f64 / whole).round() / 10.0;
    let rank = measured.ranks[at].rank;
    LimitingFactor {
        rank,
        host_pct: share(host),
        device_pct: share(device),
        wait_pct: share(wait),
        waits: waits(job, rank),
    }
}

/// Returns the ranks for which a rank waits in collectives, longest wait first.
fn waits(job: &JobFacts<'_>, rank: u32) -> Vec<WaitFor> {
    let Some(facts) = job.rank(rank) else { return Vec::new() };
    let mut by_rank: BTreeMap<u32, (i64, u64)> = BTreeMap::new();
    for one in &job.collectives().matched {
        let own = one.participants.iter().filter(|part| part.rank == rank);
        let waited: i64 = own.map(|part| part.wait_ns).sum();
        if let Some(last) = one.last_rank.filter(|last| *last != rank && waited > 0) {
            let sums = by_rank.entry(last).or_default();
            *sums = (sums.0 + waited, sums.1 + 1);
        }
    }
    let wait = |(rank, (ns, count))| WaitFor { rank, wait_ns: facts.per_step(ns), count };
    let mut waits: Vec<WaitFor> = by_rank.into_iter().map(wait).collect();
    waits.sort_by_key(|wait| (std::cmp::Reverse(wait.wait_ns), wait.rank));
    waits
}

/// Adds to a finding the explanation why its remedy saves little.
pub(super) fn explain(finding: &mut Finding, job: &JobFacts<'_>, bound: LimitingFactor) {
    let Some(saving) = finding.saving else { return };
    let rank = match job.ranks.len() {
        1 => String::new(),
        _ => format!(" of rank {}", bound.rank),
    };
    let waits = bound.waits.iter().filter(|_| finding.category == FindingCategory::Communication);
    let waits: Vec<&WaitFor> = waits.take(NAMED).collect();
    let named = |wait: &WaitFor| {
        format!("rank {} ({}{})", wait.rank, time(wait.wait_ns), why_last(job, wait.rank))
    };
    let named: Vec<String> = waits.into_iter().map(named).collect();
    if !named.is_empty() {
        let most = if bound.waits.len() > NAMED { " most" } else { "" };
        finding.what +=
            &format!(" Rank {} waits{most} for {}.", bound.rank, named.join(" and for "));
    }
    let gains = match saving.mid_ns {
        0 => "nothing".to_owned(),
        ns => format!("only {}", time(ns)),
    };
    let others = match job.ranks.len() {
        1 => String::new(),
        _ => format!(", {:.1} % waiting for other ranks", bound.wait_pct),
    };
    finding.what += &format!(
        " Its cure gains {gains}, because {}: the critical path{rank} would be {:.1} % host, {:.1} % \
         device{others}.",
        decides(&bound),
        bound.host_pct,
        bound.device_pct
    );
    finding.limiting_factor = Some(bound);
}

/// Returns the phrase that names the limiting factor.
fn decides(bound: &LimitingFactor) -> &'static str {
    /// Minimum share of waits, in percent, from which the explanation mentions them.
    const WAITS_PCT: f64 = 10.0;
    let is_host = bound.host_pct >= bound.device_pct;
    match (is_host, bound.wait_pct >= WAITS_PCT) {
        (true, true) => "ranks then still wait for the last one to come, and the host decides when",
        (false, true) => {
            "ranks then still wait for the last one, whose device decides when it arrives"
        }
        (true, false) => "the host then decides",
        (false, false) => "other work of the device then decides",
    }
}

/// Explains why a rank arrives last at collectives, or returns an empty text if the reason is
/// unknown.
fn why_last(job: &JobFacts<'_>, rank: u32) -> String {
    let straggler = job.stragglers().ranks.iter().find(|one| one.rank == rank);
    let cause = straggler.and_then(|one| Some((one, one.cause?)));
    cause.map_or_else(String::new, |(one, cause)| {
        format!(
            "; it comes last to {} of {} collectives and spends {} more than the others on {}",
            one.times_last,
            one.collectives,
            time(one.cause_ns),
            cause.name().replace('_', " ")
        )
    })
}
