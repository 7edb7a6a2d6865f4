//! Faults that other pipelined trainers had, each as a test named after its report, and random runs
//! with uneven batches and failing stages.
//!
//! torchrec 4158 (ranks with unequal numbers of batches) is
//! `pipeline::ranks_with_an_empty_share_of_a_batch_join_every_stage`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use comm::{Communicator, InProcess, SharedTransport};
use device::Cpu;
use schema::random::CounterRng;
use schema::stage::Overlap;
use schema::{Batch, Optimizer, Pooling, Schedule, ShardingPlan};
use train::{Error, Start};

use crate::groups::groups;
use crate::processes::files;
use crate::rank_steps::{Faulty, PLANS, SendOutcome, Steps, batch, config, overlapped};
use crate::ranks;
use crate::run::{dataset, plan, request};
use crate::stub::model;

/// Number of random runs in the daily tests, and in the long ones.
const EVERYDAY: u64 = 100;
const FULL: u64 = 1000;

/// Creates communicators that delay every message by a random time.
fn jittering(ranks: u32, rng: CounterRng) -> Vec<Communicator> {
    failing(ranks, rng, None)
}

/// Creates communicators with random delays. One rank cannot send its message of a given number.
fn failing(ranks: u32, rng: CounterRng, fails: Option<(usize, usize)>) -> Vec<Communicator> {
    let end = |(rank, inner): (usize, InProcess)| {
        let (rng, sent) = (rng.child(rank as u64), AtomicUsize::new(0));
        let outcome = move |_: &_| {
            let number = sent.fetch_add(1, Ordering::Relaxed);
            if rng.below(number as u64, 4) == 0 {
                std::thread::sleep(Duration::from_micros(rng.below(number as u64, 200)));
            }
            let is_refused = fails == Some((rank, number));
            if is_refused { SendOutcome::Refused } else { SendOutcome::Delivered }
        };
        Communicator::over(Arc::new(Faulty::new(inner, outcome)))
    };
    InProcess::ends(ranks).into_iter().enumerate().map(end).collect()
}

/// In the reported fault, a stage read data before the stage on another stream had written it.
#[test]
fn torchrec_4191_a_stage_waits_for_what_it_reads() {
    let config = config();
    let batches: Vec<Batch> = (0..12).map(|number| batch(number, 8)).collect();
    for (number, make) in PLANS.into_iter().enumerate() {
        let plan = &make(&config.model.tables, 3);
        let serial = Steps::serial(&config, plan, &batches).train(comm::world(3));
        for schedule in overlapped() {
            let ends = jittering(3, CounterRng::new(number as u64, 4191));
            let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches) };
            assert!(steps.train(ends) == serial, "{number}: {schedule}");
        }
    }
}

/// In the reported fault, the state of the next batch was used for the current one. The model's
/// quality dropped, although nothing failed.
#[test]
fn torchrec_3870_every_batch_in_flight_has_buffers_of_its_own() {
    let config = config();
    let batches: Vec<Batch> =
        (0..120).map(|number| batch(number * number, 1 + number * 5 % 8)).collect();
    let plan = &ShardingPlan::mixed(&config.model.tables, 2);
    let serial = Steps::serial(&config, plan, &batches).train(comm::world(2));
    for schedule in overlapped() {
        let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches) };
        assert!(steps.train(comm::world(2)) == serial, "{schedule}");
    }
}

/// In the reported fault, a pipeline was filled again at every step, and took one batch more from
/// the loader than it trained. Stopped runs are tested in
/// `pipeline::a_pipelined_run_that_was_stopped_resumes_to_the_bytes_of_an_uninterrupted_one`.
#[test]
fn torchrec_4503_batches_drawn_are_batches_trained_for_every_length_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request = request(&folder.path().join("whole"), &dataset, plan(ShardingPlan::mixed, 2));
    request.schedule = Schedule::PIPELINED;
    request.config.training.checkpoint_every = None;
    request.config.training.steps = Some(26);
    let whole = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    for steps in [1, 2, 3, 17, 18, 25] {
        request.run_folder = folder.path().join(format!("{steps}"));
        request.start = Start::Fresh;
        request.config.training.steps = Some(steps);
        let first = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        assert_eq!(first.step, steps);
        request.start = Start::Checkpoint(first.checkpoint.unwrap());
        request.config.training.steps = Some(26);
        let resumed = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        assert_eq!((resumed.step, resumed.samples), (whole.step, whole.samples));
        let (whole, resumed) = (whole.checkpoint.clone().unwrap(), resumed.checkpoint.unwrap());
        assert!(files(&whole) == files(&resumed), "{steps}");
    }
}

