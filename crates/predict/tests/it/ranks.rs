//! Tests of edits that concern several ranks, by hand and on random programs. The result must equal
//! a program that was written with the edit in place.

use predict::cost::{Constants, Cost, Costs, RankCosts, Source, Transfer};
use predict::edit::{self, Edit};
use predict::program::{
    Action, Call, Collective, Mark, MarkKind, Overhead, Program, Rank, Returns, Segment, Stream,
    Thread, Work, WorkKind,
};
use predict::simulate;
use proptest::prelude::*;
use trace::store::StringId;

/// The next operator of every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Do {
    Kernel,
    Exchange,
    Wait,
}

const BYTES: u64 = 120;

/// Builds a rank from its operators. The kernels of this rank have the names, and thereby the
/// times, of rank `like`.
fn rank(program: &mut Program, number: u32, like: usize, steps: &[Do]) -> Rank {
    let mut rank = Rank { rank: number, threads: vec![Thread::default()], ..Rank::default() };
    rank.streams.push(Stream { device: 0, number: 7 });
    for step in steps {
        let (name, kernel) = match step {
            Do::Kernel => ("mm", format!("k_{like}")),
            Do::Exchange => ("exchange", "nccl".to_owned()),
            Do::Wait => ("item", String::new()),
        };
        let op = program.names.intern(name);
        let last = rank.works.len().checked_sub(1).map(|last| last as u32);
        let mut launches = Vec::new();
        if *step != Do::Wait {
            launches.push(rank.works.len() as u32);
            rank.works.push(Work {
                name: program.names.intern(&kernel),
                kind: WorkKind::Kernel,
                stream: 0,
                op,
                detail: StringId::default(),
                shape: None,
                bytes: None,
                behind: last,
                after: Vec::new(),
                collective: None,
                parts: Vec::new(),
                scale: 1.0,
                is_launched: true,
                held_ns: 0,
                repeated: None,
            });
        }
        let awaits: Vec<u32> =
            if *step == Do::Wait { last.into_iter().collect() } else { Vec::new() };
        let returns = if *step == Do::Wait { Returns::AfterAwaited } else { Returns::AtOnce };
        let cost = Segment { overhead: Overhead::RuntimeCall, op, detail: op };
        let call = Call { cost, launches, awaits, room: None, returns };
        let begin = Action::Begin(Mark::new(op, MarkKind::Operator));
        rank.threads[0].actions.extend([begin, Action::Call(call), Action::End]);
    }
    rank
}

/// Builds ranks that run the same operators, where rank `r` is as fast as rank `r` modulo `speeds`.
fn program(ranks: usize, speeds: usize, (steps, bytes): (&[Do], u64)) -> Program {
    let mut program = Program::default();
    program.names.intern("");
    for at in 0..ranks {
        let rank = rank(&mut program, at as u32, at % speeds, steps);
        program.ranks.push(rank);
    }
    let works = steps.iter().filter(|step| **step != Do::Wait);
    let exchanges = (0u32..).zip(works).filter(|(_, step)| **step == Do::Exchange);
    for (number, (work, _)) in (0u32..).zip(exchanges) {
        let parts = (0..ranks).map(|rank| (rank, work)).collect();
        let operation = analyze::collectives::CollectiveOperation::AllToAll;
        program.collectives.push(Collective { operation, bytes, parts });
        for rank in &mut program.ranks {
            rank.works[work as usize].collective = Some(number);
        }
    }
    program
}

