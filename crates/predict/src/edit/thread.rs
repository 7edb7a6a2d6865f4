//! Moves operators to a new thread, such as the input distribution of the next batch.

use std::collections::BTreeMap;

use super::position::EditPosition;
use super::select::{OperatorRange, find_operators, name};
use crate::Error;
use crate::program::{Action, Overhead, Program, Thread};

/// Moves operators to a new thread of their process. The new thread starts each operator when the
/// calling thread reaches its old place. The next operator named `join` waits for the moved
/// operators. Without `join`, nothing in this step waits, as for the preparation of the next batch.
///
/// Streams keep the recorded order of work. Threads share cores and may share an interpreter lock,
/// which this edit does not model. The predicted gain of this edit is therefore an upper bound.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    operators: &str,
    join: Option<&str>,
) -> Result<(), Error> {
    let moved = find_operators(program, position, "operators", operators)?;
    let joins = match join {
        Some(join) => find_operators(program, position, "join", join)?,
        None => vec![Vec::new(); program.ranks.len()],
    };
    let mut joined = 0;
    for (at, (moved, joins)) in moved.into_iter().zip(joins).enumerate() {
        joined += split(program, at, &moved, &joins);
    }
    if join.is_some() && joined == 0 {
        return Err(position.error("a joining operator after a moved one", "none"));
    }
    Ok(())
}

/// Moves operators of a rank to another thread. Returns how many of the moved operators are awaited
/// by an operator that stays.
fn split(
    program: &mut Program,
    at: usize,
    moved: &[OperatorRange],
    joins: &[OperatorRange],
) -> usize {
    let mut signals = (next_signal(program, at)..).step_by(2);
    let mut own: Vec<Action> = Vec::new();
    // The keys of both maps are a thread and a position on it. `begins` holds the signal that
    // replaces an operator, and `waits` holds the signals to await there.
    let mut begins: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    let mut waits: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
    let mut joined = 0;
    for (operator, signal) in moved.iter().zip(&mut signals) {
        let text = name(program, at, *operator).to_owned();
        let wakes = Some(program.names.intern(&text));
        own.push(Action::Await { signal, wakes });
        let actions = &program.ranks[at].threads[operator.thread].actions;
        own.extend_from_slice(&actions[operator.begin..=operator.end]);
        begins.insert((operator.thread, operator.begin), signal);
        let later = |join: &&OperatorRange| {
            join.thread == operator.thread && join.begin > operator.end && !moved.contains(join)
        };
        if let Some(join) = joins.iter().find(later) {
            own.push(Action::Signal(signal + 1));
            waits.entry((join.thread, join.begin)).or_default().push(signal + 1);
            joined += 1;
        }
    }
    let rank = &mut program.ranks[at];
    for (thread, of) in rank.threads.iter_mut().enumerate() {
        let gone = moved.iter().filter(|one| one.thread == thread).map(|one| (one.begin, one.end));
        let gone: BTreeMap<usize, usize> = gone.collect();
        if gone.is_empty() {
            continue;
        }
        let old = std::mem::take(&mut of.actions);
        let mut place = 0;
        while place < old.len() {
            let Some(end) = gone.get(&place) else {
                let waited = waits.get(&(thread, place)).into_iter().flatten();
                let await_one = |signal: &u32| Action::Await { signal: *signal, wakes: None };
                of.actions.extend(waited.map(await_one));
                of.actions.push(old[place].clone());
                place += 1;
                continue;
            };
            let before = of.actions.pop_if(|action| action.is_gap());
            of.actions.extend(begins.get(&(thread, place)).map(|signal| Action::Signal(*signal)));
            place = end + 1;
            // The gaps before and after the operator merge into one gap, which leads from the
            // preceding to the following operator.
            match (before, old.get(place)) {
                (Some(Action::Host(before)), Some(Action::Host(next)))
                    if next.overhead == Overhead::BetweenOps =>
                {
                    let detail = before.detail;
                    of.actions.push(Action::Host(crate::program::Segment { detail, ..*next }));
                    place += 1;
                }
                (before, _) => of.actions.extend(before),
            }
        }
    }
    let tid = rank.threads.iter().map(|thread| thread.tid).max().unwrap_or(0) + 1;
    let pid = rank.threads.get(rank.main).map_or(0, |main| main.pid);
    if !own.is_empty() {
        rank.threads.push(Thread { pid, tid, actions: own });
    }
    joined
}

/// Returns the smallest signal number above all that a rank uses.
fn next_signal(program: &Program, rank: usize) -> u32 {
    let all = program.ranks[rank].threads.iter().flat_map(|thread| &thread.actions);
    let given = all.filter_map(|action| match action {
        Action::Signal(signal) => Some(signal + 1),
        _ => None,
    });
    given.max().unwrap_or(0)
}
