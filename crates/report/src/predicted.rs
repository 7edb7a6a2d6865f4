//! Compares a recorded step with its prediction: bars of both on a timeline, the execution graph of
//! the prediction, and the prediction error. All times are computed by `predict`.

use std::collections::BTreeMap;

use predict::evaluate::error_pct;
use predict::prediction::PredictedStepRow;
use predict::prediction::what_if::WhatIf;
use predict::program::{Action, MarkKind, Program, Rank, WorkKind};
use predict::recording::{RankTimes, Step};
use predict::simulate::Simulation;
use serde::Serialize;
use trace::store::StringId;

/// All data that the page of a prediction shows.
#[derive(Clone, Debug, Serialize)]
pub struct Predicted {
    pub title: String,
    pub program: String,
    /// Text of the file with the applied edits. The text is empty without edits.
    pub edits: String,
    /// The recorded ranks, followed by the ranks that edits add.
    pub ranks: Vec<RankView>,
    /// Unique names, to which bars refer by index.
    pub names: Vec<String>,
}

/// The step of one rank, recorded and predicted.
#[derive(Clone, Debug, Serialize)]
pub struct RankView {
    /// The prediction with edits. The base time of this row is the prediction without edits.
    pub row: PredictedStepRow,
    pub measured_ns: i64,
    /// Error of the prediction without edits, in percent of the recorded time.
    pub error_pct: f64,
    pub measured: BarLanes,
    pub predicted: BarLanes,
    /// Dependencies in the predicted step, as indices of two bars with the kind of the dependency.
    pub edges: Vec<(u32, u32, EdgeKind)>,
}

/// Bars in lanes. The lanes of threads come first, followed by the lanes of streams.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BarLanes {
    pub lanes: Vec<String>,
    /// Bars of operators by thread, followed by bars of device work.
    pub bars: Vec<Bar>,
}

/// An operator or a piece of device work. Times are in nanoseconds since the start of the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bar {
    pub lane: u32,
    pub start_ns: i64,
    pub end_ns: i64,
    /// Index of the name in [`Predicted::names`].
    pub name: u32,
    /// Index of the text with the tensor sizes in [`Predicted::names`].
    pub sizes: u32,
    pub kind: BarKind,
}

/// The kind of a bar, which determines its color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BarKind {
    Operator,
    Compute,
    /// A memory copy or a memory set.
    Memory,
    /// A collective that synchronizes ranks.
    Communication,
}

/// The reason for which one bar waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// Device work waits for the operator that launches it.
    Launch,
    /// Device work waits for the previous work of its stream.
    Queue,
    /// Device work waits for work of another stream.
    Event,
    /// An operator waits for device work.
    Wait,
}

/// Builds the data of the page from a recorded step and its prediction. `edits` is the text of the
/// file with the edits.
pub fn build_page(title: &str, step: &Step, found: &WhatIf, edits: String) -> Predicted {
    let mut names = Names::default();
    // Recorded names are interned first, so that their indices do not depend on the edits.
    let recorded = step.program.ranks.iter().zip(&step.recorded.ranks);
    let measured: Vec<BarLanes> = recorded
        .map(|(rank, when)| DrawnRank { program: &step.program, rank }.lanes(&mut names, when).0)
        .collect();
    let one = |row: &PredictedStepRow| {
        let at = found.rows.iter().position(|other| other.rank == row.rank).unwrap_or_default();
        let rank = &found.program.ranks[at];
        let recorded = rank.copy_of.unwrap_or(at);
        let measured_ns = step.recorded.ranks[recorded].step_ns;
        let drawn = DrawnRank { program: &found.program, rank };
        let (predicted, operators) = drawn.lanes(&mut names, &Simulated(&found.simulation, at));
        RankView {
            row: row.clone(),
            measured_ns,
            error_pct: error_pct(row.base_ns.unwrap_or(row.step_ns), measured_ns),
            measured: measured[recorded].clone(),
            edges: drawn.edges(&operators),
            predicted,
        }
    };
    let ranks = found.rows.iter().map(one).collect();
    Predicted {
        title: title.to_owned(),
        program: concat!("rowmill ", env!("CARGO_PKG_VERSION")).to_owned(),
        edits,
        ranks,
        names: names.all,
    }
}

/// Interns the names of bars, so that each name is stored once.
#[derive(Default)]
struct Names {
    all: Vec<String>,
    place: BTreeMap<String, u32>,
}

impl Names {
    fn place(&mut self, text: &str) -> u32 {
        if let Some(place) = self.place.get(text) {
            return *place;
        }
        let place = self.all.len() as u32;
        self.all.push(text.to_owned());
        self.place.insert(text.to_owned(), place);
        place
    }
}