/// Prices a program with simple costs. A kernel takes 10 ns times its rank's number plus one, and a
/// call takes 5 ns.
fn costs(program: &Program) -> Costs {
    let of = |ns: f64| Cost { ns: ns.round() as i64, source: Some(Source::Measured) };
    let one = |rank: &Rank| {
        let action = |action: &Action| match action {
            Action::Call(call) if call.returns == Returns::AtOnce => of(5.0),
            _ => Cost::default(),
        };
        let work = |work: &Work| {
            let part = |part: &predict::program::Part| {
                let like =
                    program.text(part.name).strip_prefix("k_").and_then(|of| of.parse().ok());
                part.weight * like.map_or(0.0, |like: f64| 10.0 * (like + 1.0))
            };
            of(work.cost_parts().iter().map(part).sum::<f64>() * work.scale)
        };
        RankCosts {
            actions: vec![rank.threads[0].actions.iter().map(action).collect()],
            works: rank.works.iter().map(work).collect(),
            ..RankCosts::default()
        }
    };
    let transfer = Transfer { fixed_ns: 20.0, per_byte_ns: 0.5 };
    let constants = Constants {
        launch_ns: 3,
        queue_gap_ns: 1,
        sync_return_ns: 2,
        transfer: [("all_to_all".to_owned(), transfer)].into(),
        ..Constants::default()
    };
    Costs { ranks: program.ranks.iter().map(one).collect(), constants }
}

/// Returns, for each rank, the step time and the begin and end of each kernel.
fn times(program: &Program) -> Vec<(i64, Vec<(i64, i64)>)> {
    let simulation = simulate::run(program, &costs(program)).expect("no cycle");
    let of = |at: usize| {
        let works = 0..program.ranks[at].works.len() as u32;
        (simulation.step_ns(at), works.map(|work| simulation.work_ns(at, work)).collect())
    };
    (0..program.ranks.len()).map(of).collect()
}

fn edited(program: &Program, edit: Edit) -> Result<Program, predict::Error> {
    edit::apply(program, &[edit])
}

fn exchange(occurrence: usize) -> Edit {
    Edit::DropExchange { operators: "exchange".to_owned(), occurrence }
}

fn tables(share: f64) -> Edit {
    Edit::MoveTable { kernels: "k_*".to_owned(), from: 1, to: 0, share }
}

const STEPS: [Do; 3] = [Do::Kernel, Do::Exchange, Do::Wait];

fn steps_ns(program: &Program) -> Vec<i64> {
    times(program).into_iter().map(|(step, _)| step).collect()
}

#[test]
fn by_hand() {
    // The kernels end at 13 and 23 ns. The exchange begins at 24 ns and takes 20 + 60 ns, and the
    // wait returns 2 ns later.
    let two = program(2, 2, (&STEPS, BYTES));
    assert_eq!(steps_ns(&two), [106, 106]);
    // Without the exchange, each rank waits only for its own kernel, which ends at 13 or 23 ns.
    assert_eq!(steps_ns(&edited(&two, exchange(0)).expect("an edit")), [15, 25]);
    // Half of rank 1's kernel, 10 ns, moves to rank 0. The kernels then take 20 and 10 ns.
    assert_eq!(steps_ns(&edited(&two, tables(0.5)).expect("an edit")), [106, 106]);
    assert_eq!(steps_ns(&edited(&two, tables(0.25)).expect("an edit")), [101, 101]);
    // Between two ranks, half of a message crosses a link, and among four ranks three quarters. The
    // 120 bytes thus count as 180 bytes, which take 20 + 90 ns.
    let four = edited(&two, Edit::ScaleRanks { to: 4 }).expect("an edit");
    assert_eq!(steps_ns(&four), [136; 4]);
    // A single rank transfers no bytes, and rank 1 with the slow kernel is removed. The step takes
    // 14 + 20 + 2 ns.
    assert_eq!(steps_ns(&edited(&two, Edit::ScaleRanks { to: 1 }).expect("an edit")), [36]);
}

