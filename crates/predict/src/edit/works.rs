//! Removes device work and redirects every wait for it.

use std::collections::{BTreeMap, BTreeSet};

use super::position::EditPosition;
use crate::Error;
use crate::program::{Action, Program, Rank, WorkId};

/// Returns the device works that actions launch, in launch order.
pub(super) fn launched(actions: &[Action]) -> Vec<WorkId> {
    let calls = actions.iter().filter_map(|action| match action {
        Action::Call(call) => Some(call.launches.iter().copied()),
        _ => None,
    });
    calls.flatten().collect()
}

/// Removes works of a rank. A wait for a removed work becomes a wait for its replacement in
/// `instead`. Without a replacement, the wait becomes a wait for the works that the removed work
/// waited for.
///
/// # Errors
/// [`Error::Edit`] if a removed work takes part in a collective, because other ranks would wait
/// forever.
pub(super) fn remove(
    program: &mut Program,
    position: EditPosition,
    at: usize,
    doomed: &BTreeSet<WorkId>,
    instead: &BTreeMap<WorkId, WorkId>,
) -> Result<(), Error> {
    let met =
        doomed.iter().find(|work| program.ranks[at].works[**work as usize].collective.is_some());
    if let Some(work) = met {
        let name = program.text(program.ranks[at].works[*work as usize].name).to_owned();
        let got = format!("{name}, which other ranks wait for");
        return Err(position.error("work that no other rank takes part in", got));
    }
    take_out(program, at, doomed, instead);
    Ok(())
}

/// Removes works without checking whether they take part in collectives.
pub(super) fn take_out(
    program: &mut Program,
    at: usize,
    doomed: &BTreeSet<WorkId>,
    instead: &BTreeMap<WorkId, WorkId>,
) {
    let rank = &mut program.ranks[at];
    relink(rank, doomed, instead);
    let mut kept = Vec::new();
    // A removed work gets a number too, which nothing uses after `relink`.
    let mut new_id = vec![0; rank.works.len()];
    for (old, work) in (0u32..).zip(std::mem::take(&mut rank.works)) {
        new_id[old as usize] = kept.len() as u32;
        if !doomed.contains(&old) {
            kept.push(work);
        }
    }
    rank.works = kept;
    let renamed = |work: &mut WorkId| *work = new_id[*work as usize];
    for work in &mut rank.works {
        work.behind.iter_mut().for_each(renamed);
        work.after.iter_mut().for_each(renamed);
        work.repeated = work.repeated.filter(|one| !doomed.contains(&one.by));
        work.repeated.iter_mut().for_each(|one| renamed(&mut one.by));
    }
    for action in rank.threads.iter_mut().flat_map(|thread| &mut thread.actions) {
        match action {
            Action::Call(call) => {
                call.launches.iter_mut().for_each(renamed);
                call.awaits.iter_mut().for_each(renamed);
                call.room.iter_mut().for_each(renamed);
            }
            Action::Wait(works) => works.iter_mut().for_each(renamed),
            _ => {}
        }
    }
    for (rank, work) in program.collectives.iter_mut().flat_map(|one| &mut one.parts) {
        if *rank == at {
            renamed(work);
        }
    }
}

/// Replaces removed works in all dependencies and waits by the works to wait for instead.
fn relink(rank: &mut Rank, doomed: &BTreeSet<WorkId>, instead: &BTreeMap<WorkId, WorkId>) {
    let before: Vec<Vec<WorkId>> = (0..rank.works.len() as u32)
        .map(|work| {
            if doomed.contains(&work) { stand_ins(rank, work, doomed, instead) } else { vec![work] }
        })
        .collect();
    for at in 0..rank.works.len() {
        let behind = rank.works[at].behind.map(|behind| before[behind as usize].clone());
        let stream = rank.works[at].stream;
        let mut after: Vec<WorkId> =
            rank.works[at].after.iter().flat_map(|work| before[*work as usize].clone()).collect();
        if let Some(behind) = behind {
            let same = |work: &&WorkId| rank.works[**work as usize].stream == stream;
            // Only a work on the same stream can precede another in stream order, so the other
            // stand-ins become explicit dependencies.
            let own = behind.iter().find(same).copied();
            after.extend(behind.iter().filter(|work| Some(**work) != own));
            rank.works[at].behind = own;
        }
        after.retain(|work| *work as usize != at);
        after.sort_unstable();
        after.dedup();
        rank.works[at].after = after;
    }
    for action in rank.threads.iter_mut().flat_map(|thread| &mut thread.actions) {
        let replaced = |works: &mut Vec<WorkId>| {
            let all = works.iter().flat_map(|work| before[*work as usize].clone());
            let unique: BTreeSet<WorkId> = all.collect();
            *works = unique.into_iter().collect();
        };
        match action {
            Action::Call(call) => {
                replaced(&mut call.awaits);
                call.launches.retain(|work| !doomed.contains(work));
                call.room = call.room.filter(|work| !doomed.contains(work));
            }
            Action::Wait(works) => replaced(works),
            _ => {}
        }
    }
}

/// Returns the works to wait for in place of a removed work: its replacement, or else the nearest
/// remaining works that it waited for.
fn stand_ins(
    rank: &Rank,
    work: WorkId,
    doomed: &BTreeSet<WorkId>,
    instead: &BTreeMap<WorkId, WorkId>,
) -> Vec<WorkId> {
    let mut found = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut open = vec![work];
    while let Some(work) = open.pop() {
        if !seen.insert(work) {
            continue;
        }
        if let Some(other) = instead.get(&work) {
            found.insert(*other);
        } else if doomed.contains(&work) {
            let gone = &rank.works[work as usize];
            open.extend(gone.behind.iter().chain(&gone.after));
        } else {
            found.insert(work);
        }
    }
    found.into_iter().collect()
}
