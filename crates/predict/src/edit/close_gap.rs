//! Removes a thread's time between operators, such as the time of Python, NumPy or reading data.

use super::position::EditPosition;
use super::select::{find_operators, operators};
use crate::Error;
use crate::program::{Action, Program};

/// Removes the host time between each selected operator and the operator before it.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    before: &str,
) -> Result<(), Error> {
    let found = find_operators(program, position, "before", before)?;
    let mut closed = 0;
    for (rank, found) in program.ranks.iter_mut().zip(found) {
        let all = operators(rank);
        // The operators are visited backwards, so that the recorded positions of earlier operators
        // stay valid.
        for operator in found.into_iter().rev() {
            let earlier = all
                .iter()
                .rev()
                .find(|other| other.thread == operator.thread && other.end < operator.begin);
            let from = earlier.map_or(0, |other| other.end + 1);
            let actions = &mut rank.threads[operator.thread].actions;
            let between: Vec<Action> = actions.drain(from..operator.begin).collect();
            let count = between.len();
            let kept: Vec<Action> = between.into_iter().filter(|one| !one.is_gap()).collect();
            closed += count - kept.len();
            actions.splice(from..from, kept);
        }
    }
    let expected = "time between operators before one of them";
    if closed > 0 { Ok(()) } else { Err(position.error(expected, "none")) }
}
