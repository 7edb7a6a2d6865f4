//! Replaces all launches in a region of operators by the launch of one CUDA graph.

use super::position::EditPosition;
use super::select::{find_operators, name};
use crate::Error;
use crate::program::{Action, Call, Mark, MarkKind, Overhead, Program, Returns, Segment, WorkId};

const LAUNCH: &str = "cudaGraphLaunch";

/// Replaces all launches from the first operator named `from` to the next operator named `to` by
/// one graph launch. Kernels keep their streams and dependencies.
pub(super) fn apply(
    program: &mut Program,
    position: EditPosition,
    from: &str,
    to: &str,
) -> Result<(), Error> {
    let firsts = find_operators(program, position, "from", from)?;
    let lasts = find_operators(program, position, "to", to)?;
    let mut made = 0;
    for (rank, (firsts, lasts)) in firsts.into_iter().zip(lasts).enumerate() {
        let Some(first) = firsts.first() else { continue };
        let last =
            lasts.iter().find(|last| last.thread == first.thread && last.begin >= first.begin);
        let Some(last) = last else { continue };
        let region = first.begin..=last.end;
        let taken: Vec<Action> =
            program.ranks[rank].threads[first.thread].actions[region.clone()].to_vec();
        let names = (name(program, rank, *first).to_owned(), name(program, rank, *last).to_owned());
        let (kept, launches) = capture(program, position, taken)?;
        let op = program.names.intern(&format!("graph of {} … {}", names.0, names.1));
        let call = program.names.intern(LAUNCH);
        let cost = Segment { overhead: Overhead::RuntimeCall, op: call, detail: op };
        let call =
            Call { cost, launches, awaits: Vec::new(), room: None, returns: Returns::AtOnce };
        let mark = Action::Begin(Mark::new(op, MarkKind::Operator));
        let graph = [mark, Action::Call(call), Action::End];
        let actions = &mut program.ranks[rank].threads[first.thread].actions;
        actions.splice(region, kept.into_iter().chain(graph));
        made += 1;
    }
    if made == 0 {
        return Err(position.error("the last operator after the first", "the last one first"));
    }
    Ok(())
}

/// Splits the actions of a region into those that stay on the thread and the works that the graph
/// launches.
fn capture(
    program: &Program,
    position: EditPosition,
    region: Vec<Action>,
) -> Result<(Vec<Action>, Vec<WorkId>), Error> {
    let mut kept = Vec::new();
    let mut launches = Vec::new();
    let mut in_operator = false;
    for action in region {
        match action {
            Action::Call(call) if call.returns == Returns::AtOnce => launches.extend(call.launches),
            Action::Call(call) => {
                let name = program.text(call.cost.op);
                return Err(position.error("a region without waits of the host", name));
            }
            Action::Wait(_) | Action::Await { .. } => {
                let got = "a wait";
                return Err(position.error("a region without waits of the host", got));
            }
            Action::Begin(mark) if mark.kind == MarkKind::Operator => in_operator = true,
            Action::End if in_operator => in_operator = false,
            // A graph replays its kernels without the host work between their launches.
            Action::Host(_) => {}
            Action::Begin(_) | Action::End | Action::Signal(_) => kept.push(action),
        }
    }
    Ok((kept, launches))
}
