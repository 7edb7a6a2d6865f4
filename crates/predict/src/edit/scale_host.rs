//! Scales the host time of operators by a factor.

use super::position::EditPosition;
use super::select::find_operators;
use crate::Error;
use crate::program::{Action, MarkKind, Program};

/// Multiplies the host time inside matching operators by a factor. A pattern that names annotations
/// selects all operators inside them.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    operators: &str,
    factor: f64,
) -> Result<(), Error> {
    let found = find_operators(program, position, "operators", operators)?;
    for (rank, found) in program.ranks.iter_mut().zip(found) {
        for operator in found {
            let actions = &mut rank.threads[operator.thread].actions[operator.begin..=operator.end];
            for action in actions {
                if let Action::Begin(mark) = action
                    && mark.kind == MarkKind::Operator
                {
                    mark.scale *= factor;
                }
            }
        }
    }
    Ok(())
}
