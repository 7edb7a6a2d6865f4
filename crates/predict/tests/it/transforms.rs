//! Tests of edits on random programs. The result must run like a program in which a separate writer
//! placed every kernel with the edit already applied.

use predict::edit::{self, Edit};
use predict::program::{
    Action, Call, Mark, MarkKind, Overhead, Part, Program, Rank, Returns, Segment, Stream, Thread,
    Work, WorkKind,
};
use proptest::prelude::*;
use trace::store::StringId;

use crate::rebuilt::{call, costs};

const NAMES: [&str; 3] = ["a", "b", "c"];
const STREAMS: u32 = 2;

/// A generated operator: host time, a kernel, and optionally a wait for the last kernel of a
/// stream.
#[derive(Clone, Debug)]
struct Spec {
    name: usize,
    stream: u32,
    waits: Option<u32>,
}

/// A kernel of the expected program.
#[derive(Clone, Debug)]
struct Kernel {
    name: String,
    stream: u32,
    /// Indices of the kernels for which this kernel waits.
    after: Vec<u32>,
}

/// An operator of the expected program.
#[derive(Clone, Debug)]
struct Op {
    name: String,
    /// Names in the gap before the operator: the following operator and the preceding one.
    gap: (String, String),
    /// Name of the call that launches all kernels. An operator that launches a graph has no other
    /// host time.
    launch: &'static str,
    kernels: Vec<Kernel>,
    waits: Vec<u32>,
}

fn kernel(name: usize, own: u32, stream: u32) -> Kernel {
    let name = format!("k_{}_{own}", NAMES[name]);
    Kernel { name, stream, after: Vec::new() }
}

/// Converts specs to operators, each of which follows the one before it.
fn ops(specs: &[Spec]) -> Vec<Op> {
    let mut left = "start".to_owned();
    let one = |spec: &Spec| {
        let name = NAMES[spec.name].to_owned();
        Op {
            gap: (name.clone(), std::mem::replace(&mut left, name.clone())),
            name,
            launch: "launch",
            kernels: vec![kernel(spec.name, spec.stream, spec.stream)],
            waits: spec.waits.into_iter().collect(),
        }
    };
    specs.iter().map(one).collect()
}

/// Writes operators as a program of one thread.
fn written(ops: &[Op]) -> Program {
    let mut program = Program::default();
    program.names.intern("");
    let mut rank = Rank { threads: vec![Thread::default()], ..Rank::default() };
    rank.streams = (0..32).map(|number| Stream { device: 0, number }).collect();
    let mut last: [Option<u32>; 32] = [None; 32];
    let names = &mut program.names;
    let host = |overhead, op, detail| Action::Host(Segment { overhead, op, detail });
    let actions = &mut rank.threads[0].actions;
    for op in ops {
        let name = names.intern(&op.name);
        actions.push(host(Overhead::BetweenOps, names.intern(&op.gap.0), names.intern(&op.gap.1)));
        actions.push(Action::Begin(Mark::new(name, MarkKind::Operator)));
        if op.launch == "launch" {
            actions.push(host(Overhead::BeforeFirstLaunch, name, StringId::default()));
        }
        let mut launches = Vec::new();
        for kernel in &op.kernels {
            let id = rank.works.len() as u32;
            let own = names.intern(&kernel.name);
            let at = kernel.stream as usize;
            let mut work = plain(own, name, kernel.stream);
            work.behind = last[at];
            work.after.clone_from(&kernel.after);
            last[at] = Some(id);
            rank.works.push(work);
            launches.push(id);
        }
        let cost =
            Segment { overhead: Overhead::RuntimeCall, op: names.intern(op.launch), detail: name };
        let (awaits, returns) = (Vec::new(), Returns::AtOnce);
        actions.push(Action::Call(Call { cost, launches, awaits, room: None, returns }));
        for stream in &op.waits {
            let awaits = last[*stream as usize].into_iter().collect();
            actions.push(call(names.intern("wait"), name, (Vec::new(), awaits)));
        }
        actions.push(Action::End);
    }
    let left = ops.last().map_or("start", |op| op.launched_as());
    actions.push(host(Overhead::BetweenOps, names.intern("end"), names.intern(left)));
    program.ranks.push(rank);
    program
}

