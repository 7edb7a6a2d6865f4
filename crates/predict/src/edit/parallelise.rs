//! Moves the kernels of operators to a new stream, in parallel to the kernels of later operators.

use std::collections::BTreeSet;

use super::fuse::launched;
use super::position::EditPosition;
use super::select::{OperatorRange, find_operators};
use crate::Error;
use crate::program::{Program, Rank, Stream, WorkId};

/// Moves the kernels of operators to a new stream. The moved kernels start when the works launched
/// before them on their old stream have ended. The next operator named `join` waits for the moved
/// kernels.
///
/// Kernels that share a device slow each other down, which this edit does not model. The predicted
/// gain of this edit is therefore an upper bound.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    operators: &str,
    join: &str,
) -> Result<(), Error> {
    let moved = find_operators(program, position, "operators", operators)?;
    let joins = find_operators(program, position, "join", join)?;
    let mut joined = 0;
    for (at, (moved, joins)) in moved.into_iter().zip(joins).enumerate() {
        for operator in moved {
            let later =
                |join: &&OperatorRange| join.thread == operator.thread && join.begin > operator.end;
            let works = launched(program, at, operator);
            let waits = joins.iter().find(later).map(|join| launched(program, at, *join));
            let waits = waits.and_then(|works| works.first().copied());
            let (Some(waits), false) = (waits, works.is_empty()) else { continue };
            move_works(&mut program.ranks[at], &works, waits);
            joined += 1;
        }
    }
    if joined == 0 {
        let got = "none";
        return Err(
            position.error("an operator with kernels before a joining operator with kernels", got)
        );
    }
    Ok(())
}

fn move_works(rank: &mut Rank, works: &[WorkId], waits: WorkId) {
    let own: BTreeSet<WorkId> = works.iter().copied().collect();
    let device = rank.streams[rank.works[works[0] as usize].stream as usize].device;
    let number = rank.streams.iter().map(|stream| stream.number).max().unwrap_or(0) + 1;
    rank.streams.push(Stream { device, number });
    let stream = rank.streams.len() as u32 - 1;
    // The moved works leave their stream, so each work that followed them there follows the work
    // before them instead.
    for at in 0..rank.works.len() {
        if own.contains(&(at as u32)) {
            continue;
        }
        let mut behind = rank.works[at].behind;
        while let Some(gone) = behind.filter(|work| own.contains(work)) {
            behind = rank.works[gone as usize].behind;
        }
        rank.works[at].behind = behind;
    }
    let mut before = None;
    for work in works {
        let moved = &mut rank.works[*work as usize];
        let fork = moved.behind.replace(*work).filter(|work| !own.contains(work));
        moved.behind = before;
        moved.stream = stream;
        moved.after.extend(fork);
        before = Some(*work);
    }
    let waiting = &mut rank.works[waits as usize];
    waiting.after.extend(before);
}