/// In the reported fault, a rank that was a step ahead began an exchange too early, and the other
/// ranks waited for it in vain.
#[test]
fn torcheasyrec_497_ranks_at_different_steps_are_named() {
    let config = config();
    let batches: Vec<Batch> = (0..4).map(|number| batch(number, 8)).collect();
    let plan = &ShardingPlan::mixed(&config.model.tables, 2);
    for schedule in overlapped() {
        let run = |first: u64, mut end: Communicator| {
            end.set_timeout(Some(Duration::from_secs(20)));
            let steps = Steps {
                schedule,
                first,
                ..Steps::serial(&config, plan, &batches[first as usize..])
            };
            steps.run_rank(end).err().unwrap().to_string()
        };
        let errors = std::thread::scope(|scope| {
            let ranks = [0, 1].into_iter().zip(comm::world(2));
            let ranks: Vec<_> =
                ranks.map(|(first, end)| scope.spawn(move || run(first, end))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        let names = |error: &String| error.contains("in step 0") && error.contains("in step 1");
        assert!(errors.iter().any(names), "{schedule}: {errors:?}");
    }
}

/// In the reported fault, a stage that ran beside the others was still writing weights after the
/// step had ended.
#[test]
fn torchrec_3306_the_end_of_a_step_waits_for_every_stage_that_writes_weights() {
    let config = config();
    let batches: Vec<Batch> = (0..5).map(|number| batch(number, 8)).collect();
    let plan = &ShardingPlan::row_wise(&config.model.tables, 2);
    for end in 1..=batches.len() {
        let serial = Steps::serial(&config, plan, &batches[..end]).train(comm::world(2));
        for schedule in overlapped() {
            let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches[..end]) };
            let ends = jittering(2, CounterRng::new(end as u64, 3306));
            assert!(steps.train(ends) == serial, "{end} steps, {schedule}");
        }
    }
}

/// In the reported fault, the host could read a length of this batch only after an exchange of the
/// next batch had ended.
#[test]
fn torchrec_4131_a_step_does_not_wait_for_the_exchange_of_another_batch() {
    let config = config();
    let batches: Vec<Batch> = (0..4).map(|number| batch(number, 8)).collect();
    let plan = &ShardingPlan::row_wise(&config.model.tables, 2);
    // The communicators that distribute ids have these channels. Commands use channel 0.
    let is_input = |channel: u32| (1..=5).contains(&channel);
    let serial = Steps::serial(&config, plan, &batches).train(comm::world(2));
    for schedule in [Schedule::SERIAL.with(Overlap::Input), Schedule::PIPELINED] {
        let transports: Vec<Arc<Faulty>> = InProcess::ends(2)
            .into_iter()
            .map(|inner| {
                let first = OnceLock::new();
                // Every distribution has a communicator of its own, and the second one is held.
                let outcome = move |header: &comm::MessageHeader| {
                    let is_next = is_input(header.channel)
                        && *first.get_or_init(|| header.channel) != header.channel;
                    if is_next { SendOutcome::Held } else { SendOutcome::Delivered }
                };
                Arc::new(Faulty::new(inner, outcome))
            })
            .collect();
        let stepped = AtomicUsize::new(0);
        let release = || {
            // Both ranks have trained the first step without the ids of the second one.
            if stepped.fetch_add(1, Ordering::SeqCst) == 1 {
                transports.iter().for_each(|transport| transport.release());
            }
        };
        let over =
            |transport: &Arc<Faulty>| Communicator::over(Arc::clone(transport) as SharedTransport);
        let ends = transports.iter().map(over).collect();
        let name = format!("{schedule}: a step waits for the ids of the next one");
        let base = Steps::serial(&config, plan, &batches);
        let steps = Steps { name, schedule, after_step: &release, ..base };
        assert!(steps.train(ends) == serial, "{schedule}");
    }
}

/// How a random run fails.
#[derive(Debug)]
enum RandomFault {
    Nothing,
    /// An id out of range in this batch.
    Id {
        batch: usize,
    },
    /// A rank cannot send the message with this number.
    Send {
        rank: usize,
        number: usize,
    },
}

#[test]
fn random_runs_end_with_the_weights_of_the_serial_run_or_an_error() {
    let all = testkit::has_time("900 of 1,000 random runs with uneven batches and failing stages");
    let mut failed = 0;
    for case in 0..if all { FULL } else { EVERYDAY } {
        failed += u64::from(run_random(case));
    }
    assert!(failed > EVERYDAY / 4, "{failed} runs failed");
}

/// Most messages with which a rank opens its lanes, before the first stage.
const OPENING_SENDS: usize = 9;

/// Runs a random case, and returns whether it failed as it should.
fn run_random(case: u64) -> bool {
    let rng = CounterRng::new(case, 45);
    let ranks = 2 + rng.below(0, 3) as u32;
    let kinds =
        [2, 3].map(|at| Optimizer::ALL[rng.below(at, Optimizer::ALL.len() as u64) as usize]);
    let pooling = if rng.below(4, 2) == 0 { Pooling::Mean } else { Pooling::Sum };
    let cross = schema::Interaction::DcnV2 { layers: 2, rank: 3 };
    let config = ranks::job(model(cross, pooling), (kinds[0], kinds[1]), 0.1, 8);
    let count = if ranks == 3 { 1 } else { 1 + rng.below(13, 2) as u32 };
    let groups = groups(count, 1 + rng.below(14, 3));
    let make = PLANS[rng.below(5, PLANS.len() as u64) as usize];
    let plan = make(&config.model.tables, ranks / count).in_groups(groups);
    let bits = rng.below(6, 32) as usize;
    let overlaps = Overlap::ALL.into_iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
    let schedule = overlaps.fold(Schedule::SERIAL, |all, (_, overlap)| all.with(overlap));
    // Half of the batches are full, and the others have any size, which is often 0.
    let size = |rng: CounterRng| [8, 8, 0, rng.below(1, 8) as usize][rng.below(0, 4) as usize];
    let sizes = (0..3 + rng.below(7, 8)).map(|at| size(rng.child(at)));
    let mut batches: Vec<Batch> =
        sizes.enumerate().map(|(at, size)| batch(at + case as usize, size)).collect();
    let serial = Steps::serial(&config, &plan, &batches).train(comm::world(ranks));
    let with_ids = |at: &usize| !batches[*at].sparse.values.is_empty();
    let fault = match rng.below(8, 3) {
        0 => RandomFault::Nothing,
        1 => (0..batches.len())
            .filter(with_ids)
            .nth(rng.below(9, 3) as usize)
            .map_or(RandomFault::Nothing, |batch| RandomFault::Id { batch }),
        _ => RandomFault::Send {
            rank: rng.below(10, u64::from(ranks)) as usize,
            number: OPENING_SENDS + rng.below(11, 40 * batches.len() as u64) as usize,
        },
    };
    if let RandomFault::Id { batch } = fault {
        let values = &mut batches[batch].sparse.values;
        let at = rng.below(12, values.len() as u64) as usize;
        values[at] = -1;
    }
    let fails = match fault {
        RandomFault::Send { rank, number } => Some((rank, number)),
        _ => None,
    };
    let name = format!("case {case}: {ranks} ranks, {groups:?}, {schedule}, {fault:?}");
    let base = Steps::serial(&config, &plan, &batches);
    let steps = Steps { name: name.clone(), schedule, ..base };
    let results = steps.run(failing(ranks, rng.child(99), fails));
    let mut errors = Vec::new();
    for (result, serial) in results.into_iter().zip(serial) {
        match result {
            Ok(ended) => assert!(ended.trained() == serial, "{name}"),
            Err(Error::Stage { .. }) => errors.push(()),
            // The first messages divide the ranks into groups.
            Err(Error::Communication(_)) if count > 1 => errors.push(()),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    match fault {
        RandomFault::Nothing => assert!(errors.is_empty(), "{name}"),
        // Every rank waits for the ids of all others.
        RandomFault::Id { .. } => assert_eq!(errors.len(), ranks as usize, "{name}"),
        // The run may end before that message.
        RandomFault::Send { .. } => {}
    }
    !errors.is_empty()
}
