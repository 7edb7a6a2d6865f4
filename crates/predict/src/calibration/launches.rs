//! The calls and launches of recorded operators, from which an untimed step gets its own. Knows no
//! durations.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Calibration;
use crate::cost::operation_name;
use crate::program::{Action, MarkKind, Program, Rank, Returns, Thread, WorkId, WorkKind};
use crate::recording::{RecordedRank, Step};

/// What operators called, by their names and the sizes of their tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launches {
    /// Every operator that ran, those inside others too.
    pub seen: BTreeSet<String>,
    /// Outermost operators, with all that was called inside.
    pub outer: ByOperator,
    /// Operators that called something themselves, and only that.
    pub inner: ByOperator,
}

/// Variants by name, then by sizes.
pub type ByOperator = BTreeMap<String, BTreeMap<String, Vec<Variant>>>;

/// One way in which an operator of some sizes was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    pub count: u64,
    /// Its calls, in order.
    pub calls: Vec<Called>,
}

/// A call of the device's runtime, or a wait that no call shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Called {
    /// Its name; empty for a wait without a call.
    pub name: String,
    /// What it put on streams.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<Launched>,
    /// The streams whose last work it waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<i32>,
    pub returns: Returns,
}

/// A piece of device work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launched {
    /// Kernel, copy or set.
    pub kind: WorkKind,
    pub name: String,
    /// The keys of its samples with their counts; several if equal sizes did unequal work.
    pub details: BTreeMap<String, u64>,
    /// Bytes of a copy or a set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    pub stream: i32,
    /// Of a collective in which ranks met: the operation, and bytes of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective: Option<(String, u64)>,
}

impl Launches {
    /// Adds those of another recording.
    pub fn merge(&mut self, other: Self) {
        self.seen.extend(other.seen);
        for (to, from) in [(&mut self.outer, other.outer), (&mut self.inner, other.inner)] {
            for (name, by_sizes) in from {
                for (sizes, variants) in by_sizes {
                    for variant in variants {
                        add(to, (&name, &sizes), variant);
                    }
                }
            }
        }
    }

    /// Whether anything ran on a device.
    pub fn has_device(&self) -> bool {
        let variants = self.outer.values().flat_map(BTreeMap::values).flatten();
        variants.flat_map(|variant| &variant.calls).any(|call| !call.launches.is_empty())
    }
}

/// Adds what the operators of some ranks of a step called.
pub fn collect(calibration: &mut Calibration, step: &Step, ranks: &[usize]) {
    for at in ranks {
        let (rank, recorded) = (&step.program.ranks[*at], &step.recorded.ranks[*at]);
        let seen = recorded.operators.iter().map(|name| step.program.text(*name).to_owned());
        calibration.launches.seen.extend(seen);
        let read = Reader { program: &step.program, rank, recorded };
        for (place, thread) in rank.threads.iter().enumerate() {
            read.thread((place, thread), &mut calibration.launches);
        }
    }
}

/// Counts a variant, or adds to one that differs in no more than the samples of its works.
fn add(to: &mut ByOperator, (name, sizes): (&str, &str), variant: Variant) {
    let known = to.entry(name.to_owned()).or_default().entry(sizes.to_owned()).or_default();
    match known.iter_mut().find(|known| is_alike(&known.calls, &variant.calls)) {
        None => known.push(variant),
        Some(known) => {
            known.count += variant.count;
            let works = |calls: Vec<Called>| calls.into_iter().flat_map(|call| call.launches);
            let own = known.calls.iter_mut().flat_map(|call| &mut call.launches);
            for (own, other) in own.zip(works(variant.calls)) {
                for (detail, count) in other.details {
                    *own.details.entry(detail).or_default() += count;
                }
            }
        }
    }
}

fn is_alike(a: &[Called], b: &[Called]) -> bool {
    let work = |(a, b): (&Launched, &Launched)| {
        (a.kind, &a.name, a.stream, &a.collective) == (b.kind, &b.name, b.stream, &b.collective)
    };
    let call = |(a, b): (&Called, &Called)| {
        (&a.name, &a.awaits, a.returns, a.launches.len())
            == (&b.name, &b.awaits, b.returns, b.launches.len())
            && a.launches.iter().zip(&b.launches).all(work)
    };
    a.len() == b.len() && a.iter().zip(b).all(call)
}

struct Reader<'a> {
    program: &'a Program,
    rank: &'a Rank,
    recorded: &'a RecordedRank,
}

/// An operator whose calls are being read.
#[derive(Default)]
struct Open {
    name: String,
    sizes: String,
    calls: Vec<Called>,
    /// By the operator inside that called: its row, name and sizes.
    inside: Vec<(u32, (String, String), Vec<Called>)>,
}

impl Reader<'_> {
    fn thread(&self, (place, thread): (usize, &Thread), launches: &mut Launches) {
        let text = |name| self.program.text(name).to_owned();
        let mut open: Option<Open> = None;
        let mut depth = 0;
        for (at, action) in thread.actions.iter().enumerate() {
            match (action, &mut open) {
                (Action::Begin(mark), None) if mark.kind == MarkKind::Operator => {
                    open = Some(Open { name: text(mark.name), ..Open::default() });
                }
                (Action::Begin(_), Some(_)) => depth += 1,
                (Action::End, Some(_)) if depth > 0 => depth -= 1,
                (Action::End, Some(_)) => {
                    let Some(done) = open.take() else { continue };
                    let variant = |calls| Variant { count: 1, calls };
                    let outer = (done.name.as_str(), done.sizes.as_str());
                    add(&mut launches.outer, outer, variant(done.calls));
                    for (_, (name, sizes), calls) in done.inside {
                        add(&mut launches.inner, (&name, &sizes), variant(calls));
                    }
                }
                (Action::Host(segment), Some(open)) => open.sizes = text(segment.detail),
                (Action::Call(call), Some(open)) => {
                    let called = Called {
                        name: text(call.cost.op),
                        launches: call.launches.iter().map(|work| self.launched(*work)).collect(),
                        awaits: self.streams(&call.awaits),
                        returns: call.returns,
                    };
                    open.calls.push(called.clone());
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
                    let wait = Called {
                        name: String::new(),
                        launches: Vec::new(),
                        awaits: self.streams(works),
                        returns: Returns::AfterAwaited,
                    };
                    open.calls.push(wait.clone());
                    open.inside.iter_mut().next_back().into_iter().for_each(|inside| {
                        inside.2.push(wait.clone());
                    });
                }
                _ => {}
            }
        }
    }

    fn launched(&self, work: WorkId) -> Launched {
        let work = &self.rank.works[work as usize];
        let met = work.collective.map(|at| &self.program.collectives[at as usize]);
        Launched {
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
