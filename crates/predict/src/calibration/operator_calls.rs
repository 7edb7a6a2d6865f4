//! Reads the calls and launches of recorded operators into the [`Launches`] of a calibration.

use std::collections::BTreeSet;

use super::launches::{ApiCall, LaunchedWork, Launches, Variant, add};
use crate::cost::operation_name;
use crate::program::{Action, MarkKind, Program, Rank, Thread, WorkId};
use crate::recording::{RankTimes, Step};

/// Adds the runtime calls that operators made on some ranks of a recorded step.
pub fn collect(launches: &mut Launches, step: &Step, ranks: &[usize]) {
    for at in ranks {
        let (rank, recorded) = (&step.program.ranks[*at], &step.recorded.ranks[*at]);
        let seen = recorded.operators.iter().map(|name| step.program.text(*name).to_owned());
        launches.seen.extend(seen);
        let read = CallReader { program: &step.program, rank, recorded };
        for (place, thread) in rank.threads.iter().enumerate() {
            read.thread(place, thread, launches);
        }
    }
}

/// Reads the calls of one rank's operators from a recorded step.
struct CallReader<'a> {
    program: &'a Program,
    rank: &'a Rank,
    recorded: &'a RankTimes,
}

/// An operator whose runtime calls are being read.
#[derive(Default)]
struct OpenOperator {
    name: String,
    sizes: String,
    calls: Vec<ApiCall>,
    /// Callers nested in this operator, each with its row, its name and sizes, and its calls.
    inside: Vec<(u32, (String, String), Vec<ApiCall>)>,
}

impl CallReader<'_> {
    fn thread(&self, place: usize, thread: &Thread, launches: &mut Launches) {
        let text = |name| self.program.text(name).to_owned();
        let mut open: Option<OpenOperator> = None;
        let mut depth = 0;
        for (at, action) in thread.actions.iter().enumerate() {
            match (action, &mut open) {
                (Action::Begin(mark), None) if mark.kind == MarkKind::Operator => {
                    open = Some(OpenOperator { name: text(mark.name), ..OpenOperator::default() });
                }
                (Action::Begin(_), Some(_)) => depth += 1,
                (Action::End, Some(_)) if depth > 0 => depth -= 1,
                (Action::End, Some(_)) => {
                    let Some(done) = open.take() else { continue };
                    let variant = |calls| Variant { count: 1, calls };
                    add(&mut launches.outer, &done.name, &done.sizes, variant(done.calls));
                    for (_, (name, sizes), calls) in done.inside {
                        add(&mut launches.inner, &name, &sizes, variant(calls));
                    }
                }
                (Action::Host(segment), Some(open)) => open.sizes = text(segment.detail),
                (Action::Call(call), Some(open)) => {
                    let called = ApiCall {
                        name: text(call.cost.op),
                        launches: call.launches.iter().map(|work| self.launched(*work)).collect(),
                        awaits: self.streams(&call.awaits),
                        returns: call.returns,
                    };
                    open.calls.push(called.clone());
                    // The call also counts for the nested operator that made it, because another
                    // trace may contain that operator alone.
                    let Some(caller) = self.recorded.callers.get(&(place, at)) else { continue };
                    match open.inside.last_mut().filter(|inside| inside.0 == caller.row) {
                        Some(inside) => inside.2.push(called),
                        None => {
                            let named = (text(caller.name), text(caller.sizes));
                            open.inside.push((caller.row, named, vec![called]));
                        }
                    }
                }
                (Action::Wait(works), Some(open)) => {
                    let wait = ApiCall::wait("", self.streams(works));
                    open.calls.push(wait.clone());
                    open.inside.iter_mut().next_back().into_iter().for_each(|inside| {
                        inside.2.push(wait.clone());
                    });
                }
                _ => {}
            }
        }
    }

    fn launched(&self, work: WorkId) -> LaunchedWork {
        let work = &self.rank.works[work as usize];
        let met = work.collective.map(|at| &self.program.collectives[at as usize]);
        LaunchedWork {
            kind: work.kind,
            name: self.program.text(work.name).to_owned(),
            details: [(self.program.text(work.detail).to_owned(), 1)].into(),
            bytes: work.bytes,
            stream: self.rank.streams[work.stream as usize].number,
            collective: met.map(|met| (operation_name(met.operation), met.bytes)),
        }
    }

    fn streams(&self, works: &[WorkId]) -> Vec<i32> {
        let stream = |work: &WorkId| {
            let stream = self.rank.works[*work as usize].stream;
            self.rank.streams[stream as usize].number
        };
        works.iter().map(stream).collect::<BTreeSet<i32>>().into_iter().collect()
    }
}