#[test]
fn impossible_edits_are_rejected_with_a_reason() {
    let two = program(2, 2, (&STEPS, BYTES));
    let refused = |edit: Edit, expected: &str| {
        assert_eq!(edited(&two, edit).expect_err("no edit").to_string(), expected);
    };
    refused(
        exchange(1),
        "edit 1 (drop-exchange): expected at least 2 of them that all ranks take part in, got 1 on rank 0",
    );
    refused(tables(1.5), "edit 1 (move-table): expected a share from 0 to 1, got 1.5");
    let to = |to: u32| Edit::MoveTable { kernels: "k_*".to_owned(), from: 0, to, share: 0.5 };
    refused(to(0), "edit 1 (move-table): expected two ranks, got 0");
    refused(to(9), "edit 1 (move-table): expected a rank of the recording, got 9");
    refused(Edit::ScaleRanks { to: 0 }, "edit 1 (scale-ranks): expected 1 to 4096 ranks, got 0");
    let kernels = Edit::MoveTable { kernels: "kk".to_owned(), from: 0, to: 1, share: 0.5 };
    refused(
        kernels,
        "edit 1 (move-table): kernels: expected a name in the program, got \"kk\"; similar: k_0, \
         k_1, nccl",
    );
}

fn steps() -> impl Strategy<Value = Vec<Do>> {
    let one = prop_oneof![Just(Do::Kernel), Just(Do::Exchange), Just(Do::Wait)];
    proptest::collection::vec(one, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_dropped_exchange_is_as_if_nobody_had_called_it(
        steps in steps(),
        ranks in 2..5usize,
        occurrence in 0..3usize,
    ) {
        let found = edited(&program(ranks, ranks, (&steps, BYTES)), exchange(occurrence));
        let mut exchanges = (0..steps.len()).filter(|at| steps[*at] == Do::Exchange);
        match exchanges.nth(occurrence) {
            Some(at) => {
                let mut kept = steps.clone();
                kept.remove(at);
                let edited = found.map_err(|error| TestCaseError::fail(error.to_string()))?;
                prop_assert_eq!(times(&edited), times(&program(ranks, ranks, (&kept, BYTES))));
            }
            None => prop_assert!(found.is_err()),
        }
    }

    #[test]
    fn scaled_ranks_are_as_if_they_had_been_recorded(
        steps in steps(),
        (ranks, to, again) in (2..5usize, 1..9usize, 1..9usize),
    ) {
        let moved = |ranks: usize| (ranks - 1) as f64 / ranks as f64;
        let bytes = |bytes: u64, from: usize, to: usize| match from {
            1 => bytes,
            _ => (bytes as f64 * moved(to) / moved(from)).round() as u64,
        };
        let once = edited(&program(ranks, ranks, (&steps, BYTES)), Edit::ScaleRanks { to });
        let once = once.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let first = bytes(BYTES, ranks, to);
        prop_assert_eq!(times(&once), times(&program(to, ranks, (&steps, first))));
        let twice = edited(&once, Edit::ScaleRanks { to: again });
        let twice = twice.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let origins: Vec<_> = twice.ranks.iter().map(|rank| rank.copy_of).collect();
        let expected: Vec<_> = (0..again).map(|at| Some(at % to % ranks)).collect();
        prop_assert_eq!(origins, expected);
    }

    #[test]
    fn a_moved_share_of_kernels_is_as_if_the_other_rank_had_it(
        steps in steps(),
        ranks in 2..5usize,
        share in 0..=4u32,
    ) {
        prop_assume!(steps.contains(&Do::Kernel));
        let share = f64::from(share) / 4.0;
        let recorded = program(ranks, ranks, (&steps, BYTES));
        let edited = edited(&recorded, tables(share));
        let edited = edited.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let mut by_hand = costs(&recorded);
        for (at, work) in recorded.ranks[0].works.iter().enumerate() {
            if work.collective.is_none() {
                by_hand.ranks[0].works[at].ns += (20.0 * share) as i64;
                by_hand.ranks[1].works[at].ns -= (20.0 * share) as i64;
            }
        }
        let expected = simulate::run(&recorded, &by_hand).expect("no cycle");
        let steps: Vec<i64> = (0..ranks).map(|at| expected.step_ns(at)).collect();
        prop_assert_eq!(steps_ns(&edited), steps);
    }
}
