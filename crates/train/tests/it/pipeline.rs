//! Schedules that run exchanges beside other stages give the bytes of the serial one, however a run
//! ends, and a stage that fails ends the run with its name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::Cpu;
use device::backend::Cuda;
use schema::{Batch, Optimizer, Schedule, ShardingPlan};
use train::model::RankParameters;
use train::{Error, RunEvent, Start, TraceRequest};

use crate::processes::{RunRecord, as_processes, files};
use crate::rank_steps::{
    Ended, Make, PLANS, PLANS_OF_ONE_HOST, Steps, batch, config, failing_world, overlapped,
};
use crate::ranks;
use crate::run::{dataset, plan, request};
use crate::stub::model;

#[test]
fn every_schedule_writes_the_checkpoints_of_the_serial_one() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    // More ranks have more plans that differ.
    let plans = [(1, 1..3), (2, 0..PLANS_OF_ONE_HOST), (4, 0..PLANS.len())];
    let cases = plans.into_iter().flat_map(|(ranks, plans)| plans.map(move |at| (ranks, at)));
    for (number, (ranks, at)) in cases.enumerate() {
        let make = PLANS[at];
        let run = |schedule: Schedule| {
            let folder = folder.path().join(format!("{number}-{schedule}"));
            let mut request = request(&folder, &dataset, plan(make, ranks));
            request.schedule = schedule;
            // The last batch of an epoch is smaller. One of the steps is the last before a log
            // line, an evaluation and a checkpoint at once.
            request.config.training.steps = Some(26);
            request.config.training.evaluate_every = Some(4);
            request.config.optimizer.sparse.kind = Optimizer::ALL[number % Optimizer::ALL.len()];
            RunRecord::collect(&folder, |observe| {
                train::run(&request, Cpu::open, observe).map(Some)
            })
            .unwrap()
        };
        let serial = run(Schedule::SERIAL);
        assert_eq!((serial.losses.len(), serial.checkpoints.len()), (3, 5), "{number}");
        for schedule in overlapped() {
            assert!(run(schedule) == serial, "{number}: {schedule}");
        }
    }
}

#[test]
fn a_pipelined_run_of_processes_has_the_bytes_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let asked = |name: &str, schedule| {
        let run = folder.path().join(name);
        let mut request = request(&run, &dataset, plan(ShardingPlan::mixed, 3));
        request.config.training.evaluate_every = Some(5);
        request.schedule = schedule;
        request
    };
    let serial = asked("threads", Schedule::SERIAL);
    let threads = train::run(&serial, Cpu::open, &mut |_| {}).unwrap();
    let requests = (0..3).map(|_| asked("processes", Schedule::PIPELINED)).collect();
    let led = as_processes(requests).swap_remove(0).unwrap().unwrap();
    assert_eq!(led.evaluation, threads.evaluation);
    assert!(files(&led.checkpoint.unwrap()) == files(&threads.checkpoint.unwrap()));
}

/// The outcome of a step of an asynchronous device is read after the next one was submitted.
#[test]
fn a_pipelined_run_of_an_asynchronous_device_has_the_bytes_of_the_serial_one() {
    let Some(driver) = ranks::emulated() else { return };
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let run = |schedule: Schedule| {
        let run_folder = folder.path().join(schedule.to_string());
        let mut request = request(&run_folder, &dataset, plan(ShardingPlan::row_wise, 2));
        request.schedule = schedule;
        request.config.training.steps = Some(9);
        request.config.training.log_every = 3;
        request.config.training.checkpoint_every = Some(5);
        request.trace = Some(TraceRequest { folder: run_folder.join("trace"), steps: 6..8 });
        let open = |threads| Cuda::new(driver.clone(), threads);
        let outcome = train::run(&request, open, &mut |_| {}).unwrap();
        let checkpoints = train::checkpoint::list(&run_folder).unwrap();
        let checkpoints: Vec<_> = checkpoints.iter().map(|folder| files(folder)).collect();
        (outcome.loss.to_bits(), checkpoints)
    };
    assert!(run(Schedule::PIPELINED) == run(Schedule::SERIAL));
}

