//! A recorded step beside the one that is predicted: bars of both on a timeline, the execution
//! graph of the predicted one, and how far off the prediction is. Decides no time.

use std::collections::BTreeMap;

use predict::prediction::what_if::{WhatIf, WhatIfRow};
use predict::program::{Action, MarkKind, Program, Rank, WorkKind};
use predict::recording::{RankTimes, Step};
use predict::simulate::Simulation;
use serde::Serialize;
use trace::store::StringId;

/// Everything that a page of a prediction shows.
#[derive(Clone, Debug, Serialize)]
pub struct Predicted {
    /// What the page is called.
    pub title: String,
    pub program: String,
    /// The edits that were made, as a file of edits; empty of none.
    pub edits: String,
    /// Every rank that was recorded, and those that edits add.
    pub ranks: Vec<RankView>,
    /// Every name once; bars name theirs by place.
    pub names: Vec<String>,
}

/// A rank's step, recorded and predicted.
#[derive(Clone, Debug, Serialize)]
pub struct RankView {
    /// The prediction; its base is the step without edits.
    pub row: WhatIfRow,
    pub measured_ns: i64,
    /// Of the prediction without edits.
    pub error_pct: f64,
    pub measured: BarLanes,
    pub predicted: BarLanes,
    /// Who waits for whom in the predicted step, by places of its bars.
    pub edges: Vec<(u32, u32, EdgeKind)>,
}

/// Bars in lanes: threads, then streams.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BarLanes {
    /// What the lanes are called.
    pub lanes: Vec<String>,
    /// Operators, thread by thread, then device work.
    pub bars: Vec<Bar>,
}

/// An operator or a piece of device work; nanoseconds since the start of the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bar {
    /// Place of its lane.
    pub lane: u32,
    pub start_ns: i64,
    pub end_ns: i64,
    /// Place of its name.
    pub name: u32,
    /// Place of the sizes of its tensors.
    pub sizes: u32,
    pub kind: BarKind,
}

/// What a bar is; the page colours it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BarKind {
    /// An operator of a thread.
    Operator,
    Compute,
    /// A copy or a set.
    Memory,
    /// A collective in which ranks meet.
    Communication,
}

/// Why one thing waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// An operator launches work.
    Launch,
    /// Work of a stream runs in its order.
    Queue,
    /// Work of one stream waits for work of another.
    Event,
    /// An operator waits for work.
    Wait,
}

/// Puts a recorded step and what is predicted of it on a page. `edits` is their file.
pub fn of(title: &str, step: &Step, (found, edits): (&WhatIf, String)) -> Predicted {
    let mut names = Names::default();
    // First, so that their names have the same places whatever the edits are.
    let recorded = step.program.ranks.iter().zip(&step.recorded.ranks);
    let measured: Vec<BarLanes> = recorded
        .map(|(rank, when)| DrawnRank { program: &step.program, rank }.lanes(&mut names, when).0)
        .collect();
    let one = |row: &WhatIfRow| {
        let at = found.rows.iter().position(|other| other.rank == row.rank).unwrap_or_default();
        let rank = &found.program.ranks[at];
        let recorded = rank.copy_of.unwrap_or(at);
        let measured_ns = step.recorded.ranks[recorded].step_ns;
        let drawn = DrawnRank { program: &found.program, rank };
        let (predicted, operators) = drawn.lanes(&mut names, &Simulated(&found.simulation, at));
        RankView {
            row: row.clone(),
            measured_ns,
            error_pct: 100.0 * (row.base_ns - measured_ns) as f64 / measured_ns.max(1) as f64,
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

/// Names of bars, each once.
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

/// When things happen.
trait ActionTimes {
    /// When an action of a thread is done.
    fn action_ns(&self, thread: usize, action: usize) -> i64;
    /// From when to when a work runs.
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

/// The rank at a place of a simulation.
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

/// A rank that is drawn.
struct DrawnRank<'a> {
    program: &'a Program,
    rank: &'a Rank,
}

/// Where the operators are among the bars: thread, first and last action.
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

/// The outermost operators of a rank's threads, in order.
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
