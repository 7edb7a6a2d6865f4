//! Tables of several ranks: collectives and stragglers.

use analyze::{JobFacts, Scope, collectives};

use super::query::TraceQuery;
use crate::args::{CollectivesBy, StragglersBy};
use setup::error::Error;

/// Prints the rows of `rowmill trace collectives`.
pub fn collectives(look: &TraceQuery<'_>, by: CollectivesBy, ranks: &[u32]) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    let found = job.collectives();
    say_unmatched(look, &scopes, found);
    match by {
        CollectivesBy::Collective => look.put(&found.matched),
        CollectivesBy::Rank => look.put(&kept(found.rows(), ranks, |row| row.rank)),
    }
}

/// Prints the rows of `rowmill trace stragglers`.
pub fn stragglers(look: &TraceQuery<'_>, by: StragglersBy, ranks: &[u32]) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    say_unmatched(look, &scopes, job.collectives());
    let mut found = job.stragglers().clone();
    found.ranks.retain(|row| is_usable(&scopes, row.rank));
    match by {
        StragglersBy::Rank => look.put(&kept(found.ranks, ranks, |row| row.rank)),
        StragglersBy::Collective => {
            look.put(&kept(found.arrivals, ranks, |arrival| arrival.last_rank))
        }
    }
}

/// Whether a rank has figures.
pub fn is_usable(scopes: &[Scope<'_>], rank: u32) -> bool {
    scopes.iter().any(|scope| scope.trace.rank == rank && scope.trace.is_usable())
}

/// The rows of the selected ranks; all if none were.
fn kept<T>(mut rows: Vec<T>, ranks: &[u32], rank: impl Fn(&T) -> u32) -> Vec<T> {
    rows.retain(|row| ranks.is_empty() || ranks.contains(&rank(row)));
    rows
}

fn say_unmatched(look: &TraceQuery<'_>, scopes: &[Scope<'_>], found: &collectives::Collectives) {
    let console = look.session.console;
    if scopes.len() == 1 {
        console.say("one rank: arrival, wait and transfer need the traces of the others beside it");
    }
    let usable = || scopes.iter().filter(|scope| scope.trace.is_usable());
    let starts = usable().map(|scope| scope.window.start).max();
    let ends = usable().map(|scope| scope.window.end).min();
    if starts > ends {
        console.warn(
            "the ranks' windows do not overlap in time: other jobs or other clocks, and who waited \
             for whom cannot be told",
        );
    }
    for one in &found.unmatched {
        let why = match one.reason {
            collectives::Reason::PointToPoint => "is point-to-point",
            collectives::Reason::MissingOnRank => "is missing on another rank of its group",
            collectives::Reason::MoreRanksThanGroup => "is on more ranks than its group has",
            collectives::Reason::RecordedApart => {
                "cannot be matched: the ranks were recorded apart"
            }
            collectives::Reason::EndsApart => "ends before it begins on another rank",
        };
        console.detail(format_args!(
            "rank {}: {} × {} (group {:?}) {why}",
            one.rank, one.count, one.name, one.group
        ));
    }
}
