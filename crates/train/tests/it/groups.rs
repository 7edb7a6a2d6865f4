//! Replica groups: groups that sum gradients follow a single rank and hold equal tables, and groups
//! that average their tables do what a plain model of them does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::Cpu;
use schema::{
    Batch, DataType, Interaction, JobConfig, Optimizer, Pooling, Rank, ReplicaGroups, Schedule,
    ShardingPlan, TableConfig, TriangleOrder,
};
use train::context::DeviceQueue;
use train::{Error, Model, RunEvent, RunRequest, Start};

use crate::oracle::Oracle;
use crate::processes::{as_processes, files};
use crate::rank_steps::{Ended, Make, Steps, batch, failing_world, overlapped};
use crate::ranks::{self, Job};
use crate::run::{dataset, request};
use crate::stub::model;

const PLANS: [Make; 5] = [
    ShardingPlan::table_wise,
    ShardingPlan::row_wise,
    ShardingPlan::column_wise,
    crate::checkpoint::with_replicas,
    on_first_rank,
];

/// Leaves all ranks of a group but the first without tiles.
fn on_first_rank(tables: &[TableConfig], ranks: u32) -> ShardingPlan {
    let tiles = ShardingPlan::table_wise(tables, 1).tiles().to_vec();
    ShardingPlan::new(ranks, tiles, tables).unwrap()
}

pub fn groups(count: u32, sync_every: u64) -> ReplicaGroups {
    let (count, sync_every) = (count.try_into().unwrap(), sync_every.try_into().unwrap());
    ReplicaGroups { count, sync_every }
}

/// Makes a plan for the ranks of a group.
fn plan(
    make: Make,
    tables: &[TableConfig],
    group_size: u32,
    groups: ReplicaGroups,
) -> ShardingPlan {
    make(tables, group_size).in_groups(groups)
}

fn config(kind: Optimizer) -> JobConfig {
    let dot = Interaction::Dot { order: TriangleOrder::Lower, itself: false };
    let mut config = ranks::job(model(dot, Pooling::Mean), (kind, kind), 0.02, 8);
    // A large epsilon keeps rounding of sums near 0 from deciding the direction of a step.
    config.optimizer.sparse.epsilon = 1e-3;
    config.optimizer.dense.epsilon = 1e-3;
    config
}

fn run(steps: &Steps<'_>) -> Vec<Ended> {
    let ends = comm::world(steps.plan.world_size());
    steps.run(ends).into_iter().map(Result::unwrap).collect()
}

/// Returns the mean loss of each step over all ranks.
fn losses(ranks: &[Ended], batches: &[Batch]) -> Vec<f64> {
    let sum = |step: usize| ranks.iter().map(|own| f64::from_bits(own.losses[step])).sum::<f64>();
    batches.iter().enumerate().map(|(step, batch)| sum(step) / batch.size as f64).collect()
}

/// Checks that all groups hold the same bytes: rank i of one group those of rank i of another.
fn check_equal_groups(ranks: &[Ended], plan: &ShardingPlan, what: &str) {
    let group_size = plan.group_size() as usize;
    for (rank, own) in ranks.iter().enumerate() {
        let first = &ranks[rank % group_size].parameters;
        assert!(own.parameters.tiles == first.tiles, "{what}: rank {rank}");
        assert!(own.parameters.dense == first.dense, "{what}: rank {rank}");
    }
}

#[test]
fn groups_that_sum_gradients_follow_the_losses_of_a_single_rank() {
    const STEPS: usize = 50;
    let has_time = testkit::has_time("replica groups with all plans and optimizers over 50 steps");
    let batches: Vec<Batch> = (0..STEPS).map(|number| batch(number, 1 + number % 8)).collect();
    for (number, kind) in Optimizer::ALL.into_iter().enumerate() {
        let config = config(kind);
        let tables = &config.model.tables;
        let alone = &ShardingPlan::table_wise(tables, 1);
        let expected = losses(&run(&Steps::serial(&config, alone, &batches)), &batches);
        let bound = if kind == Optimizer::Sgd { 1e-6 } else { 1e-5 };
        for (at, make) in PLANS.into_iter().enumerate() {
            for (count, group_size) in [(2, 1), (2, 2), (3, 2)] {
                if !has_time
                    && (count == 3 || !(at + number + group_size as usize).is_multiple_of(2))
                {
                    continue;
                }
                let plan = &plan(make, tables, group_size, groups(count, 1));
                let what = format!("{kind}, {count} groups of {group_size}, plan {at}");
                let serial = run(&Steps::serial(&config, plan, &batches));
                for (got, expected) in losses(&serial, &batches).iter().zip(&expected) {
                    let error = ((got - expected) / expected).abs();
                    assert!(error < bound, "{what}: {got} {expected}");
                }
                check_equal_groups(&serial, plan, &what);
                let schedule = Schedule::PIPELINED;
                let pipelined = run(&Steps { schedule, ..Steps::serial(&config, plan, &batches) });
                for (serial, pipelined) in serial.into_iter().zip(pipelined) {
                    assert!(serial.trained() == pipelined.trained(), "{what}");
                }
            }
        }
    }
}