/// Source of the times of a step, which is either a recording or a simulation.
trait ActionTimes {
    /// Returns the end of an action of a thread.
    fn action_ns(&self, thread: usize, action: usize) -> i64;
    /// Returns the start and end of a piece of device work.
    fn work_ns(&self, work: u32) -> (i64, i64);
}

impl ActionTimes for RankTimes {
    fn action_ns(&self, thread: usize, action: usize) -> i64 {
        self.actions[thread][action].1
    }

    fn work_ns(&self, work: u32) -> (i64, i64) {
        self.works[work as usize]
    }
}

/// The times of one rank in a simulation. The second field is the index of the rank.
struct Simulated<'a>(&'a Simulation, usize);

impl ActionTimes for Simulated<'_> {
    fn action_ns(&self, thread: usize, action: usize) -> i64 {
        self.0.action_ns(self.1, thread, action).1 - self.0.start_ns(self.1)
    }

    fn work_ns(&self, work: u32) -> (i64, i64) {
        let (from, to) = self.0.work_ns(self.1, work);
        let start = self.0.start_ns(self.1);
        (from - start, to - start)
    }
}

/// A rank that is drawn, with the program that contains it.
struct DrawnRank<'a> {
    program: &'a Program,
    rank: &'a Rank,
}

/// For each bar of an operator, its thread, its first action and its last action.
type Operators = Vec<(usize, usize, usize)>;

impl DrawnRank<'_> {
    fn lanes(&self, names: &mut Names, when: &impl ActionTimes) -> (BarLanes, Operators) {
        let rank = self.rank;
        let threads = rank.threads.iter().map(|thread| format!("thread {}", thread.tid));
        let streams = rank.streams.iter();
        let streams = streams.map(|one| format!("device {}, stream {}", one.device, one.number));
        let mut lanes = BarLanes { lanes: threads.chain(streams).collect(), bars: Vec::new() };
        let operators = operators(rank);
        for (thread, first, last) in &operators {
            let of = &rank.threads[*thread].actions[*first..=*last];
            let sizes = of.iter().find_map(|action| match action {
                Action::Host(segment) => Some(segment.detail),
                _ => None,
            });
            let name = match of[0] {
                Action::Begin(mark) => mark.name,
                _ => StringId::default(),
            };
            lanes.bars.push(Bar {
                lane: *thread as u32,
                start_ns: when.action_ns(*thread, *first),
                end_ns: when.action_ns(*thread, *last),
                name: names.place(self.program.text(name)),
                sizes: names.place(sizes.map_or("", |sizes| self.program.text(sizes))),
                kind: BarKind::Operator,
            });
        }
        for (number, work) in (0u32..).zip(&rank.works) {
            let (start_ns, end_ns) = when.work_ns(number);
            let kind = match work.kind {
                _ if work.collective.is_some() => BarKind::Communication,
                WorkKind::Kernel => BarKind::Compute,
                WorkKind::Copy | WorkKind::Set => BarKind::Memory,
            };
            lanes.bars.push(Bar {
                lane: rank.threads.len() as u32 + work.stream,
                start_ns,
                end_ns,
                name: names.place(self.program.text(work.name)),
                sizes: names.place(self.program.text(work.detail)),
                kind,
            });
        }
        (lanes, operators)
    }

    fn edges(&self, operators: &Operators) -> Vec<(u32, u32, EdgeKind)> {
        let bar = |work: u32| operators.len() as u32 + work;
        let mut edges = Vec::new();
        for (at, (thread, first, last)) in (0u32..).zip(operators) {
            for action in &self.rank.threads[*thread].actions[*first..=*last] {
                let (launches, awaits) = match action {
                    Action::Call(call) => (call.launches.as_slice(), call.awaits.as_slice()),
                    Action::Wait(works) => (&[][..], works.as_slice()),
                    _ => continue,
                };
                edges.extend(launches.iter().map(|work| (at, bar(*work), EdgeKind::Launch)));
                edges.extend(awaits.iter().map(|work| (bar(*work), at, EdgeKind::Wait)));
            }
        }
        for (number, work) in (0u32..).zip(&self.rank.works) {
            let behind = work.behind.iter().map(|one| (bar(*one), bar(number), EdgeKind::Queue));
            edges.extend(behind);
            let after = work.after.iter().map(|one| (bar(*one), bar(number), EdgeKind::Event));
            edges.extend(after);
        }
        edges
    }
}

/// Lists the outermost operators of a rank, thread by thread, in execution order.
fn operators(rank: &Rank) -> Operators {
    let mut found = Vec::new();
    for (thread, of) in rank.threads.iter().enumerate() {
        let mut begin = None;
        for (at, action) in of.actions.iter().enumerate() {
            match action {
                Action::Begin(mark) if mark.kind == MarkKind::Operator => begin = Some(at),
                Action::End => found.extend(begin.take().map(|begin| (thread, begin, at))),
                _ => {}
            }
        }
    }
    found
}
