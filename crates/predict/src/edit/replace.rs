//! Replaces operators by copies of another one, such as a slow optimizer by a fused optimizer.

use std::collections::{BTreeMap, BTreeSet};

use super::fuse::launched;
use super::insert::{check, paste};
use super::position::EditPosition;
use super::remove::cut;
use super::select::{find_operators, name};
use super::works;
use crate::Error;
use crate::program::{Action, Program, Rank, WorkId};

/// Replaces each operator named `operators` by a copy of the first operator named `with`.
///
/// The copy's kernels run on the streams of the kernels that they replace. A wait for the n-th
/// replaced kernel becomes a wait for the n-th kernel of the copy. A wait for the last replaced
/// kernel becomes a wait for the last kernel of the copy.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    operators: &str,
    with: &str,
) -> Result<(), Error> {
    let replaced = find_operators(program, position, "operators", operators)?;
    let sources = find_operators(program, position, "with", with)?;
    let mut made = 0;
    for (rank, (replaced, sources)) in replaced.into_iter().zip(sources).enumerate() {
        let Some(source) = sources.iter().find(|source| !replaced.contains(source)) else {
            continue;
        };
        let actions = &program.ranks[rank].threads[source.thread].actions;
        let copied = actions[source.begin..=source.end].to_vec();
        check(program, position, rank, &copied)?;
        let text = name(program, rank, *source).to_owned();
        let op = program.names.intern(&text);
        let mut doomed = BTreeSet::new();
        // Cutting shifts the positions of later actions, so the last operator is replaced first.
        for operator in replaced.into_iter().rev() {
            let old = launched(program, rank, operator);
            let rank_works = &program.ranks[rank].works;
            let streams: Vec<u32> =
                old.iter().map(|work| rank_works[*work as usize].stream).collect();
            let stream =
                |at: usize, own| streams.get(at).or(streams.last()).copied().unwrap_or(own);
            let new = paste(program, rank, op, operator, &copied, stream);
            let changed = &mut program.ranks[rank];
            await_instead(changed, &old, &new);
            doomed.extend(cut(&mut changed.threads[operator.thread], operator));
            made += 1;
        }
        works::remove(program, position, rank, &doomed, &BTreeMap::new())?;
    }
    if made == 0 {
        return Err(position.error("another operator to replace them by", "none on the same rank"));
    }
    Ok(())
}

/// Redirects waits for old works to the new works. Dependencies of the new works themselves stay
/// unchanged.
fn await_instead(rank: &mut Rank, old: &[WorkId], new: &[WorkId]) {
    let Some(last) = new.last() else { return };
    let counterpart = |work: WorkId| {
        let at = old.iter().position(|one| *one == work)?;
        if at + 1 == old.len() { Some(*last) } else { Some(*new.get(at).unwrap_or(last)) }
    };
    let replace = |works: &mut Vec<WorkId>| {
        works.iter_mut().for_each(|work| *work = counterpart(*work).unwrap_or(*work));
    };
    for (id, work) in (0u32..).zip(&mut rank.works) {
        if !new.contains(&id) {
            replace(&mut work.after);
        }
    }
    for action in rank.threads.iter_mut().flat_map(|thread| &mut thread.actions) {
        match action {
            Action::Call(call) => replace(&mut call.awaits),
            Action::Wait(works) => replace(works),
            _ => {}
        }
    }
}
