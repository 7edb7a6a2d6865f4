//! Drops a collective that ranks no longer need, such as the exchange of lengths before the
//! exchange of ids.

use std::collections::{BTreeMap, BTreeSet};

use super::fuse::launched;
use super::position::EditPosition;
use super::remove::cut;
use super::select::{OperatorRange, find_operators};
use super::works;
use crate::Error;
use crate::program::{Program, WorkId};

/// Removes one occurrence of a collective operator from every rank.
///
/// # Errors
/// [`Error::Edit`] if a rank has fewer matching collectives than `occurrence` requires, or if a
/// rank that takes part in the collective would keep its call.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    operators: &str,
    occurrence: usize,
) -> Result<(), Error> {
    let found = find_operators(program, position, "operators", operators)?;
    let mut doomed: Vec<BTreeSet<WorkId>> = Vec::new();
    let mut gone: Vec<OperatorRange> = Vec::new();
    for (rank, operators) in found.into_iter().enumerate() {
        let works = &program.ranks[rank].works;
        let meets = |operator: &OperatorRange| {
            let mut own = launched(program, rank, *operator).into_iter();
            own.any(|work| works[work as usize].collective.is_some())
        };
        let collective: Vec<OperatorRange> = operators.into_iter().filter(meets).collect();
        let Some(operator) = collective.get(occurrence) else {
            let rank = program.ranks[rank].rank;
            let got = format!("{} on rank {rank}", collective.len());
            let expected =
                format!("at least {} of them that all ranks take part in", occurrence + 1);
            return Err(position.error(&expected, got));
        };
        doomed.push(launched(program, rank, *operator).into_iter().collect());
        gone.push(*operator);
    }
    let is_doomed = |(rank, work): &(usize, WorkId)| doomed[*rank].contains(work);
    // A collective that only some ranks leave would never finish on the others.
    let torn = program
        .collectives
        .iter()
        .find(|one| one.parts.iter().any(is_doomed) && !one.parts.iter().all(is_doomed));
    if torn.is_some() {
        let got = "ranks that call the exchanges in another order";
        return Err(position.error("the same exchange on every rank", got));
    }
    drop_collectives(program, is_doomed);
    for (rank, (operator, doomed)) in gone.into_iter().zip(&doomed).enumerate() {
        cut(&mut program.ranks[rank].threads[operator.thread], operator);
        works::take_out(program, rank, doomed, &BTreeMap::new());
    }
    Ok(())
}

/// Removes the collectives that contain removed works, and numbers the remaining ones in their
/// order.
fn drop_collectives(program: &mut Program, is_doomed: impl Fn(&(usize, WorkId)) -> bool) {
    let mut kept = std::mem::take(&mut program.collectives);
    kept.retain(|one| !one.parts.iter().any(&is_doomed));
    let all = program.ranks.iter_mut().flat_map(|rank| &mut rank.works);
    all.for_each(|work| work.collective = None);
    kept.into_iter().for_each(|one| program.add_collective(one));
}
