//! Fuses runs of operators into one operator, which has one set of overheads and one kernel that
//! does all the work.

use std::collections::{BTreeMap, BTreeSet};

use super::position::EditPosition;
use super::remove::cut;
use super::select::{OperatorRange, find_operators};
use super::works;
use crate::Error;
use crate::program::{Action, Overhead, Program, Segment, Thread, WorkId};

/// Fuses each run of consecutive operators into the first operator of the run. The time of its
/// kernel is the scaled sum of all kernel times in the run.
///
/// # Source
/// arXiv:2201.07821, Figure 11: the lookups of many tables become one batched lookup.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    operators: &str,
    factor: f64,
) -> Result<(), Error> {
    let found = find_operators(program, position, "operators", operators)?;
    let mut fused = 0;
    for (rank, operators) in found.into_iter().enumerate() {
        let runs = runs(program, rank, &operators);
        fused += runs.len();
        let mut doomed = BTreeSet::new();
        let mut instead = BTreeMap::new();
        // Cutting shifts the positions of later actions, so the last run is fused first.
        for run in runs.iter().rev() {
            let all: Vec<Vec<WorkId>> =
                run.iter().map(|operator| launched(program, rank, *operator)).collect();
            let (Some(first), others) = (all.first(), all.iter().skip(1)) else { continue };
            for others in others {
                for (at, work) in others.iter().enumerate() {
                    doomed.insert(*work);
                    let Some(into) = first.get(at).or(first.last()) else { continue };
                    instead.insert(*work, *into);
                    let parts = program.ranks[rank].works[*work as usize].cost_parts();
                    let into = &mut program.ranks[rank].works[*into as usize];
                    into.parts = [into.cost_parts(), parts].concat();
                }
            }
            for work in first {
                program.ranks[rank].works[*work as usize].scale *= factor;
            }
            let Some(first) = run.first() else { continue };
            let thread = &mut program.ranks[rank].threads[first.thread];
            let kept: Vec<Action> =
                run.iter().skip(1).flat_map(|operator| host_works(thread, *operator)).collect();
            for operator in run.iter().skip(1).rev() {
                cut(thread, *operator);
            }
            thread.actions.splice(first.end..first.end, kept);
        }
        works::remove(program, position, rank, &doomed, &instead)?;
    }
    if fused == 0 {
        return Err(position.error("operators that follow each other", "single ones"));
    }
    Ok(())
}

/// Returns the part of an operator's host time that is work on its tensors. This part remains after
/// fusion, unlike the overhead of the call.
fn host_works(thread: &Thread, operator: OperatorRange) -> Vec<Action> {
    let actions = &thread.actions[operator.begin..=operator.end];
    let work = |action: &Action| match action {
        Action::Host(segment) if segment.overhead == Overhead::HostOnly => {
            Some(Action::Host(Segment { overhead: Overhead::HostWork, ..*segment }))
        }
        _ => None,
    };
    actions.iter().filter_map(work).collect()
}

/// Finds runs of at least two selected operators that have only host time between them.
fn runs(program: &Program, rank: usize, operators: &[OperatorRange]) -> Vec<Vec<OperatorRange>> {
    let mut runs: Vec<Vec<OperatorRange>> = Vec::new();
    for operator in operators {
        let follows = runs.last().and_then(|run| run.last()).is_some_and(|last| {
            last.thread == operator.thread
                && program.ranks[rank].threads[operator.thread].actions
                    [last.end + 1..operator.begin]
                    .iter()
                    .all(|action| matches!(action, Action::Host(_)))
        });
        match runs.last_mut().filter(|_| follows) {
            Some(run) => run.push(*operator),
            None => runs.push(vec![*operator]),
        }
    }
    runs.retain(|run| run.len() > 1);
    runs
}

/// Returns the device works that an operator launches, in launch order.
pub(super) fn launched(program: &Program, rank: usize, operator: OperatorRange) -> Vec<WorkId> {
    let actions = &program.ranks[rank].threads[operator.thread].actions;
    works::launched(&actions[operator.begin..=operator.end])
}
