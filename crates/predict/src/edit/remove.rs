//! Removes operators with the device work that they launch.

use std::collections::{BTreeMap, BTreeSet};

use super::position::EditPosition;
use super::select::{OperatorRange, find_operators};
use super::works;
use crate::Error;
use crate::program::{Action, Overhead, Program, Thread, WorkId};

/// Removes operators, the host time before them and all device work that they launch.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    operators: &str,
) -> Result<(), Error> {
    let found = find_operators(program, position, "operators", operators)?;
    for (rank, operators) in found.into_iter().enumerate() {
        let mut doomed = BTreeSet::new();
        for operator in operators.into_iter().rev() {
            let thread = &mut program.ranks[rank].threads[operator.thread];
            doomed.extend(cut(thread, operator));
        }
        works::remove(program, position, rank, &doomed, &BTreeMap::new())?;
    }
    Ok(())
}

/// Cuts an operator out of its thread and returns the works that it launched. The operator's
/// signals to other threads, and its waits for them, stay.
pub(super) fn cut(thread: &mut Thread, operator: OperatorRange) -> Vec<WorkId> {
    let mut launched = Vec::new();
    let mut kept = Vec::new();
    for action in thread.actions.drain(operator.begin..=operator.end) {
        match action {
            Action::Call(call) => launched.extend(call.launches),
            Action::Signal(_) | Action::Await { .. } => kept.push(action),
            _ => {}
        }
    }
    let count = kept.len();
    thread.actions.splice(operator.begin..operator.begin, kept);
    // The gaps before and after the operator merge into one gap, which leads from the preceding to
    // the following operator.
    let before = operator.begin.checked_sub(1);
    if let (Some(before), next) = (before, operator.begin + count) {
        let left = match thread.actions.get(before) {
            Some(Action::Host(gap)) if gap.overhead == Overhead::BetweenOps => Some(gap.detail),
            _ => None,
        };
        if let (Some(left), Some(Action::Host(gap))) = (left, thread.actions.get_mut(next))
            && gap.overhead == Overhead::BetweenOps
        {
            gap.detail = left;
            thread.actions.remove(before);
        }
    }
    launched
}