/// Returns whole tables of the ranks of the first group.
fn tables_of(ranks: &[Ended], plan: &ShardingPlan, tables: &[TableConfig]) -> Vec<Vec<f32>> {
    let mut whole: Vec<Vec<f32>> =
        tables.iter().map(|table| vec![f32::NAN; table.rows as usize * table.dim]).collect();
    for state in ranks[..plan.group_size() as usize].iter().flat_map(|own| &own.parameters.tiles) {
        let (tile, values) = (&state.tile, state.weight.view().to_f32());
        let dim = tables[tile.table.index()].dim;
        for (row, values) in tile.rows.clone().zip(values.chunks_exact(tile.dim())) {
            let start = row as usize * dim + tile.columns.start;
            whole[tile.table.index()][start..start + tile.dim()].copy_from_slice(values);
        }
    }
    whole
}

/// Groups that average their tables every three steps do what two plain f64 models do.
#[test]
fn groups_that_average_tables_match_the_oracle() {
    let batches: Vec<Batch> = (0..9).map(|number| batch(number, 2 + number % 7)).collect();
    for (number, kind) in Optimizer::ALL.into_iter().enumerate() {
        let mut config = config(kind);
        config.optimizer.dense.kind = Optimizer::Adagrad;
        let tables = &config.model.tables;
        let alone = &ShardingPlan::table_wise(tables, 1);
        let queue = DeviceQueue { device: &Cpu::new(1), queue: &() };
        let initial = Model::initial(queue, &config, alone, Rank(0), 8).unwrap();
        let start = ranks::parameters_of(&initial);
        for (count, group_size) in [(2, 1), (2, 2), (3, 2)] {
            let make = [PLANS[1], PLANS[2], PLANS[0]][(number + group_size as usize) % 3];
            let plan = &plan(make, tables, group_size, groups(count, 3));
            let what = format!("{kind}, {count} groups of {group_size}");
            let mut oracles: Vec<_> =
                (0..count).map(|_| Oracle::new(&config, plan, &start)).collect();
            let serial = run(&Steps::serial(&config, plan, &batches));
            let got = losses(&serial, &batches);
            for (step, (batch, got)) in batches.iter().zip(got).enumerate() {
                let expected = Oracle::step_in_groups(&mut oracles, batch);
                let error = ((got - expected) / expected).abs();
                assert!(error < 1e-5, "{what}, step {step}: {got} {expected}");
                if (step + 1) % 3 == 0 {
                    Oracle::average(&mut oracles);
                }
            }
            check_equal_groups(&serial, plan, &what);
            for (got, expected) in tables_of(&serial, plan, tables).iter().zip(&oracles[0].tables) {
                let apart = |(&got, &expected): (&f32, &f64)| (f64::from(got) - expected).abs();
                let worst = got.iter().zip(expected).map(apart).fold(0.0, f64::max);
                assert!(worst < 3e-4, "{what}: {worst} apart");
            }
            for schedule in overlapped() {
                let beside = run(&Steps { schedule, ..Steps::serial(&config, plan, &batches) });
                for (serial, beside) in serial.iter().zip(&beside) {
                    assert!(serial.parameters.tiles == beside.parameters.tiles, "{what}");
                    assert!(serial.losses == beside.losses, "{what}");
                }
            }
        }
    }
}

