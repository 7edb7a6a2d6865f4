//! Prints the tables that compare ranks with each other: collectives and stragglers.

use analyze::{JobFacts, Scope, collectives};

use super::query::TraceQuery;
use crate::args::{CollectivesBy, StragglersBy};
use setup::error::Error;

/// Prints the rows of `rowmill trace collectives`.
pub fn collectives(query: &TraceQuery<'_>, by: CollectivesBy, ranks: &[u32]) -> Result<(), Error> {
    let scopes = query.chosen.scopes();
    let job = JobFacts::new(&scopes);
    let collectives = job.collectives();
    report_unmatched(query, &scopes, collectives);
    match by {
        CollectivesBy::Collective => query.put(&collectives.matched),
        CollectivesBy::Rank => query.put(&retain_ranks(collectives.rows(), ranks, |row| row.rank)),
    }
}

/// Prints the rows of `rowmill trace stragglers`.
pub fn stragglers(query: &TraceQuery<'_>, by: StragglersBy, ranks: &[u32]) -> Result<(), Error> {
    let scopes = query.chosen.scopes();
    let job = JobFacts::new(&scopes);
    report_unmatched(query, &scopes, job.collectives());
    let mut stragglers = job.stragglers().clone();
    stragglers.ranks.retain(|row| is_usable(&scopes, row.rank));
    match by {
        StragglersBy::Rank => query.put(&retain_ranks(stragglers.ranks, ranks, |row| row.rank)),
        StragglersBy::Collective => {
            query.put(&retain_ranks(stragglers.arrivals, ranks, |arrival| arrival.last_rank))
        }
    }
}

/// Whether the recording of a rank is complete enough to compute figures from it.
pub fn is_usable(scopes: &[Scope<'_>], rank: u32) -> bool {
    scopes.iter().any(|scope| scope.trace.rank == rank && scope.trace.is_usable())
}

/// Keeps the rows of the selected ranks. If no ranks are selected, keeps all rows.
fn retain_ranks<T>(mut rows: Vec<T>, ranks: &[u32], rank: impl Fn(&T) -> u32) -> Vec<T> {
    rows.retain(|row| ranks.is_empty() || ranks.contains(&rank(row)));
    rows
}

/// Prints why collectives could not be matched across ranks. With `-v`, each of them has a line. A
/// cause that concerns all collectives gives a warning.
fn report_unmatched(
    query: &TraceQuery<'_>,
    scopes: &[Scope<'_>],
    found: &collectives::Collectives,
) {
    let console = query.session.console;
    if scopes.len() == 1 {
        console.say("only one rank: arrival, wait and transfer need the traces of the other ranks");
    }
    let usable = || scopes.iter().filter(|scope| scope.trace.is_usable());
    let starts = usable().map(|scope| scope.window.start).max();
    let ends = usable().map(|scope| scope.window.end).min();
    if starts > ends {
        console.warn(
            "the windows of the ranks do not overlap in time: they belong to different jobs or their \
             clocks differ, so that who waited for whom is unknown",
        );
    }
    for one in &found.unmatched {
        let why = match one.reason {
            collectives::Reason::PointToPoint => "is point-to-point",
            collectives::Reason::MissingOnRank => "is missing on another rank of its group",
            collectives::Reason::MoreRanksThanGroup => "is on more ranks than its group has",
            collectives::Reason::RecordedApart => {
                "cannot be matched: the ranks were recorded at different times"
            }
            collectives::Reason::EndsApart => "ends before it begins on another rank",
        };
        console.detail(format_args!(
            "rank {}: {} × {} (group {:?}) {why}",
            one.rank, one.count, one.name, one.group
        ));
    }
}
