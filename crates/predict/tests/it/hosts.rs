//! Tests of edits of host work on random programs. The result must equal a program that was written
//! with the edit in place: operators on a second thread, or copies that the host does not await.

use predict::edit::{self, Edit};
use predict::program::{
    Action, Call, Mark, MarkKind, Overhead, Program, Rank, Returns, Segment, Stream, Thread, Work,
    WorkKind,
};
use proptest::prelude::*;
use trace::store::{StringId, Strings};

use crate::transforms::times;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// The device work and the wait of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Do {
    Kernel,
    /// Launches a kernel and waits for it, as `aten::item` does.
    Item,
    /// Copies to the device with a call that returns after the copy.
    Copy,
    /// Copies to the device, then waits for the copy in a separate call.
    CopyThenWait,
}

type Spec = (usize, Do, u32);

/// Options for writing the program of some operators.
#[derive(Clone, Copy, Debug, Default)]
struct Written<'a> {
    /// The operators that a second thread calls, and the operator that waits for them.
    moved: Option<(&'a str, Option<&'a str>)>,
    is_pinned: bool,
}

struct Writer {
    names: Strings,
    rank: Rank,
    last: [Option<u32>; 2],
}

impl Writer {
    fn host(&mut self, overhead: Overhead, (op, detail): (&str, &str)) -> Action {
        let (op, detail) = (self.names.intern(op), self.names.intern(detail));
        Action::Host(Segment { overhead, op, detail })
    }

    fn work(&mut self, (op, does, stream): (&str, Do, u32), is_pinned: bool) -> u32 {
        let (name, kind) = match does {
            Do::Kernel | Do::Item => (format!("k_{op}"), WorkKind::Kernel),
            Do::Copy | Do::CopyThenWait => {
                let from = if is_pinned { "Pinned" } else { "Pageable" };
                (format!("Memcpy HtoD ({from} -> Device)"), WorkKind::Copy)
            }
        };
        let id = self.rank.works.len() as u32;
        self.rank.works.push(Work {
            name: self.names.intern(&name),
            kind,
            stream,
            op: self.names.intern(op),
            detail: StringId::default(),
            shape: None,
            bytes: None,
            behind: self.last[stream as usize].replace(id),
            after: Vec::new(),
            collective: None,
            parts: Vec::new(),
            scale: 1.0,
            is_launched: true,
            held_ns: 0,
            repeated: None,
        });
        id
    }

    fn operator(&mut self, (name, does, stream): Spec, is_pinned: bool) -> Vec<Action> {
        let op = NAMES[name];
        let id = self.work((op, does, stream), is_pinned);
        let mark = Mark::new(self.names.intern(op), MarkKind::Operator);
        let before = self.host(Overhead::BeforeFirstLaunch, (op, ""));
        let mut actions = vec![Action::Begin(mark), before];
        let cost = |names: &mut Strings, name: &str| Segment {
            overhead: Overhead::RuntimeCall,
            op: names.intern(name),
            detail: mark.name,
        };
        let waits = does == Do::Copy && !is_pinned;
        let (awaits, returns) =
            if waits { (vec![id], Returns::AfterCopy) } else { (Vec::new(), Returns::AtOnce) };
        let launch = cost(&mut self.names, "launch");
        let launches = vec![id];
        actions.push(Action::Call(Call { cost: launch, launches, awaits, room: None, returns }));
        if does == Do::Item || (does == Do::CopyThenWait && !is_pinned) {
            let cost = cost(&mut self.names, "wait");
            let (launches, awaits, returns) = (Vec::new(), vec![id], Returns::AfterAwaited);
            actions.push(Action::Call(Call { cost, launches, awaits, room: None, returns }));
        }
        actions.push(Action::End);
        actions
    }
}

fn written(specs: &[Spec], how: Written<'_>) -> Program {
    let mut names = Strings::default();
    names.intern("");
    let mut writer = Writer { names, rank: Rank::default(), last: [None; 2] };
    writer.rank.streams = (0..2).map(|number| Stream { device: 0, number }).collect();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut left = "start";
    let mut next = 0;
    let mut pending: Vec<(usize, u32)> = Vec::new();
    for (at, spec) in specs.iter().enumerate() {
        let name = NAMES[spec.0];
        let actions = writer.operator(*spec, how.is_pinned);
        if let Some((moved, join)) = how.moved.filter(|(moved, _)| *moved == name) {
            let joins = |later: &&Spec| Some(NAMES[later.0]) == join && NAMES[later.0] != moved;
            first.push(Action::Signal(next));
            second.push(Action::Await { signal: next, wakes: Some(StringId::default()) });
            second.extend(actions);
            if let Some(place) = specs[at + 1..].iter().position(|later| joins(&later)) {
                second.push(Action::Signal(next + 1));
                pending.push((at + 1 + place, next + 1));
            }
            next += 2;
            continue;
        }
        first.push(writer.host(Overhead::BetweenOps, (name, left)));
        let waited = pending.iter().filter(|(place, _)| *place == at);
        first.extend(waited.map(|(_, signal)| Action::Await { signal: *signal, wakes: None }));
        first.extend(actions);
        left = name;
    }
    first.push(writer.host(Overhead::BetweenOps, ("end", left)));
    let Writer { names, mut rank, .. } = writer;
    rank.threads.push(Thread { pid: 1, tid: 1, actions: first });
    if how.moved.is_some() {
        rank.threads.push(Thread { pid: 1, tid: 2, actions: second });
    }
    Program { names, ranks: vec![rank], ..Program::default() }
}

fn specs() -> impl Strategy<Value = Vec<Spec>> {
    let does =
        prop_oneof![Just(Do::Kernel), Just(Do::Item), Just(Do::Copy), Just(Do::CopyThenWait)];
    proptest::collection::vec((0..NAMES.len(), does, 0..2u32), 1..12)
}

fn edited(specs: &[Spec], edit: Edit) -> Result<Program, predict::Error> {
    edit::apply(&written(specs, Written::default()), &[edit])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn operators_of_a_second_thread_are_as_if_it_had_called_them(
        specs in specs(),
        name in 0..3usize,
        join in proptest::option::of(0..3usize),
    ) {
        let (operators, join) = (NAMES[name], join.map(|join| NAMES[join]));
        let edit = Edit::Thread { operators: operators.to_owned(), join: join.map(str::to_owned) };
        let first = specs.iter().position(|spec| NAMES[spec.0] == operators);
        let joins = |spec: &Spec| Some(NAMES[spec.0]) == join && NAMES[spec.0] != operators;
        let is_joined = first.is_some_and(|first| specs[first + 1..].iter().any(joins));
        let found = edited(&specs, edit);
        if first.is_none() || (join.is_some() && !is_joined) {
            prop_assert!(found.is_err());
            return Ok(());
        }
        let found = found.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let how = Written { moved: Some((operators, join)), is_pinned: false };
        let expected = written(&specs, how);
        prop_assert_eq!(times(&found), times(&expected));
    }

    #[test]
    fn pinned_copies_are_as_if_nobody_had_waited_for_them(specs in specs()) {
        let found = edited(&specs, Edit::PinCopies {});
        if !specs.iter().any(|spec| matches!(spec.1, Do::Copy | Do::CopyThenWait)) {
            prop_assert!(found.is_err());
            return Ok(());
        }
        let found = found.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let expected = written(&specs, Written { moved: None, is_pinned: true });
        prop_assert_eq!(times(&found), times(&expected));
    }
}