/// Weights of 16-bit tables are rounded with the same random bits on all groups.
#[test]
fn groups_with_16_bit_tables_are_equal_after_an_average() {
    let batches: Vec<Batch> = (0..8).map(|number| batch(number, 8)).collect();
    let mut config = config(Optimizer::RowwiseAdagrad);
    for (table, data_type) in
        config.model.tables.iter_mut().zip([DataType::Bf16, DataType::F16, DataType::Bf16])
    {
        table.data_type = data_type;
    }
    for (count, sync_every) in [(3, 1), (3, 4), (2, 2)] {
        let plan =
            &plan(ShardingPlan::row_wise, &config.model.tables, 2, groups(count, sync_every));
        let ranks = run(&Steps::serial(&config, plan, &batches));
        check_equal_groups(&ranks, plan, &format!("{count} groups, {sync_every} steps"));
    }
}

#[test]
fn groups_on_emulated_devices_have_the_tables_of_cpus() {
    let Some(driver) = ranks::emulated() else { return };
    let config = config(Optimizer::Adam);
    let batches: Vec<Batch> = (0..4).map(|number| batch(number, 8)).collect();
    for sync_every in [1, 2] {
        let plan = &plan(ShardingPlan::column_wise, &config.model.tables, 2, groups(2, sync_every));
        let parameters = |rank| {
            let queue = DeviceQueue { device: &Cpu::new(1), queue: &() };
            ranks::parameters_of(&Model::initial(queue, &config, plan, rank, 8).unwrap())
        };
        let parameters = &parameters;
        let job = Job { config: &config, plan, batches: &batches, threads: 1, parameters };
        let (on_cpu, emulated) = (ranks::train(&job), ranks::train_emulated(&job, &driver));
        for (on_cpu, emulated) in on_cpu.tables.iter().zip(&emulated.tables) {
            let is_close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(on_cpu.iter().zip(emulated).all(is_close), "{sync_every}");
        }
    }
}

#[test]
fn a_rank_of_a_group_that_fails_ends_all_ranks_with_stage_and_step() {
    let config = config(Optimizer::Lamb);
    let batches: Vec<Batch> = (0..4).map(|number| batch(number, 8)).collect();
    for (sync_every, schedule) in
        [(1, Schedule::SERIAL), (1, Schedule::PIPELINED), (2, Schedule::PIPELINED)]
    {
        let plan = &plan(ShardingPlan::column_wise, &config.model.tables, 2, groups(2, sync_every));
        let mut stages = std::collections::BTreeSet::new();
        for sends in (0..).step_by(2) {
            let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches) };
            let results = steps.run(failing_world(4, sends));
            if results.iter().all(Result::is_ok) {
                break;
            }
            for result in results {
                match result {
                    Err(Error::Stage { stage, .. }) => drop(stages.insert(stage.name())),
                    // The first messages divide the ranks into groups.
                    Err(error) => assert!(sends < 10, "{error}"),
                    Ok(_) => {}
                }
            }
        }
        for stage in ["input_distribution", "gradient_exchange", "group_exchange", "all_reduce"] {
            assert!(stages.contains(stage), "{sync_every}, {schedule}: {stages:?}");
        }
    }
}

/// A run on 4 ranks, whose groups are made equal after every `sync_every` steps.
fn grouped(
    folder: &std::path::Path,
    dataset: &Arc<data::Dataset>,
    make: Make,
    sync_every: u64,
) -> RunRequest {
    let tables = crate::run::config().model.tables;
    let mut request = request(folder, dataset, plan(make, &tables, 2, groups(2, sync_every)));
    request.config.training.log_every = 5;
    request.config.training.evaluate_every = Some(12);
    request
}

/// Returns the files of all checkpoints of a run.
fn checkpoints(request: &RunRequest) -> Vec<std::collections::BTreeMap<String, Vec<u8>>> {
    let folders = train::checkpoint::list(&request.run_folder).unwrap();
    folders.iter().map(|folder| files(folder)).collect()
}

