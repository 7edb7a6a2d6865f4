//! Reads recorded traces into a [`Program`], and stores the recorded times separately from it.
//!
//! Dependencies come from the graph of the recording (`analyze::graph::measured`). Only the nodes
//! and edges of this graph are read. The weights of the graph contain unexplained time, so a
//! simulation with them would only reproduce the recording.

mod reader;
mod recorded;
mod sizes;
mod span;
mod structure;
mod thread_events;
mod thread_sync;
mod threads;
mod works;

use std::collections::BTreeMap;

use analyze::Scope;
use analyze::job::{OperatorTensors, Tensors};
use schema::OpWork;

pub use recorded::{Caller, Place, RankSetting, RankTimes, RecordedTimes, Setting, Step};
pub(crate) use sizes::text_bytes;
pub use span::{Span, spans};
pub use structure::Structure;

use self::reader::RankReader;
use crate::Error;
use crate::program::{Collective, Program, Rank};

/// Tensor sizes of operators. The sizes are read from the trace files, because the column store
/// does not contain them.
#[derive(Clone, Debug, Default)]
pub struct TensorSizes {
    pub tensors: OperatorTensors,
    /// FLOPs and bytes of operators that report both, as rowmill's own runs do, by rank and row.
    pub work: BTreeMap<(u32, u32), OpWork>,
}

/// The traces of a job, prepared so that any of its steps can be read.
pub struct Job<'a> {
    facts: analyze::JobFacts<'a>,
    structure: Structure,
    /// Tensor sizes as text. The key of the map is a rank and a row.
    size_texts: BTreeMap<(u32, u32), String>,
    work: BTreeMap<(u32, u32), OpWork>,
}

impl<'a> Job<'a> {
    /// Prepares the traces of a job. `sizes` reads the tensor sizes of the given rows of each scope
    /// from the files. The function may return nothing if the files have no sizes.
    ///
    /// # Cost
    /// `O(n log n)` in the number of rows of the traces.
    pub fn new(scopes: &'a [Scope<'a>], sizes: impl FnOnce(&[Vec<u32>]) -> TensorSizes) -> Self {
        let facts = analyze::JobFacts::new(scopes);
        let asked = facts.ranks.iter().map(|rank| sizes::rows(rank.scope, rank.tree()));
        let sizes = sizes(&asked.collect::<Vec<_>>());
        let mut structure = Structure::from_job(&facts);
        for meeting in &mut structure.meetings {
            let said = meeting.parts.iter().filter_map(|&(rank, row)| {
                sizes::bytes(&scopes[rank], facts.ranks[rank].tree(), &sizes.tensors, row)
            });
            meeting.bytes = meeting.bytes.max(said.max().unwrap_or(0));
        }
        let text = |(place, tensors): (&(u32, u32), &Tensors)| (*place, sizes::text(tensors));
        let mut size_texts: BTreeMap<(u32, u32), String> = sizes.tensors.iter().map(text).collect();
        for facts in &facts.ranks {
            let rank = facts.scope.trace.rank;
            for (backward, forward) in sizes::forward(facts.scope, facts.tree()) {
                if let Some(text) = size_texts.get(&(rank, forward)).cloned() {
                    size_texts.entry((rank, backward)).or_insert(text);
                }
            }
        }
        Self { facts, structure, size_texts, work: sizes.work }
    }

    /// Returns the number of collectives of which some ranks were not recorded. Such collectives
    /// keep their measured time, waits included.
    pub fn partial_collectives(&self) -> usize {
        self.structure.partial
    }

    /// Reads one step between the given spans, one span per scope.
    ///
    /// # Errors
    /// [`Error::NoHostRows`] for a rank without any recorded host rows in its span.
    pub fn step(&self, spans: &[Span]) -> Result<Step, Error> {
        let mut step = Step::default();
        let mut work_of: Vec<BTreeMap<u32, u32>> = Vec::new();
        for (at, (facts, span)) in self.facts.ranks.iter().zip(spans).enumerate() {
            let scope = facts.scope;
            let read = RankReader {
                scope,
                tree: facts.tree(),
                waits: &self.structure.ranks[at],
                size_texts: &self.size_texts,
                work: &self.work,
                span: *span,
            };
            let mut rank = Rank { rank: scope.trace.rank, ..Rank::default() };
            let mut recorded = RankTimes {
                start_ns: span.start,
                step_ns: span.end - span.start,
                ..RankTimes::default()
            };
            let of_row = works::read(&read, &mut step.program.names, &mut rank, &mut recorded);
            let places = of_row.iter().map(|(row, work)| (*row, Place::Work(*work)));
            recorded.rows.extend(places);
            threads::read(&read, &mut step.program.names, &of_row, &mut rank, &mut recorded)?;
            step.program.ranks.push(rank);
            step.recorded.ranks.push(recorded);
            work_of.push(of_row);
        }
        self.meet(&mut step.program, &work_of);
        Ok(step)
    }

    /// Adds the collectives whose participants were all launched in the step.
    fn meet(&self, program: &mut Program, work_of: &[BTreeMap<u32, u32>]) {
        for one in &self.structure.meetings {
            let part = |&(rank, row): &(usize, u32)| Some((rank, *work_of[rank].get(&row)?));
            let parts: Option<Vec<_>> = one.parts.iter().map(part).collect();
            let Some(parts) = parts else { continue };
            let launched = |(rank, work): &(usize, u32)| {
                program.ranks[*rank].works[*work as usize].is_launched
            };
            if parts.iter().all(launched) {
                let (operation, bytes) = (one.operation, one.bytes);
                program.add_collective(Collective { operation, bytes, parts });
            }
        }
    }
}
