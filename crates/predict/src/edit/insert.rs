//! Inserts an additional call of an operator.

use std::collections::BTreeMap;

use trace::store::StringId;

use super::position::EditPosition;
use super::select::{OperatorRange, find_operators, name};
use crate::Error;
use crate::program::{Action, Overhead, Program, Segment, WorkId};

/// Inserts a copy of the first operator of one name after each operator of another name.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    operator: &str,
    after: &str,
) -> Result<(), Error> {
    let sources = find_operators(program, position, "operator", operator)?;
    let anchors = find_operators(program, position, "after", after)?;
    for (rank, (sources, anchors)) in sources.into_iter().zip(anchors).enumerate() {
        let Some(source) = sources.first() else { continue };
        let actions = program.ranks[rank].threads[source.thread].actions.clone();
        let copied = &actions[source.begin..=source.end];
        check(program, position, rank, copied)?;
        // The name is read first, because pasting changes the positions of operators.
        let text = name(program, rank, *source).to_owned();
        let op = program.names.intern(&text);
        for anchor in anchors.into_iter().rev() {
            paste(program, rank, op, anchor, copied, |_, stream| stream);
        }
    }
    Ok(())
}

/// Rejects operators that other ranks or threads wait for, because a copy would have no partner
/// there.
pub(super) fn check(
    program: &Program,
    position: EditPosition,
    rank: usize,
    copied: &[Action],
) -> Result<(), Error> {
    let works = &program.ranks[rank].works;
    let meets = |work: &WorkId| works[*work as usize].collective.is_some();
    let is_alone = copied.iter().all(|action| match action {
        Action::Call(call) => !call.launches.iter().any(meets),
        Action::Signal(_) | Action::Await { .. } => false,
        _ => true,
    });
    let expected = "an operator that neither other ranks nor other threads wait for";
    if is_alone { Ok(()) } else { Err(position.error(expected, "an operator that is waited for")) }
}

/// Pastes a copy of actions after an operator and returns the new works in order. `stream` chooses
/// the stream of the n-th copied work, given the stream of its original.
pub(super) fn paste(
    program: &mut Program,
    at: usize,
    op: StringId,
    anchor: OperatorRange,
    copied: &[Action],
    stream: impl Fn(usize, u32) -> u32,
) -> Vec<WorkId> {
    let text = name(program, at, anchor).to_owned();
    let detail = program.names.intern(&text);
    let rank = &mut program.ranks[at];
    let mut last: BTreeMap<u32, WorkId> = BTreeMap::new();
    for action in &rank.threads[anchor.thread].actions[..=anchor.end] {
        let Action::Call(call) = action else { continue };
        last.extend(call.launches.iter().map(|work| (rank.works[*work as usize].stream, *work)));
    }
    let mut made = Vec::new();
    let mut new_id: BTreeMap<WorkId, WorkId> = BTreeMap::new();
    let mut displaced: Vec<(WorkId, WorkId)> = Vec::new();
    let mut pasted = vec![Action::Host(Segment { overhead: Overhead::BetweenOps, op, detail })];
    for action in copied {
        let mut action = action.clone();
        if let Action::Call(call) = &mut action {
            for work in &mut call.launches {
                let mut copy = rank.works[*work as usize].clone();
                copy.stream = stream(new_id.len(), copy.stream);
                let id = rank.works.len() as WorkId;
                made.push(id);
                let before = last.insert(copy.stream, id);
                // Every copy becomes the new end of its stream. The work that waited for the
                // previous end, or for nothing, now waits for the copy.
                let stream = copy.stream;
                let next = rank.works.iter_mut().filter(|other| {
                    other.stream == stream && other.is_launched && other.behind == before
                });
                next.for_each(|other| other.behind = Some(id));
                copy.behind = before;
                copy.after.clear();
                rank.works.push(copy);
                displaced.extend(before.map(|before| (before, id)));
                new_id.insert(*work, id);
                *work = id;
            }
            call.awaits.iter_mut().for_each(|work| *work = *new_id.get(work).unwrap_or(work));
            call.room = None;
        }
        pasted.push(action);
    }
    let to = anchor.end + 1;
    for action in &mut rank.threads[anchor.thread].actions[to..] {
        let Action::Call(call) = action else { continue };
        // The copy is the last work of its stream at this point, so later waits for the stream also
        // wait for the copy.
        let follow = |waits: &mut Vec<WorkId>| {
            let all = displaced.iter().filter(|(before, _)| waits.contains(before));
            let copies: Vec<WorkId> = all.map(|(_, copy)| *copy).collect();
            waits.extend(copies);
        };
        follow(&mut call.awaits);
        call.launches.iter().for_each(|work| follow(&mut rank.works[*work as usize].after));
    }
    let actions = &mut rank.threads[anchor.thread].actions;
    if let Some(Action::Host(gap)) = actions.get_mut(to)
        && (gap.overhead, gap.detail) == (Overhead::BetweenOps, detail)
    {
        gap.detail = op;
    }
    actions.splice(to..to, pasted);
    made
}
