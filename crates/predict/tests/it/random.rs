//! Tests simulations of random programs. The solution of the graph must equal that of a reference
//! which follows the dependencies of each action recursively.

use std::collections::HashMap;

use predict::cost::{Constants, Cost, Costs, RankCosts, Source};
use predict::program::{
    Action, Call, Overhead, Program, Rank, Returns, Segment, Stream, Thread, Work, WorkKind,
};
use predict::simulate;
use proptest::prelude::*;
use trace::store::StringId;

/// The next action of a thread: host time, a launch on a stream, or a wait for the last work of a
/// stream.
#[derive(Clone, Copy, Debug)]
enum Do {
    Work,
    Launch(u32),
    Wait(u32),
}

const STREAMS: u32 = 3;

fn segment(overhead: Overhead) -> Segment {
    Segment { overhead, op: StringId::default(), detail: StringId::default() }
}

fn call(launches: Vec<u32>, awaits: Vec<u32>) -> Action {
    let returns = if awaits.is_empty() { Returns::AtOnce } else { Returns::AfterAwaited };
    let cost = segment(Overhead::RuntimeCall);
    Action::Call(Call { cost, launches, awaits, room: None, returns })
}

/// Builds a rank of two threads, of which the second begins when the first is half done. Some works
/// also wait for the last work of the next stream.
fn rank(steps: &[(Do, bool)]) -> Rank {
    let mut rank = Rank { threads: vec![Thread::default(), Thread::default()], ..Rank::default() };
    rank.streams = (0..STREAMS as i32).map(|number| Stream { device: 0, number }).collect();
    rank.threads[1].actions.push(Action::Await { signal: 0, wakes: Some(StringId::default()) });
    let mut last = [None; STREAMS as usize];
    let half = steps.len() / 2;
    for (at, (what, also)) in steps.iter().enumerate() {
        if at == half {
            rank.threads[0].actions.push(Action::Signal(0));
        }
        let thread = usize::from(at >= half && *also);
        let action = match *what {
            Do::Work => Action::Host(segment(Overhead::HostOnly)),
            Do::Launch(stream) => {
                let beside = last[((stream + 1) % STREAMS) as usize].filter(|_| *also);
                let id = rank.works.len() as u32;
                rank.works.push(work(stream, (last[stream as usize].replace(id), beside)));
                call(vec![id], Vec::new())
            }
            Do::Wait(stream) => call(Vec::new(), last[stream as usize].into_iter().collect()),
        };
        rank.threads[thread].actions.push(action);
    }
    rank
}

fn work(stream: u32, (behind, beside): (Option<u32>, Option<u32>)) -> Work {
    Work {
        name: StringId::default(),
        kind: WorkKind::Kernel,
        stream,
        op: StringId::default(),
        detail: StringId::default(),
        shape: None,
        bytes: None,
        behind,
        after: beside.into_iter().collect(),
        collective: None,
        parts: Vec::new(),
        scale: 1.0,
        is_launched: true,
        held_ns: 0,
        repeated: None,
    }
}

/// Reference implementation, which computes end times recursively from the dependencies.
struct Asked<'a> {
    rank: &'a Rank,
    costs: &'a RankCosts,
    constants: &'a Constants,
    works: HashMap<u32, i64>,
}

