//! Embedding tables that another rank looks up.

use schema::pattern;

use super::Place;
use super::select::nothing;
use crate::Error;
use crate::program::{Part, Program, WorkId};

/// A share of a rank's lookups, moved to another rank.
pub(super) struct Move<'a> {
    /// The kernels that look up and update rows, by their own names.
    pub kernels: &'a str,
    /// The rank that has the tables.
    pub from: u32,
    /// The rank that gets them.
    pub to: u32,
    /// What part of the first one's kernels they are.
    pub share: f64,
}

/// Moves a share of the work of some kernels: the n-th of the other rank does its own work and that
/// share of the n-th of this one. Messages keep their sizes, which no recording splits by table.
pub(super) fn apply(program: &mut Program, place: Place, of: &Move<'_>) -> Result<(), Error> {
    if !(0.0..=1.0).contains(&of.share) {
        return Err(place.wrong("a share from 0 to 1", of.share));
    }
    if of.from == of.to {
        return Err(place.wrong("two ranks", of.from));
    }
    let (from, to) = (at(program, place, of.from)?, at(program, place, of.to)?);
    let (given, taken) = (fitting(program, (from, of.kernels)), fitting(program, (to, of.kernels)));
    if given.is_empty() || taken.is_empty() {
        let names = program.ranks.iter().flat_map(|rank| &rank.works);
        let names = names.map(|work| program.text(work.name).to_owned()).collect();
        return Err(nothing(place, ("kernels", of.kernels), names));
    }
    if given.len() != taken.len() {
        let got = format!("{} and {}", given.len(), taken.len());
        return Err(place.wrong("as many of these kernels on both ranks", got));
    }
    for (given, taken) in given.into_iter().zip(taken) {
        let work = &mut program.ranks[from].works[given as usize];
        let scale = work.scale;
        work.scale *= 1.0 - of.share;
        let parts = work.cost_parts();
        let work = &mut program.ranks[to].works[taken as usize];
        // Its own scale counts for all parts.
        let weight = of.share * scale / if work.scale > 0.0 { work.scale } else { 1.0 };
        let more = parts.into_iter().map(|part| Part { weight: part.weight * weight, ..part });
        work.parts = work.cost_parts().into_iter().chain(more).collect();
    }
    Ok(())
}

fn at(program: &Program, place: Place, rank: u32) -> Result<usize, Error> {
    let found = program.ranks.iter().position(|one| one.rank == rank);
    found.ok_or_else(|| place.wrong("a rank of the recording", rank))
}

/// The kernels of a rank that fit, in the order of its streams.
fn fitting(program: &Program, (rank, kernels): (usize, &str)) -> Vec<WorkId> {
    let works = (0u32..).zip(&program.ranks[rank].works);
    let is_one = |(_, work): &(u32, &crate::program::Work)| {
        work.is_launched
            && work.collective.is_none()
            && pattern::matches(kernels, program.text(work.name))
    };
    works.filter(is_one).map(|(id, _)| id).collect()
}
