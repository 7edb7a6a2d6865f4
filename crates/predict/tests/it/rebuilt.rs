//! Tests of edits on random programs. A program with removed, repeated or fused operators must run
//! like a program that was written that way.

use predict::cost::{Constants, Cost, Costs, RankCosts, Source};
use predict::edit::{self, Edit};
use predict::program::{
    Action, Call, Mark, MarkKind, Overhead, Part, Program, Rank, Returns, Segment, Stream, Thread,
    Work, WorkKind,
};
use predict::simulate;
use proptest::prelude::*;
use trace::store::StringId;

const NAMES: [&str; 3] = ["a", "b", "c"];
const STREAMS: u32 = 2;

/// An operator: host time, a kernel, and optionally a wait for the last kernel of a stream.
#[derive(Clone, Debug)]
struct Spec {
    name: usize,
    /// Whether the thread has host time before the operator.
    has_gap: bool,
    stream: u32,
    /// Streams of the kernels whose work this operator's kernel does.
    parts: Vec<u32>,
    scale: f64,
    waits: Option<u32>,
}

/// Builds the program of some operators on one thread.
fn written(specs: &[Spec]) -> Program {
    let mut program = Program::default();
    program.names.intern("");
    let mut names = |text: &str| program.names.intern(text);
    let mut rank = Rank { threads: vec![Thread::default()], ..Rank::default() };
    rank.streams = (0..STREAMS as i32).map(|number| Stream { device: 0, number }).collect();
    let mut last = [None; STREAMS as usize];
    let mut left = names("start");
    let actions = &mut rank.threads[0].actions;
    let host = |overhead, op, detail| Action::Host(Segment { overhead, op, detail });
    for spec in specs {
        let name = names(NAMES[spec.name]);
        actions.extend(spec.has_gap.then(|| host(Overhead::BetweenOps, name, left)));
        actions.push(Action::Begin(Mark::new(name, MarkKind::Operator)));
        actions.push(host(Overhead::BeforeFirstLaunch, name, StringId::default()));
        let id = rank.works.len() as u32;
        let kernel = |stream: u32, names: &mut dyn FnMut(&str) -> StringId| {
            names(&format!("k_{}_{stream}", NAMES[spec.name]))
        };
        let own = kernel(spec.stream, &mut names);
        let parts: Vec<Part> = spec
            .parts
            .iter()
            .map(|stream| Part {
                kind: WorkKind::Kernel,
                name: kernel(*stream, &mut names),
                detail: StringId::default(),
                weight: 1.0,
            })
            .collect();
        rank.works.push(Work {
            name: own,
            kind: WorkKind::Kernel,
            stream: spec.stream,
            op: name,
            detail: StringId::default(),
            shape: None,
            bytes: None,
            behind: last[spec.stream as usize].replace(id),
            after: Vec::new(),
            collective: None,
            parts,
            scale: spec.scale,
            is_launched: true,
            held_ns: 0,
            repeated: None,
        });
        let launch = names("launch");
        actions.push(call(launch, name, (vec![id], Vec::new())));
        if let Some(stream) = spec.waits {
            let wait = names("wait");
            let awaited = last[stream as usize].into_iter().collect();
            actions.push(call(wait, name, (Vec::new(), awaited)));
        }
        actions.push(Action::End);
        left = name;
    }
    let end = names("end");
    actions.push(host(Overhead::BetweenOps, end, left));
    program.ranks.push(rank);
    program
}

/// Builds a call that launches works or waits for works.
pub fn call(op: StringId, detail: StringId, (launches, awaits): (Vec<u32>, Vec<u32>)) -> Action {
    let returns = if launches.is_empty() { Returns::AfterAwaited } else { Returns::AtOnce };
    let cost = Segment { overhead: Overhead::RuntimeCall, op, detail };
    Action::Call(Call { cost, launches, awaits, room: None, returns })
}

/// Returns a pseudo-random price that depends only on the text.
fn price(text: &str) -> i64 {
    text.bytes().fold(7, |sum, byte| (sum * 31 + i64::from(byte)) % 97)
}

/// Prices a program of one rank by the names of its parts.
pub fn costs(program: &Program) -> Costs {
    let of = |ns: i64| Cost { ns, source: Some(Source::Measured) };
    let rank = &program.ranks[0];
    let text = |segment: &Segment| {
        let (op, detail) = (program.text(segment.op), program.text(segment.detail));
        of(price(&format!("{} {op} {detail}", segment.overhead.name())))
    };
    let actions = rank.threads.iter().map(|thread| {
        let one = |action: &Action| match action {
            Action::Host(segment) => text(segment),
            Action::Call(call) if call.returns == Returns::AtOnce => text(&call.cost),
            _ => Cost::default(),
        };
        thread.actions.iter().map(one).collect()
    });
    let work = |work: &Work| {
        let parts = work.cost_parts();
        let sum: i64 = parts.iter().map(|part| price(program.text(part.name))).sum();
        of((sum as f64 * work.scale).round() as i64)
    };
    let ranks = vec![RankCosts {
        actions: actions.collect(),
        works: rank.works.iter().map(work).collect(),
        ..RankCosts::default()
    }];
    let constants =
        Constants { launch_ns: 5, queue_gap_ns: 1, sync_return_ns: 3, ..Constants::default() };
    Costs { ranks, constants }
}

