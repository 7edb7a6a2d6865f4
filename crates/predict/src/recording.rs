//! From recorded traces to a [`Program`] and, apart from it, the times it was recorded with.
//!
//! Dependencies come from the graph of the recording (`analyze::graph::measured`), of which only
//! nodes and edges are read: its weights absorb unexplained time, so relaxing it would only
//! reproduce the recording.

mod hand_offs;
mod points;
mod sizes;
mod span;
mod structure;
mod threads;
mod works;

use std::collections::{BTreeMap, BTreeSet};

use analyze::Scope;
use analyze::job::{OperatorTensors, Tensors};
use analyze::tree::OperatorTree;
use schema::OpWork;
use trace::store::StringId;

pub(crate) use sizes::text_bytes;
pub use span::{Span, spans};
pub use structure::Structure;

use crate::Error;
use crate::program::{Action, Collective, Program, Rank};

/// When everything of a [`Program`] was recorded; nanoseconds since the start of its rank's step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// By place of the rank.
    pub ranks: Vec<RecordedRank>,
}

/// A rank's part of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRank {
    /// When the step started, absolute nanoseconds.
    pub start_ns: i64,
    /// How long it took on the host.
    pub step_ns: i64,
    /// Per thread, per action: from, to.
    pub actions: Vec<Vec<(i64, i64)>>,
    /// Per work: from, to.
    pub works: Vec<(i64, i64)>,
    /// The program part made of each row of the trace, if it is a single one.
    pub rows: BTreeMap<u32, Place>,
    /// Every operator that ran, those inside others too.
    pub operators: BTreeSet<StringId>,
    /// Per thread, per action: events of the host that began then, of what is inside too.
    pub events: Vec<Vec<u32>>,
    /// By place of the thread and of a call among its actions: who makes it.
    pub callers: BTreeMap<(usize, usize), Caller>,
}

/// The innermost operator around a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub row: u32,
    pub name: StringId,
    /// The sizes of its tensors.
    pub sizes: StringId,
}

/// Where a row of a trace is in a rank's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Work(u32),
    /// A call or an outermost operator: its thread, its first and its last action.
    Actions {
        /// Place of the thread.
        thread: usize,
        /// Place of the first action.
        first: usize,
        /// Place of the last one.
        last: usize,
    },
}

impl RecordedRank {
    /// The own cost of a thread's action; for a launch into a full queue, counted from when there
    /// was room.
    pub fn own_ns(&self, action: &Action, (from, to): (i64, i64)) -> i64 {
        to - self.begun_ns(action, (from, to))
    }

    /// Number of host events that began during an action; 0 if the recording has no counts for it.
    pub fn events_in(&self, thread: usize, action: usize) -> u32 {
        self.events.get(thread).and_then(|events| events.get(action)).copied().unwrap_or_default()
    }

    /// When a call began to launch: at its start, or when there was room.
    pub fn begun_ns(&self, action: &Action, (from, to): (i64, i64)) -> i64 {
        let room = match action {
            Action::Call(call) => call.room,
            _ => None,
        };
        room.map_or(from, |work| self.works[work as usize].1.clamp(from, to))
    }
}

/// The start of a step, which neither program nor calibration contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// By place of the rank.
    pub ranks: Vec<RankSetting>,
}

/// Where a rank's step begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSetting {
    /// When, on the clock of all ranks.
    pub start_ns: i64,
    /// From when to when the works run that it does not launch, in their order; since its start.
    pub left_running: Vec<(i64, i64)>,
}

impl Setting {
    /// Where the step of the rank at a place begins; of one nobody knows, at 0.
    pub fn of(&self, place: usize) -> &RankSetting {
        const UNKNOWN: &RankSetting = &RankSetting { start_ns: 0, left_running: Vec::new() };
        self.ranks.get(place).unwrap_or(UNKNOWN)
    }
}

impl Recorded {
    /// Where the steps began.
    pub fn setting(&self, program: &Program) -> Setting {
        let ranks = program.ranks.iter().zip(&self.ranks).map(|(rank, recorded)| {
            let works = rank.works.iter().zip(&recorded.works);
            let left = works.filter(|(work, _)| !work.is_launched).map(|(_, times)| *times);
            RankSetting { start_ns: recorded.start_ns, left_running: left.collect() }
        });
        Setting { ranks: ranks.collect() }
    }
}

/// One recorded step.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub program: Program,
    pub recorded: Recorded,
}

/// What no column of a trace has: asked of its file.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    /// The tensors of operators.
    pub tensors: OperatorTensors,
    /// FLOPs and bytes of operators that say both, as those of our own runs do; by rank and row.
    pub work: BTreeMap<(u32, u32), OpWork>,
}

