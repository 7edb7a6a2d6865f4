//! Moves operators to another place on their thread.

use std::collections::BTreeMap;

use super::position::EditPosition;
use super::select::{OperatorRange, find_operators};
use super::works::launched;
use crate::Error;
use crate::program::{Action, Overhead, Program, Rank, Segment, WorkId};
use trace::store::StringId;

/// Moves each operator named `operators` directly after the nearest preceding operator named
/// `after` on its thread. If no such operator precedes it, the operator moves after the next one.
///
/// Streams execute work in the new order. Waits for the last work of a stream become waits for the
/// work that is last after the edit.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    operators: &str,
    after: &str,
) -> Result<(), Error> {
    let moved = find_operators(program, position, "operators", operators)?;
    let anchors = find_operators(program, position, "after", after)?;
    let mut made = 0;
    for (at, (moved, anchors)) in moved.into_iter().zip(anchors).enumerate() {
        let rank = &mut program.ranks[at];
        for thread in 0..rank.threads.len() {
            let on_thread = |all: &[OperatorRange]| -> Vec<OperatorRange> {
                all.iter().filter(|one| one.thread == thread).copied().collect()
            };
            let (moved, mut anchors) = (on_thread(&moved), on_thread(&anchors));
            anchors.retain(|anchor| !moved.contains(anchor));
            let actions = &rank.threads[thread].actions;
            // A moved signal could come after the wait for it, and the two threads would wait for
            // each other.
            let meets = |one: &OperatorRange| {
                let mut inside = actions[one.begin..=one.end].iter();
                inside.any(|action| matches!(action, Action::Signal(_) | Action::Await { .. }))
            };
            if moved.iter().any(meets) {
                let expected = "operators that no other thread waits for";
                return Err(position.error(expected, "an operator that another thread waits for"));
            }
            if !moved.is_empty() && !anchors.is_empty() {
                let order = order(actions, &moved, &anchors);
                rearrange(rank, thread, &order);
                made += moved.len();
            }
        }
    }
    if made == 0 {
        return Err(position.error("both operators on one thread", "different threads"));
    }
    Ok(())
}

/// An action with its position before the edit, or `None` for a gap that the edit inserts.
type Placed = (Option<usize>, Action);

/// Returns the actions of a thread in their new order, with the host time between them.
fn order(actions: &[Action], moved: &[OperatorRange], anchors: &[OperatorRange]) -> Vec<Placed> {
    let target = |one: &OperatorRange| {
        let before = anchors.iter().rev().find(|anchor| anchor.begin < one.begin);
        before.or(anchors.iter().find(|anchor| anchor.begin > one.begin)).copied()
    };
    let followers = |end: usize| {
        moved.iter().filter(move |one| target(one).is_some_and(|anchor| anchor.end == end))
    };
    let name = |at: usize| match &actions[at] {
        Action::Begin(mark) => mark.name,
        _ => StringId::default(),
    };
    let mut placed: Vec<Placed> = Vec::new();
    // Name of the operator before the next gap, if the edit changed which operator that is.
    let mut left: Option<StringId> = None;
    let mut at = 0;
    while at < actions.len() {
        if let Some(one) = moved.iter().find(|one| one.begin == at) {
            // The gaps before and after the moved operator merge into one gap, which starts at the
            // preceding operator.
            let before = placed.last().and_then(|(_, action)| gap(action));
            if let (Some(before), Some(_)) = (before, actions.get(one.end + 1).and_then(gap)) {
                left = Some(before.detail);
                placed.pop();
            }
            at = one.end + 1;
            continue;
        }
        let mut action = actions[at].clone();
        if let (Some(came), Action::Host(segment)) = (left, &mut action)
            && segment.overhead == Overhead::BetweenOps
        {
            segment.detail = came;
        }
        left = None;
        placed.push((Some(at), action));
        if let Some(anchor) = anchors.iter().find(|anchor| anchor.end == at) {
            let mut came = name(anchor.begin);
            for one in followers(at) {
                let op = name(one.begin);
                let overhead = Overhead::BetweenOps;
                let gap = Action::Host(Segment { overhead, op, detail: came });
                placed.push((None, gap));
                placed.extend((one.begin..=one.end).map(|at| (Some(at), actions[at].clone())));
                came = op;
                left = Some(came);
            }
        }
        at += 1;
    }
    placed
}

fn gap(action: &Action) -> Option<Segment> {
    match action {
        Action::Host(segment) if segment.overhead == Overhead::BetweenOps => Some(*segment),
        _ => None,
    }
}