/// Batches that are announced when a run is stopped are trained before its checkpoint, so that none
/// is left out when it resumes.
#[test]
fn a_pipelined_run_that_was_stopped_resumes_to_the_bytes_of_an_uninterrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request = request(&folder.path().join("whole"), &dataset, plan(ShardingPlan::mixed, 2));
    request.config.training.checkpoint_every = None;
    request.config.training.log_every = 5;
    let whole = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    request.schedule = Schedule::PIPELINED;
    for stop_at in [1, 2, 9, 17, 18, 34] {
        request.run_folder = folder.path().join(format!("stopped-{stop_at}"));
        request.start = Start::Fresh;
        request.stop = Arc::new(AtomicBool::new(false));
        let (stop, mut steps) = (Arc::clone(&request.stop), Vec::new());
        let stopped = train::run(&request, Cpu::open, &mut |event| {
            if let RunEvent::Stepped { step, .. } = event {
                steps.push(step);
                stop.store(step >= stop_at, Ordering::Relaxed);
            }
        });
        let stopped = stopped.unwrap();
        assert!((stop_at..=stop_at + 2).contains(&stopped.step), "{stopped:?}");
        assert!(steps.into_iter().eq(1..=stopped.step));
        request.stop = Arc::new(AtomicBool::new(false));
        request.start = Start::Checkpoint(stopped.checkpoint.unwrap());
        let resumed = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        assert_eq!(resumed.step, whole.step);
        let (whole, resumed) = (whole.checkpoint.clone().unwrap(), resumed.checkpoint.unwrap());
        assert!(files(&whole) == files(&resumed), "{stop_at}");
    }
}

#[test]
fn a_recorded_step_of_a_pipelined_run_has_each_exchange_once() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request =
        request(&folder.path().join("run"), &dataset, plan(ShardingPlan::row_wise, 2));
    request.schedule = Schedule::PIPELINED;
    request.trace = Some(TraceRequest { folder: folder.path().join("trace"), steps: 3..6 });
    train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    for rank in 0..2 {
        let path = folder.path().join(format!("trace/kineto_rank{rank}.json"));
        let trace: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let count = |name: &str| events.iter().filter(|event| event["name"] == name).count();
        for (op, expected) in [
            ("rowmill::input_dist", 3),
            ("rowmill::output_dist", 3),
            ("rowmill::gradient_dist", 3),
            ("rowmill::embedding_backward", 3),
        ] {
            assert_eq!(count(op), expected, "rank {rank}, {op}");
        }
    }
}

#[test]
fn ranks_with_an_empty_share_of_a_batch_join_every_stage() {
    let config = config();
    let sizes = [8, 1, 3, 0, 2, 8, 0, 0, 1, 5];
    let batches: Vec<Batch> = (0..).zip(sizes).map(|(number, size)| batch(number, size)).collect();
    for ranks in [2, 3, 4] {
        for make in PLANS {
            let plan = &make(&config.model.tables, ranks);
            let run = |schedule| {
                let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches) };
                steps.train(comm::world(ranks))
            };
            let serial = run(Schedule::SERIAL);
            for schedule in overlapped() {
                assert!(run(schedule) == serial, "{ranks} ranks, {schedule}");
            }
        }
    }
}

/// A lane queues 16 exchanges for its thread.
#[test]
fn more_buckets_than_a_lane_queues_are_summed() {
    let mut config = config();
    config.model.top = vec![3; 41];
    config.model.top[40] = 1;
    let batches: Vec<Batch> = (0..6).map(|number| batch(number, 8)).collect();
    let plan = &ShardingPlan::mixed(&config.model.tables, 2);
    let run = |schedule| {
        let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches) };
        steps.train(comm::world(2))
    };
    assert!(run(Schedule::SERIAL) == run(Schedule::PIPELINED));
}

#[test]
fn a_steady_pipelined_step_allocates_no_more_than_a_serial_one() {
    const STEPS: u64 = 40;
    let config = config();
    let batches: Vec<Batch> = (0..STEPS).map(|number| batch(number as usize % 3, 8)).collect();
    for ranks in [1, 2, 3] {
        let plan = &crate::checkpoint::with_replicas(&config.model.tables, ranks);
        let run = |schedule| {
            let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches) };
            let ranks = steps.run(comm::world(ranks)).into_iter().map(Result::unwrap);
            ranks.map(|own| own.allocations).collect::<Vec<_>>()
        };
        let serial = run(Schedule::SERIAL);
        let pipelined = run(Schedule::PIPELINED);
        // A queue or a pool may still grow once, when the lanes first wait in another order.
        let is_steady = |(pipelined, serial): (&u64, &u64)| *pipelined < serial + STEPS / 4;
        assert!(pipelined.iter().zip(&serial).all(is_steady), "{pipelined:?} {serial:?}");
    }
}

/// An id out of range is found while the step before trains. That step is complete on all ranks.
#[test]
fn an_id_out_of_range_names_its_stage_and_step() {
    let config = config();
    let mut batches: Vec<Batch> = (0..5).map(|number| batch(number, 8)).collect();
    *batches[3].sparse.values.last_mut().unwrap() = 999;
    let plan = &ShardingPlan::row_wise(&config.model.tables, 2);
    for schedule in [Schedule::SERIAL, Schedule::PIPELINED] {
        let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches) };
        let results = steps.run(comm::world(2)).into_iter();
        let errors: Vec<String> = results.map(|r| r.err().unwrap().to_string()).collect();
        let stage = "step 3, stage input_distribution: ";
        assert!(errors.iter().all(|error| error.starts_with(stage)), "{errors:?}");
        assert!(errors[1].contains("table \"t2\", sample "), "{errors:?}");
    }
}

