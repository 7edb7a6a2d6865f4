//! Moves the lookups and updates of embedding tables from one rank to another.

use schema::pattern;

use super::position::EditPosition;
use super::select::nothing_selected;
use crate::Error;
use crate::program::{Part, Program, WorkId};

/// A share of one rank's lookups that moves to another rank.
pub(super) struct Move<'a> {
    /// Names of the kernels that look up and update rows, rather than of operators.
    pub kernels: &'a str,
    pub from: u32,
    pub to: u32,
    /// Share of the kernel time of rank `from` that moves.
    pub share: f64,
}

/// Moves a share of the work of some kernels. The n-th matching kernel of rank `to` also does that
/// share of the n-th matching kernel of rank `from`. Messages keep their sizes, because recordings
/// do not split them by table.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    moved: &Move<'_>,
) -> Result<(), Error> {
    if !(0.0..=1.0).contains(&moved.share) {
        return Err(position.error("a share from 0 to 1", moved.share));
    }
    if moved.from == moved.to {
        return Err(position.error("two ranks", moved.from));
    }
    let (from, to) = (at(program, position, moved.from)?, at(program, position, moved.to)?);
    let (given, taken) =
        (find_kernels(program, from, moved.kernels), find_kernels(program, to, moved.kernels));
    if given.is_empty() || taken.is_empty() {
        let names = program.ranks.iter().flat_map(|rank| &rank.works);
        let names = names.map(|work| program.text(work.name).to_owned()).collect();
        return Err(nothing_selected(position, "kernels", moved.kernels, names));
    }
    if given.len() != taken.len() {
        let got = format!("{} and {}", given.len(), taken.len());
        return Err(position.error("equally many matching kernels on both ranks", got));
    }
    for (given, taken) in given.into_iter().zip(taken) {
        let work = &mut program.ranks[from].works[given as usize];
        let scale = work.scale;
        work.scale *= 1.0 - moved.share;
        let parts = work.cost_parts();
        let work = &mut program.ranks[to].works[taken as usize];
        // The scale of the receiving work multiplies all of its parts, so the added parts are
        // divided by it.
        let weight = moved.share * scale / if work.scale > 0.0 { work.scale } else { 1.0 };
        let more = parts.into_iter().map(|part| Part { weight: part.weight * weight, ..part });
        work.parts = work.cost_parts().into_iter().chain(more).collect();
    }
    Ok(())
}

fn at(program: &Program, position: EditPosition, rank: u32) -> Result<usize, Error> {
    let found = program.ranks.iter().position(|one| one.rank == rank);
    found.ok_or_else(|| position.error("a rank of the recording", rank))
}

/// Finds the launched kernels of a rank whose names match, in the order of the works.
fn find_kernels(program: &Program, rank: usize, kernels: &str) -> Vec<WorkId> {
    let works = (0u32..).zip(&program.ranks[rank].works);
    let is_one = |(_, work): &(u32, &crate::program::Work)| {
        work.is_launched
            && work.collective.is_none()
            && pattern::matches(kernels, program.text(work.name))
    };
    works.filter(is_one).map(|(id, _)| id).collect()
}