/// Stores the actions of a thread in the new order and reorders the work of its streams
/// accordingly.
fn rearrange(rank: &mut Rank, thread: usize, order: &[Placed]) {
    let old = std::mem::take(&mut rank.threads[thread].actions);
    let waits = waits_for_last(rank, &old);
    let new: Vec<Action> = order.iter().map(|(_, action)| action.clone()).collect();
    exchange(rank, &launched(&old), &launched(&new));
    rank.threads[thread].actions = new;
    let mut last: BTreeMap<u32, WorkId> = BTreeMap::new();
    let mut later = launched(&rank.threads[thread].actions);
    for (at, (placed, _)) in order.iter().enumerate() {
        let Some(from) = *placed else { continue };
        let mut action = std::mem::replace(&mut rank.threads[thread].actions[at], Action::End);
        let stream_of_work =
            |work: WorkId, works: &[crate::program::Work]| works[work as usize].stream;
        let follow = |rank: &Rank, last: &BTreeMap<u32, WorkId>, later: &[WorkId], work: WorkId| {
            if waits.contains(&(from, work)) {
                return last.get(&stream_of_work(work, &rank.works)).copied();
            }
            // A call cannot wait for works that are launched after it in the new order.
            let mut known = Some(work);
            while let Some(one) = known.filter(|one| later.contains(one)) {
                known = rank.works[one as usize].behind;
            }
            known
        };
        if let Action::Call(call) = &mut action {
            for work in &call.launches {
                let after = std::mem::take(&mut rank.works[*work as usize].after);
                let after = after.into_iter().filter_map(|one| follow(rank, &last, &later, one));
                rank.works[*work as usize].after = after.collect();
                last.insert(stream_of_work(*work, &rank.works), *work);
                later.retain(|one| one != work);
            }
            let room = call.room.filter(|room| !later.contains(room));
            call.room = room;
            let awaits = std::mem::take(&mut call.awaits).into_iter();
            call.awaits = awaits.filter_map(|one| follow(rank, &last, &later, one)).collect();
        }
        if let Action::Wait(works) = &mut action {
            let awaits = std::mem::take(works).into_iter();
            *works = awaits.filter_map(|one| follow(rank, &last, &later, one)).collect();
        }
        rank.threads[thread].actions[at] = action;
    }
}

/// Finds the waits of a thread for the latest work that it launched on a stream. Returns the
/// position of each waiting action with the awaited work.
fn waits_for_last(rank: &Rank, actions: &[Action]) -> Vec<(usize, WorkId)> {
    let mut last: BTreeMap<u32, WorkId> = BTreeMap::new();
    let mut found = Vec::new();
    for (at, action) in actions.iter().enumerate() {
        let stream = |work: &WorkId| rank.works[*work as usize].stream;
        let is_last =
            |last: &BTreeMap<u32, WorkId>, work: &WorkId| last.get(&stream(work)) == Some(work);
        match action {
            Action::Call(call) => {
                for work in &call.launches {
                    let after = rank.works[*work as usize].after.iter();
                    found.extend(after.filter(|one| is_last(&last, one)).map(|one| (at, *one)));
                    last.insert(stream(work), *work);
                }
                let awaits = call.awaits.iter();
                found.extend(awaits.filter(|one| is_last(&last, one)).map(|one| (at, *one)));
            }
            Action::Wait(works) => {
                found.extend(works.iter().filter(|one| is_last(&last, one)).map(|one| (at, *one)));
            }
            _ => {}
        }
    }
    found
}

/// Gives each work the stream position of the work that was launched at the same turn before the
/// edit.
fn exchange(rank: &mut Rank, old: &[WorkId], new: &[WorkId]) {
    let on_stream = |works: &[WorkId], stream: u32, rank: &Rank| -> Vec<WorkId> {
        works.iter().filter(|work| rank.works[**work as usize].stream == stream).copied().collect()
    };
    let mut turn: BTreeMap<WorkId, WorkId> = BTreeMap::new();
    for stream in 0..rank.streams.len() as u32 {
        turn.extend(on_stream(old, stream, rank).into_iter().zip(on_stream(new, stream, rank)));
    }
    let now = |work: WorkId| turn.get(&work).copied().unwrap_or(work);
    let behind: Vec<(WorkId, Option<WorkId>)> =
        (0u32..).zip(&rank.works).map(|(id, work)| (now(id), work.behind.map(now))).collect();
    for (work, behind) in behind {
        rank.works[work as usize].behind = behind;
    }
}
