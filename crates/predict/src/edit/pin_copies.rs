//! Pins the host memory of copies to devices. Pinned copies skip the staging buffer, and the host
//! does not wait for them.

use std::collections::BTreeSet;

use super::position::EditPosition;
use crate::Error;
use crate::program::{Action, Call, Program, Rank, Returns, WorkId};

const PAGEABLE: &str = "Pageable -> Device";
const PINNED: &str = "Pinned -> Device";

/// Pins the host memory of all copies to devices. Calls that only wait for such copies are removed.
pub(super) fn apply(program: &mut Program, position: EditPosition) -> Result<(), Error> {
    let mut pinned = 0;
    for at in 0..program.ranks.len() {
        let is_copy = |work: &&crate::program::Work| program.text(work.name).contains(PAGEABLE);
        let works = (0u32..).zip(&program.ranks[at].works);
        let copies: Vec<WorkId> =
            works.filter(|(_, work)| is_copy(work)).map(|(id, _)| id).collect();
        for copy in &copies {
            let name = program.ranks[at].works[*copy as usize].name;
            let name = program.text(name).replace(PAGEABLE, PINNED);
            program.ranks[at].works[*copy as usize].name = program.names.intern(&name);
        }
        pinned += copies.len();
        release(&mut program.ranks[at], &copies.into_iter().collect());
    }
    if pinned == 0 {
        return Err(position.error("copies from pageable memory to a device", "none"));
    }
    Ok(())
}

/// Removes the host's waits for the given copies.
fn release(rank: &mut Rank, copies: &BTreeSet<WorkId>) {
    let waits_for_them = |call: &Call| {
        call.returns != Returns::AtOnce
            && !call.awaits.is_empty()
            && call.awaits.iter().all(|work| copies.contains(work))
    };
    for thread in &mut rank.threads {
        thread.actions.retain(|action| match action {
            Action::Call(call) => !(call.launches.is_empty() && waits_for_them(call)),
            _ => true,
        });
        for action in &mut thread.actions {
            if let Action::Call(call) = action
                && waits_for_them(call)
            {
                call.awaits.clear();
                call.returns = Returns::AtOnce;
            }
        }
    }
}