impl Op {
    /// Returns the name that the following gap gives to this operator. For a graph, this name is
    /// that of the last operator in the graph.
    fn launched_as(&self) -> &str {
        self.name.rsplit(' ').next().unwrap_or_default()
    }
}

fn plain(name: StringId, op: StringId, stream: u32) -> Work {
    Work {
        name,
        kind: WorkKind::Kernel,
        stream,
        op,
        detail: StringId::default(),
        shape: None,
        bytes: None,
        behind: None,
        after: Vec::new(),
        collective: None,
        parts: vec![Part {
            kind: WorkKind::Kernel,
            name,
            detail: StringId::default(),
            weight: 1.0,
        }],
        scale: 1.0,
        is_launched: true,
        held_ns: 0,
        repeated: None,
    }
}

/// Returns the step time, and the begin and end of each kernel in launch order.
pub fn times(program: &Program) -> (i64, Vec<(i64, i64)>) {
    let simulation = predict::simulate::run(program, &costs(program)).expect("no cycle");
    let threads = program.ranks[0].threads.iter();
    let calls = threads.flat_map(|thread| &thread.actions).filter_map(|action| match action {
        Action::Call(call) => Some(call.launches.iter()),
        _ => None,
    });
    let works = calls.flatten().map(|work| simulation.work_ns(0, *work)).collect();
    (simulation.step_ns(0), works)
}

/// Applies an edit to the operators themselves, as the expected result. Returns `None` if the edit
/// selects nothing.
fn rewritten(specs: &[Spec], edit: &Edit) -> Option<Vec<Op>> {
    let is = |spec: &Spec, name: &str| NAMES[spec.name] == name;
    let find = |name: &str| specs.iter().find(|spec| is(spec, name));
    match edit {
        Edit::Replace { operators, with } => {
            let source = find(with).filter(|_| with != operators)?;
            find(operators)?;
            let once = |spec: &Spec| match is(spec, operators) {
                true => Spec {
                    name: source.name,
                    waits: source.waits.map(|_| spec.stream),
                    ..spec.clone()
                },
                false => spec.clone(),
            };
            let mut ops = ops(&specs.iter().map(once).collect::<Vec<_>>());
            for (op, _) in ops.iter_mut().zip(specs).filter(|(_, spec)| is(spec, operators)) {
                op.kernels = vec![kernel(source.name, source.stream, op.kernels[0].stream)];
            }
            Some(ops)
        }
        Edit::Reorder { operators, after } => {
            let (_, _) = (find(operators)?, find(after).filter(|_| after != operators)?);
            Some(ops(&reordered(specs, (operators, after))))
        }
        Edit::Parallelise { operators, join: Some(join) } => {
            let mut ops = ops(specs);
            let mut fork = STREAMS;
            let mut is_any = false;
            for at in 0..specs.len() {
                let joins = specs.iter().skip(at + 1).position(|spec| is(spec, join));
                let Some(joins) = joins.filter(|_| is(&specs[at], operators)) else { continue };
                is_any = true;
                let before = specs[..at].iter().enumerate().rev().find(|(place, spec)| {
                    spec.stream == specs[at].stream && ops[*place].kernels[0].stream < STREAMS
                });
                ops[at].kernels[0].after.extend(before.map(|(place, _)| place as u32));
                ops[at].kernels[0].stream = fork;
                fork += 1;
                ops[at + 1 + joins].kernels[0].after.push(at as u32);
            }
            is_any.then_some(ops)
        }
        Edit::Graph { from, to } => {
            let first = specs.iter().position(|spec| is(spec, from))?;
            let last = first + specs[first..].iter().position(|spec| is(spec, to))?;
            if specs[first..=last].iter().any(|spec| spec.waits.is_some()) {
                return None;
            }
            let all = ops(specs);
            let mut ops = all[..first].to_vec();
            ops.push(Op {
                name: format!("graph of {from} … {to}"),
                gap: all[first].gap.clone(),
                launch: "cudaGraphLaunch",
                kernels: all[first..=last].iter().flat_map(|op| op.kernels.clone()).collect(),
                waits: Vec::new(),
            });
            ops.extend(all[last + 1..].iter().cloned());
            Some(ops)
        }
        _ => None,
    }
}