/// The traces of a job, prepared for reading steps.
pub struct Job<'a> {
    facts: analyze::JobFacts<'a>,
    structure: Structure,
    /// By rank and row.
    size_texts: BTreeMap<(u32, u32), String>,
    work: BTreeMap<(u32, u32), OpWork>,
}

impl<'a> Job<'a> {
    /// Prepares the traces of a job; scopes are of all that was recorded. `sizes` is asked, per
    /// scope, for the sizes of the tensors of some rows, which no column has; none will do.
    ///
    /// # Cost
    /// `O(n log n)` in the rows of the traces.
    pub fn new(scopes: &'a [Scope<'a>], sizes: impl FnOnce(&[Vec<u32>]) -> Sizes) -> Self {
        let facts = analyze::JobFacts::new(scopes);
        let asked = facts.ranks.iter().map(|rank| sizes::rows(rank.scope, rank.tree()));
        let sizes = sizes(&asked.collect::<Vec<_>>());
        let mut structure = Structure::of(&facts);
        for meeting in &mut structure.meetings {
            let said = meeting.parts.iter().filter_map(|&(rank, row)| {
                sizes::bytes((&scopes[rank], facts.ranks[rank].tree(), &sizes.tensors), row)
            });
            meeting.bytes = meeting.bytes.max(said.max().unwrap_or(0));
        }
        let text = |(place, tensors): (&(u32, u32), &Tensors)| (*place, sizes::text(tensors));
        let size_texts = sizes.tensors.iter().map(text).collect();
        Self { facts, structure, size_texts, work: sizes.work }
    }

    /// How many collectives of the recording stay as they were measured, waits included: not all of
    /// their ranks were recorded.
    pub fn partial_collectives(&self) -> usize {
        self.structure.partial
    }

    /// The step between the given spans, one per scope.
    ///
    /// # Errors
    /// [`Error::NoHostRows`] for a rank of which nothing was recorded in its span.
    pub fn step(&self, spans: &[Span]) -> Result<Step, Error> {
        let mut step = Step::default();
        let mut work_of: Vec<BTreeMap<u32, u32>> = Vec::new();
        for (at, (facts, span)) in self.facts.ranks.iter().zip(spans).enumerate() {
            let scope = facts.scope;
            let read = Reader {
                scope,
                tree: facts.tree(),
                waits: &self.structure.ranks[at],
                size_texts: &self.size_texts,
                work: &self.work,
                span: *span,
            };
            let mut rank = Rank { rank: scope.trace.rank, ..Rank::default() };
            let mut recorded = RecordedRank {
                start_ns: span.start,
                step_ns: span.end - span.start,
                ..RecordedRank::default()
            };
            let of_row = works::read(&read, &mut step.program.names, (&mut rank, &mut recorded));
            let places = of_row.iter().map(|(row, work)| (*row, Place::Work(*work)));
            recorded.rows.extend(places);
            threads::read(&read, &mut step.program.names, (&of_row, &mut rank, &mut recorded))?;
            step.program.ranks.push(rank);
            step.recorded.ranks.push(recorded);
            work_of.push(of_row);
        }
        self.meet(&mut step.program, &work_of);
        Ok(step)
    }

    /// Adds the collectives all of whose participants are in the step.
    fn meet(&self, program: &mut Program, work_of: &[BTreeMap<u32, u32>]) {
        for one in &self.structure.meetings {
            let part = |&(rank, row): &(usize, u32)| Some((rank, *work_of[rank].get(&row)?));
            let parts: Option<Vec<_>> = one.parts.iter().map(part).collect();
            let Some(parts) = parts else { continue };
            let launched = |(rank, work): &(usize, u32)| {
                program.ranks[*rank].works[*work as usize].is_launched
            };
            if !parts.iter().all(launched) {
                continue;
            }
            let number = program.collectives.len() as u32;
            for (rank, work) in &parts {
                program.ranks[*rank].works[*work as usize].collective = Some(number);
            }
            let (operation, bytes) = (one.operation, one.bytes);
            program.collectives.push(Collective { operation, bytes, parts });
        }
    }
}

/// What is read of one rank.
struct Reader<'a> {
    scope: &'a Scope<'a>,
    tree: &'a OperatorTree,
    waits: &'a structure::RankWaits,
    size_texts: &'a BTreeMap<(u32, u32), String>,
    work: &'a BTreeMap<(u32, u32), OpWork>,
    span: Span,
}

impl Reader<'_> {
    /// A time since the step's start.
    fn since(&self, time: i64) -> i64 {
        time - self.span.start
    }

    /// The sizes of an operator's tensors; empty where nothing says.
    fn size_text(&self, row: u32) -> &str {
        self.size_texts.get(&(self.scope.trace.rank, row)).map_or("", String::as_str)
    }
}
