//! Writes a simulated step as traces, which every analysis can read like recorded ones.

use trace::store::{Collective, Distributed, NewSlice, StringId, Trace};

use super::Simulation;
use crate::cost::operation_name;
use crate::program::{Action, MarkKind, Program, Rank, WorkKind};

/// Converts a simulated step to traces, one per rank, which every analysis can read like recorded
/// ones.
///
/// The threads of the traces contain the operators, annotations and calls of the program, and the
/// streams contain its device work. A call and its work share a correlation id. Programs do not
/// contain nested operators.
pub fn traces(program: &Program, simulation: &Simulation) -> Vec<Trace> {
    let world = program.ranks.len() as u32;
    let one = |(at, rank): (usize, &Rank)| {
        let mut trace = Trace { rank: rank.rank, ..Trace::default() };
        trace.header.distributed = Some(Distributed {
            backend: "simulated".to_owned(),
            rank: Some(rank.rank),
            world_size: Some(world),
            groups: Vec::new(),
        });
        let write = TraceWriter { program, simulation, rank, at };
        let correlations = write.threads(&mut trace);
        write.works(&mut trace, &correlations);
        trace.phases.insert("X".to_owned(), trace.slices.len() as u64);
        trace
    };
    program.ranks.iter().enumerate().map(one).collect()
}

/// Writes the trace of one rank. `at` is the position of the rank in the program.
struct TraceWriter<'a> {
    program: &'a Program,
    simulation: &'a Simulation,
    rank: &'a Rank,
    at: usize,
}

impl TraceWriter<'_> {
    /// Writes the threads of the rank. Returns, for each work, the correlation id of the call that
    /// launched it.
    fn threads(&self, trace: &mut Trace) -> Vec<Option<u64>> {
        let mut correlations = vec![None; self.rank.works.len()];
        let mut last = 0;
        for (place, thread) in self.rank.threads.iter().enumerate() {
            let track = (thread.pid, thread.tid);
            let mut open: Vec<(StringId, MarkKind, i64)> = Vec::new();
            let mut rows: Vec<(i64, i64, &str, &str, Option<u64>)> = Vec::new();
            for (at, action) in thread.actions.iter().enumerate() {
                let (start, end) = self.simulation.action_ns(self.at, place, at);
                match action {
                    Action::Begin(mark) => open.push((mark.name, mark.kind, end)),
                    Action::End => {
                        let Some((name, kind, start)) = open.pop() else { continue };
                        rows.push((start, end, category(kind), self.program.text(name), None));
                    }
                    Action::Call(call) => {
                        last += 1;
                        let name = self.program.text(call.cost.op);
                        rows.push((start, end, "cuda_runtime", name, Some(last)));
                        for work in &call.launches {
                            correlations[*work as usize] = Some(last);
                        }
                    }
                    _ => {}
                }
            }
            // Profilers write rows in the order of their start, and longer rows before shorter rows
            // of the same start.
            rows.sort_by_key(|(start, end, ..)| (*start, -*end));
            for (start, end, category, name, correlation) in rows {
                let name = match name.strip_suffix("ProfilerStep#") {
                    Some(_) => self.program.text(self.rank.step),
                    None => name,
                };
                let slice = NewSlice::new(category, name, track, (start, end));
                trace.push(&NewSlice { correlation, ..slice });
            }
        }
        correlations
    }

    fn works(&self, trace: &mut Trace, correlations: &[Option<u64>]) {
        for (at, work) in self.rank.works.iter().enumerate() {
            let span = self.simulation.work_ns(self.at, at as u32);
            let stream = self.rank.streams[work.stream as usize];
            let category = match work.kind {
                WorkKind::Kernel => "kernel",
                WorkKind::Copy => "gpu_memcpy",
                WorkKind::Set => "gpu_memset",
            };
            let track = (i64::from(stream.device), i64::from(stream.number));
            let slice = NewSlice::new(category, self.program.text(work.name), track, span);
            let row = trace.push(&NewSlice {
                correlation: correlations[at],
                device: Some(stream.device),
                stream: Some(stream.number),
                ..slice
            });
            if let Some(shape) = work.shape {
                trace.slices.launch_shape.push(row, shape);
            }
            if let Some(bytes) = work.bytes {
                trace.slices.bytes.push(row, bytes);
            }
            if let Some(number) = work.collective {
                let argument = self.collective(trace, number);
                trace.slices.collective.push(row, argument);
            }
        }
    }

    fn collective(&self, trace: &mut Trace, number: u32) -> Collective {
        let collective = &self.program.collectives[number as usize];
        Collective {
            name: trace.strings.intern(&operation_name(collective.operation)),
            dtype: trace.strings.intern("Byte"),
            elements_in: Some(collective.bytes),
            elements_out: Some(collective.bytes),
            group_size: Some(collective.parts.len() as u32),
            sequence: Some(u64::from(number)),
            ..Collective::default()
        }
    }
}

fn category(kind: MarkKind) -> &'static str {
    match kind {
        MarkKind::Operator => "cpu_op",
        MarkKind::Annotation => "user_annotation",
    }
}