#[test]
fn a_message_that_cannot_be_sent_ends_all_ranks_with_stage_and_step() {
    let config = config();
    let batches: Vec<Batch> = (0..4).map(|number| batch(number, 8)).collect();
    let plan = &crate::checkpoint::with_replicas(&config.model.tables, 3);
    for schedule in overlapped().chain([Schedule::SERIAL]) {
        let mut stages = std::collections::BTreeSet::new();
        for sends in (0..).step_by(5) {
            let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches) };
            let results = steps.run(failing_world(3, sends));
            if results.iter().all(Result::is_ok) {
                break;
            }
            for result in results {
                let Err(error) = result else { continue };
                let Error::Stage { stage, step, .. } = error else { panic!("{error}") };
                assert!(step < 4, "{error}");
                stages.insert(stage.name());
            }
        }
        for stage in [
            "input_distribution",
            "pooled_exchange",
            "gradient_exchange",
            "row_terms",
            "all_reduce",
        ] {
            assert!(stages.contains(stage), "{schedule}: {stages:?}");
        }
    }
}

/// Every plan with every optimizer on up to eight ranks: overlapped steps give the bytes of serial
/// ones, replicas have the same bytes on all ranks, and losses follow those of a single rank.
#[test]
fn every_plan_follows_the_losses_of_a_single_rank() {
    const STEPS: usize = 50;
    /// One in this many cases runs every day, with one overlap alone and with all.
    const SAMPLED: usize = 10;
    let has_time = testkit::has_time("all plans and optimizers over 50 steps");
    let batches: Vec<Batch> = (0..STEPS).map(|number| batch(number, 1 + number % 8)).collect();
    let interaction =
        schema::Interaction::Dot { order: schema::TriangleOrder::Lower, itself: false };
    for (number, kind) in Optimizer::ALL.into_iter().enumerate() {
        let mut config =
            ranks::job(model(interaction, schema::Pooling::Mean), (kind, kind), 0.02, 8);
        // A large epsilon keeps rounding of sums near 0 from deciding the direction of a step.
        config.optimizer.sparse.epsilon = 1e-3;
        config.optimizer.dense.epsilon = 1e-3;
        let run = |make: Make, ranks: u32, schedule| -> Vec<Ended> {
            let plan = &make(&config.model.tables, ranks);
            let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches) };
            steps.run(comm::world(ranks)).into_iter().map(Result::unwrap).collect()
        };
        let losses = |ranks: &[Ended]| -> Vec<f64> {
            let sum = |step: usize| ranks.iter().map(|own| f64::from_bits(own.losses[step])).sum();
            let mean = |(step, batch): (usize, &Batch)| -> f64 {
                let sum: f64 = sum(step);
                sum / batch.size as f64
            };
            batches.iter().enumerate().map(mean).collect()
        };
        let expected = losses(&run(ShardingPlan::table_wise, 1, Schedule::SERIAL));
        let bound = if kind == Optimizer::Sgd { 1e-6 } else { 1e-5 };
        let cases =
            [1, 2, 4, 8].into_iter().flat_map(|ranks| (0..PLANS.len()).map(move |at| (ranks, at)));
        for (case, (ranks, at)) in cases.enumerate() {
            if !has_time && (case + 3 * number) % SAMPLED != 0 {
                continue;
            }
            let make = PLANS[at];
            let what = format!("{kind}, {ranks} ranks, plan {at}");
            let serial = run(make, ranks, Schedule::SERIAL);
            for (got, expected) in losses(&serial).iter().zip(&expected) {
                assert!(((got - expected) / expected).abs() < bound, "{what}: {got} {expected}");
            }
            let plan = make(&config.model.tables, ranks);
            for replica in plan.replicas() {
                let of_rank = |own: &Ended| {
                    let tiles = own.parameters.tiles.iter();
                    let found = tiles.rev().find(|state| state.tile == *replica).unwrap();
                    (found.weight.clone(), found.state.clone())
                };
                assert!(serial.iter().all(|own| of_rank(own) == of_rank(&serial[0])), "{what}");
            }
            let is_wanted = |(at, schedule): &(usize, Schedule)| {
                has_time || *schedule == Schedule::PIPELINED || *at == number
            };
            for (_, schedule) in overlapped().enumerate().filter(is_wanted) {
                let overlapped = run(make, ranks, schedule);
                for (serial, overlapped) in serial.iter().zip(&overlapped) {
                    let trained = |own: &Ended| {
                        let RankParameters { dense, tiles } = &own.parameters;
                        (dense.clone(), tiles.clone(), own.losses.clone())
                    };
                    assert!(trained(serial) == trained(overlapped), "{what}, {schedule}");
                }
            }
        }
    }
}