#[test]
fn a_run_of_groups_resumes_to_the_bytes_of_an_uninterrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    for (number, sync_every) in [1, 3].into_iter().enumerate() {
        let make = [PLANS[2], PLANS[3]][number];
        let run_folder = |name: &str| folder.path().join(format!("{sync_every}-{name}"));
        let mut request = grouped(&run_folder("serial"), &dataset, make, sync_every);
        let whole = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        let expected = checkpoints(&request);
        request.schedule = Schedule::PIPELINED;
        request.run_folder = run_folder("pipelined");
        train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        assert!(checkpoints(&request) == expected, "{sync_every}");
        for stop_at in [2, 7] {
            request.run_folder = run_folder(&format!("stopped-{stop_at}"));
            (request.start, request.stop) = (Start::Fresh, Arc::new(AtomicBool::new(false)));
            let stop = Arc::clone(&request.stop);
            let stopped = train::run(&request, Cpu::open, &mut |event| {
                if let RunEvent::Stepped { step, .. } = event {
                    stop.store(step >= stop_at, Ordering::Relaxed);
                }
            });
            let stopped = stopped.unwrap();
            assert!(stopped.interrupted && stopped.step.is_multiple_of(sync_every), "{stopped:?}");
            assert!(stopped.step < stop_at + 3 + sync_every, "{stopped:?}");
            request.stop = Arc::new(AtomicBool::new(false));
            request.start = Start::Checkpoint(stopped.checkpoint.unwrap());
            let resumed = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
            assert_eq!(resumed.evaluation, whole.evaluation);
            let resumed = resumed.checkpoint.unwrap();
            assert!(Some(&files(&resumed)) == expected.last(), "{sync_every}, {stop_at}");
        }
    }
}

/// Groups are averaged once more if the last step is not one after which they are. The checkpoint
/// holds every table once, and other groups and plans read it.
#[test]
fn a_checkpoint_of_groups_resumes_under_other_groups() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let run_folder = |name: &str| folder.path().join(name);
    let mut first = grouped(&run_folder("first"), &dataset, PLANS[1], 4);
    first.config.training.checkpoint_every = None;
    first.config.training.steps = Some(18);
    let ended = train::run(&first, Cpu::open, &mut |_| {}).unwrap();
    let start = Start::Checkpoint(ended.checkpoint.unwrap());
    let mut losses = Vec::new();
    let tables = crate::run::config().model.tables;
    for (name, plan) in [
        ("alone", ShardingPlan::table_wise(&tables, 1)),
        ("one group", ShardingPlan::mixed(&tables, 3)),
        ("other groups", plan(PLANS[2], &tables, 1, groups(3, 1))),
    ] {
        let mut request = request(&run_folder(name), &dataset, plan);
        request.start = start.clone();
        let resumed = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
        losses.push(resumed.evaluation.unwrap().loss);
    }
    assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-5), "{losses:?}");
}

#[test]
fn groups_of_processes_have_the_bytes_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let asked = |name: &str| grouped(&folder.path().join(name), &dataset, PLANS[0], 2);
    let threads = train::run(&asked("threads"), Cpu::open, &mut |_| {}).unwrap();
    let requests = (0..4).map(|_| asked("processes")).collect();
    let led = as_processes(requests).swap_remove(0).unwrap().unwrap();
    assert_eq!(led.evaluation, threads.evaluation);
    assert!(files(&led.checkpoint.unwrap()) == files(&threads.checkpoint.unwrap()));
}

#[test]
fn intervals_at_which_groups_differ_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let mut request = grouped(&folder.path().join("run"), &dataset, PLANS[1], 4);
    let refused =
        |request: &RunRequest| train::run(request, Cpu::open, &mut |_| {}).unwrap_err().to_string();
    let text = |key: &str, got: u64| {
        format!(
            "training.{key}: expected a multiple of 4 steps, after which replica groups are equal, \
             got {got}"
        )
    };
    assert_eq!(refused(&request), text("checkpoint_every", 6));
    request.config.training.evaluate_every = Some(3);
    assert_eq!(refused(&request), text("evaluate_every", 3));
    assert!(!request.run_folder.exists());
}

#[test]
fn a_steady_step_of_groups_allocates_no_more_than_one_without_groups() {
    const STEPS: u64 = 40;
    let config = config(Optimizer::RowwiseAdagrad);
    let batches: Vec<Batch> = (0..STEPS).map(|number| batch(number as usize % 3, 8)).collect();
    for schedule in [Schedule::SERIAL, Schedule::PIPELINED] {
        let allocations = |plan: &ShardingPlan| {
            let ranks = run(&Steps { schedule, ..Steps::serial(&config, plan, &batches) });
            ranks.iter().map(|own| own.allocations).max().unwrap()
        };
        let tables = &config.model.tables;
        let flat = allocations(&crate::checkpoint::with_replicas(tables, 4));
        for sync_every in [1, 2] {
            let plan = plan(crate::checkpoint::with_replicas, tables, 2, groups(2, sync_every));
            let grouped = allocations(&plan);
            // A queue or a pool may still grow once.
            assert!(grouped < flat + STEPS / 4, "{schedule}, {sync_every}: {grouped} {flat}");
        }
    }
}