impl Asked<'_> {
    /// Returns the time at which an action of a thread ends.
    fn action(&mut self, thread: usize, at: usize) -> i64 {
        let before = at.checked_sub(1).map_or(self.costs.start_ns, |at| self.action(thread, at));
        let cost = self.costs.actions[thread][at].ns;
        match self.rank.threads[thread].actions[at].clone() {
            Action::Host(_) => before + cost,
            Action::Await { .. } => {
                let signal = self.rank.threads[0]
                    .actions
                    .iter()
                    .position(|action| *action == Action::Signal(0));
                let given = signal.map(|at| self.action(0, at));
                let wake = self.constants.hand_over_ns.values().sum::<i64>();
                given.map_or(before, |given| before.max(given + wake))
            }
            Action::Call(call) if call.returns == Returns::AfterAwaited => {
                let ends = call.awaits.iter().map(|work| self.work(*work)).max();
                ends.map_or(before, |end| end.max(before)) + self.constants.sync_return_ns
            }
            Action::Call(_) => before + cost,
            _ => before,
        }
    }

    /// Returns the time at which a work ends.
    fn work(&mut self, id: u32) -> i64 {
        if let Some(end) = self.works.get(&id) {
            return *end;
        }
        let work = self.rank.works[id as usize].clone();
        let (thread, at) = (0..2)
            .find_map(|thread| {
                let launches = |action: &Action| {
                    matches!(action, Action::Call(call) if call.launches.contains(&id))
                };
                let at = self.rank.threads[thread].actions.iter().position(launches)?;
                Some((thread, at))
            })
            .expect("a launch");
        let called = at.checked_sub(1).map_or(self.costs.start_ns, |at| self.action(thread, at));
        let mut start = called + self.constants.launch_ns;
        if let Some(behind) = work.behind {
            start = start.max(self.work(behind) + self.constants.queue_gap_ns);
        }
        for after in work.after {
            start = start.max(self.work(after) + self.constants.event_wait_ns);
        }
        let end = start + self.costs.works[id as usize].ns;
        self.works.insert(id, end);
        end
    }
}

fn steps() -> impl Strategy<Value = Vec<(Do, bool)>> {
    let what = prop_oneof![
        Just(Do::Work),
        (0..STREAMS).prop_map(Do::Launch),
        (0..STREAMS).prop_map(Do::Launch),
        (0..STREAMS).prop_map(Do::Wait),
    ];
    proptest::collection::vec((what, any::<bool>()), 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_thousand_programs_are_simulated_as_their_parts_say(
        steps in steps(),
        costs in proptest::collection::vec(0..50i64, 64),
        constants in proptest::collection::vec(0..20i64, 5),
        start in -100..100i64,
    ) {
        let rank = rank(&steps);
        let mut program = Program { ranks: vec![rank], ..Program::default() };
        program.names.intern("");
        let cost = |at: usize| Cost { ns: costs[at % 64], source: Some(Source::Measured) };
        let rank = &program.ranks[0];
        let actions = rank.threads.iter().enumerate().map(|(thread, of)| {
            (0..of.actions.len()).map(|at| cost(at + 31 * thread)).collect()
        });
        let of_rank = RankCosts {
            start_ns: start,
            actions: actions.collect(),
            works: (0..rank.works.len()).map(|at| cost(at + 47)).collect(),
            ..RankCosts::default()
        };
        let constants = Constants {
            launch_ns: constants[0],
            queue_gap_ns: constants[1],
            event_wait_ns: constants[2],
            sync_return_ns: constants[3],
            hand_over_ns: [(String::new(), constants[4])].into(),
            ..Constants::default()
        };
        let costs = Costs { ranks: vec![of_rank], constants };
        let simulation = simulate::run(&program, &costs).expect("no cycle");
        let (costs, constants) = (&costs.ranks[0], &costs.constants);
        let mut asked = Asked { rank, costs, constants, works: HashMap::new() };
        for (thread, of) in rank.threads.iter().enumerate() {
            for at in 0..of.actions.len() {
                prop_assert_eq!(simulation.action_ns(0, thread, at).1, asked.action(thread, at));
            }
        }
        for work in 0..rank.works.len() as u32 {
            prop_assert_eq!(simulation.work_ns(0, work).1, asked.work(work));
        }
    }
}

#[test]
fn a_cyclic_program_is_rejected() {
    let mut rank = rank(&[(Do::Launch(0), false), (Do::Launch(1), false)]);
    rank.works[0].after = vec![1];
    rank.works[1].after = vec![0];
    let costs = RankCosts {
        actions: rank.threads.iter().map(|of| vec![Cost::default(); of.actions.len()]).collect(),
        works: vec![Cost::default(); 2],
        ..RankCosts::default()
    };
    let mut program = Program { ranks: vec![rank], ..Program::default() };
    program.names.intern("");
    let costs = Costs { ranks: vec![costs], constants: Constants::default() };
    let error = simulate::run(&program, &costs).expect_err("a cycle").to_string();
    assert!(error.contains("work \"\"") && error.contains("cycle of waits"), "{error}");
}
