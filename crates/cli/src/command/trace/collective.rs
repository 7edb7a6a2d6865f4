//! Tables of several ranks: collectives and stragglers.

use analyze::graph::measured;
use analyze::{collectives, stragglers};

use super::Look;
use crate::args::{CollectivesBy, StragglersBy};
use crate::error::Error;

/// `rowmill trace collectives`.
pub fn collectives(look: &Look<'_>, by: CollectivesBy) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let found = collectives::of(&scopes);
    say_unmatched(look, &found);
    match by {
        CollectivesBy::Collective => look.put(&found.matched),
        CollectivesBy::Rank => look.put(&found.rows()),
    }
}

/// `rowmill trace stragglers`.
pub fn stragglers(look: &Look<'_>, by: StragglersBy) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let matched = collectives::of(&scopes);
    say_unmatched(look, &matched);
    let found = stragglers::of(&scopes, &matched, &measured::of(&scopes, &matched));
    match by {
        StragglersBy::Rank => look.put(&found.ranks),
        StragglersBy::Collective => look.put(&found.arrivals),
    }
}

fn say_unmatched(look: &Look<'_>, found: &collectives::Collectives) {
    let console = look.session.console;
    if look.chosen.job.traces.len() == 1 {
        console.say("one rank: arrival and wait need the traces of the others beside it");
    }
    for one in &found.unmatched {
        let why = match one.reason {
            collectives::Reason::PointToPoint => "is point-to-point",
            collectives::Reason::MissingOnRank => "is missing on another rank of its group",
        };
        console.detail(format_args!(
            "rank {}: {} × {} (group {:?}) {why}",
            one.rank, one.count, one.name, one.group
        ));
    }
}