/// Moves each operator of a name directly after the nearest `after` before it, or else after the
/// next one.
fn reordered(specs: &[Spec], (operators, after): (&str, &str)) -> Vec<Spec> {
    let is = |spec: &Spec, name: &str| NAMES[spec.name] == name;
    let mut groups: Vec<(Spec, Vec<Spec>)> = Vec::new();
    let mut early = Vec::new();
    let mut last_anchor = None;
    for spec in specs {
        if is(spec, operators) {
            match last_anchor {
                Some(at) => {
                    let group: &mut (Spec, Vec<Spec>) = &mut groups[at];
                    group.1.push(spec.clone());
                }
                None => early.push(spec.clone()),
            }
            continue;
        }
        groups.push((spec.clone(), Vec::new()));
        if is(spec, after) {
            last_anchor = Some(groups.len() - 1);
            // Operators before the first anchor come before the operators that follow it.
            groups[last_anchor.unwrap_or_default()].1.append(&mut early);
        }
    }
    groups.into_iter().flat_map(|(spec, moved)| std::iter::once(spec).chain(moved)).collect()
}

fn specs(waits: bool) -> impl Strategy<Value = Vec<Spec>> {
    let waits = if waits { proptest::option::of(0..STREAMS).boxed() } else { Just(None).boxed() };
    let one = (0..NAMES.len(), 0..STREAMS, waits);
    let spec = one.prop_map(|(name, stream, waits)| Spec { name, stream, waits });
    proptest::collection::vec(spec, 1..12)
}

fn agree(specs: &[Spec], edit: &Edit) -> Result<(), TestCaseError> {
    let found = edit::apply(&written(&ops(specs)), std::slice::from_ref(edit));
    match rewritten(specs, edit) {
        Some(expected) => {
            let edited = found.map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(times(&edited), times(&written(&expected)), "{:?}", edit);
        }
        None => prop_assert!(found.is_err(), "{edit:?}"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_replaced_operator_is_as_if_the_other_had_been_called(
        mut specs in specs(true),
        (name, with) in (0..3usize, 0..3usize),
    ) {
        // The copy of an operator waits only for its own kernel, so its source must wait only for
        // its own kernel too.
        for spec in specs.iter_mut().filter(|spec| spec.name == with) {
            spec.waits = spec.waits.map(|_| spec.stream);
        }
        let (operators, with) = (NAMES[name].to_owned(), NAMES[with].to_owned());
        agree(&specs, &Edit::Replace { operators, with })?;
    }

    #[test]
    fn reordered_operators_are_as_if_they_had_been_called_there(
        mut specs in specs(true),
        (name, after) in (0..3usize, 0..3usize),
    ) {
        // A wait for a stream without earlier work waits for nothing. Such a wait would gain work
        // if it were moved, so these waits are left out.
        let mut used = [false; STREAMS as usize];
        for spec in &mut specs {
            used[spec.stream as usize] = true;
            spec.waits = spec.waits.filter(|stream| used[*stream as usize]);
        }
        let (operators, after) = (NAMES[name].to_owned(), NAMES[after].to_owned());
        agree(&specs, &Edit::Reorder { operators, after })?;
    }

    #[test]
    fn kernels_moved_to_streams_are_as_if_they_had_been_launched_there(
        specs in specs(false),
        (name, join) in (0..3usize, 0..3usize),
    ) {
        let (operators, join) = (NAMES[name].to_owned(), NAMES[join].to_owned());
        agree(&specs, &Edit::Parallelise { operators, join: Some(join) })?;
    }

    #[test]
    fn a_graph_is_as_if_one_call_launched_all(
        specs in specs(true),
        (from, to) in (0..3usize, 0..3usize),
    ) {
        let (from, to) = (NAMES[from].to_owned(), NAMES[to].to_owned());
        agree(&specs, &Edit::Graph { from, to })?;
    }
}