/// Returns the step time, and the begin and end of each kernel in launch order.
fn times(program: &Program) -> (i64, Vec<(i64, i64)>) {
    let simulation = simulate::run(program, &costs(program)).expect("no cycle");
    let calls = program.ranks[0].threads[0].actions.iter().filter_map(|action| match action {
        Action::Call(call) => Some(call.launches.iter()),
        _ => None,
    });
    let works = calls.flatten().map(|work| simulation.work_ns(0, *work)).collect();
    (simulation.step_ns(0), works)
}

/// Applies an edit to the operators themselves, as the expected result. Returns `None` if the edit
/// selects nothing.
fn rewritten(specs: &[Spec], edit: &Edit) -> Option<Vec<Spec>> {
    let is = |spec: &Spec, name: &str| NAMES[spec.name] == name;
    match edit {
        Edit::Remove { operators } => {
            let kept: Vec<Spec> =
                specs.iter().filter(|spec| !is(spec, operators)).cloned().collect();
            (kept.len() < specs.len()).then_some(kept)
        }
        Edit::CloseGap { before } => {
            let closed = |spec: &Spec| Spec { has_gap: !is(spec, before), ..spec.clone() };
            specs.iter().any(|spec| is(spec, before)).then(|| specs.iter().map(closed).collect())
        }
        Edit::Insert { operator, after } => {
            let source = specs.iter().find(|spec| is(spec, operator))?;
            specs.iter().find(|spec| is(spec, after))?;
            let once = |spec: &Spec| {
                let copy = is(spec, after).then(|| source.clone());
                [Some(spec.clone()), copy].into_iter().flatten().collect::<Vec<_>>()
            };
            Some(specs.iter().flat_map(once).collect())
        }
        Edit::Fuse { operators, factor } => {
            let mut fused: Vec<Spec> = Vec::new();
            let mut run = 0;
            let mut is_any = false;
            for spec in specs {
                run = if is(spec, operators) { run + 1 } else { 0 };
                match fused.last_mut().filter(|_| run > 1) {
                    Some(first) => {
                        first.parts.push(spec.stream);
                        first.scale = *factor;
                        is_any = true;
                    }
                    None => fused.push(Spec { parts: Vec::new(), ..spec.clone() }),
                }
                if let Some(first) = fused.last_mut().filter(|first| first.parts.is_empty()) {
                    first.parts = vec![first.stream];
                }
            }
            is_any.then_some(fused)
        }
        Edit::Scale { factor, .. } => {
            Some(specs.iter().map(|spec| Spec { scale: *factor, ..spec.clone() }).collect())
        }
        _ => None,
    }
}

fn specs(can_wait: bool, streams: u32) -> impl Strategy<Value = Vec<Spec>> {
    let waits =
        if can_wait { proptest::option::of(0..streams).boxed() } else { Just(None).boxed() };
    let one = (0..NAMES.len(), 0..streams, waits);
    let spec = one.prop_map(|(name, stream, waits)| Spec {
        name,
        has_gap: true,
        stream,
        parts: Vec::new(),
        scale: 1.0,
        waits,
    });
    proptest::collection::vec(spec, 1..12)
}

fn agree(specs: &[Spec], edit: Edit) -> Result<(), TestCaseError> {
    let found = edit::apply(&written(specs), std::slice::from_ref(&edit));
    match rewritten(specs, &edit) {
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
    fn a_removed_operator_is_as_if_it_had_never_been_written(
        specs in specs(true, STREAMS),
        name in 0..3usize,
    ) {
        agree(&specs, Edit::Remove { operators: NAMES[name].to_owned() })?;
    }

    #[test]
    fn a_closed_gap_is_as_if_there_had_been_none(
        specs in specs(true, STREAMS),
        name in 0..3usize,
    ) {
        agree(&specs, Edit::CloseGap { before: NAMES[name].to_owned() })?;
    }

    #[test]
    fn an_inserted_operator_is_as_if_it_stood_there(
        specs in specs(false, STREAMS),
        (name, after) in (0..3usize, 0..3usize),
    ) {
        let (operator, after) = (NAMES[name].to_owned(), NAMES[after].to_owned());
        agree(&specs, Edit::Insert { operator, after })?;
    }

    #[test]
    // The programs have one stream only, because a wait for any fused kernel becomes a wait for the
    // single kernel that is left.
    fn fused_operators_are_as_if_one_did_their_work(
        specs in specs(false, 1),
        name in 0..3usize,
    ) {
        agree(&specs, Edit::Fuse { operators: NAMES[name].to_owned(), factor: 0.5 })?;
    }

    #[test]
    fn scaled_kernels_are_as_if_they_took_that_long(
        specs in specs(true, STREAMS),
        factor in 0.0..3.0f64,
    ) {
        agree(&specs, Edit::Scale { kernels: "k_*".to_owned(), factor })?;
    }
}
