//! Plans over hosts: what their exchanges send, and that results do not depend on the hosts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm::{
    Communicator, Counted, Delayed, DelayedLink, ElementType, HostLinks, HostTraffic, InProcess,
    Verb,
};
use device::Cpu;
use schema::{Batch, HostLayout, JobConfig, Optimizer, Schedule, ShardingPlan};
use train::Start;

use crate::processes::files;
use crate::rank_steps::{Steps, batch, config, partly_by_host, two_hosts};
use crate::ranks;
use crate::run::{dataset, plan, request};
use crate::stub::model;

/// The measurements of a run on four ranks.
struct Measured {
    /// Sum of the losses of each step.
    losses: Vec<f64>,
    /// Messages with pooled vectors and their gradients.
    traffic: HostTraffic,
    time: Duration,
}

/// Creates a model whose pooled vectors are larger than its dense gradients.
fn wide_config() -> JobConfig {
    let order = schema::TriangleOrder::Lower;
    let interaction = schema::Interaction::Dot { order, itself: false };
    // Bags that are averaged would send their scales in messages of the same type.
    let mut model = model(interaction, schema::Pooling::Sum);
    model.bottom = vec![64];
    for table in &mut model.tables {
        table.dim = 64;
    }
    ranks::job(model, (Optimizer::Sgd, Optimizer::Sgd), 0.01, 256)
}

/// Trains over links that are ten times slower between hosts.
fn train_on_slow_network(plan: &ShardingPlan, schedule: Schedule) -> Measured {
    let hosts = two_hosts(4);
    let within = DelayedLink { latency: Duration::from_micros(200), bandwidth: 200e6 };
    let between = DelayedLink { latency: Duration::from_millis(2), bandwidth: 20e6 };
    let counted = |end: InProcess| {
        let links = HostLinks { within, between };
        let delayed = Delayed::by_host(Arc::new(end), links, &hosts);
        Arc::new(Counted::new(Arc::new(delayed), hosts.clone()))
    };
    let counters: Vec<Arc<Counted>> = InProcess::ends(4).into_iter().map(counted).collect();
    let ends = counters.iter().map(|end| Communicator::over(Arc::clone(end) as _)).collect();
    let (config, batches) = (wide_config(), (0..8).map(|number| batch(number, 256)));
    let batches: Vec<Batch> = batches.collect();
    let steps = Steps { schedule, ..Steps::serial(&config, plan, &batches) };
    let began = Instant::now();
    let ranks: Vec<_> = steps.run(ends).into_iter().map(Result::unwrap).collect();
    let time = began.elapsed();
    let loss = |step: usize| ranks.iter().map(|rank| f64::from_bits(rank.losses[step])).sum();
    let is_pooled = |verb, element| {
        let verbs = [Verb::AllToAll, Verb::ReduceScatter, Verb::AllGather];
        verbs.contains(&verb) && element == ElementType::F32
    };
    let mut traffic = HostTraffic::default();
    for counter in &counters {
        let own = counter.traffic(is_pooled);
        traffic.within.bytes += own.within.bytes;
        traffic.between.bytes += own.between.bytes;
    }
    Measured { losses: (0..batches.len()).map(loss).collect(), traffic, time }
}

#[test]
fn a_table_row_wise_plan_sends_less_between_hosts_than_a_row_wise_one() {
    let (tables, hosts) = (wide_config().model.tables, two_hosts(4));
    let row = ShardingPlan::row_wise(&tables, 4).on_hosts(hosts.clone());
    let table_row = ShardingPlan::table_row_wise(&tables, &hosts);
    for schedule in [Schedule::SERIAL, Schedule::PIPELINED] {
        let [row, table_row] = [&row, &table_row].map(|plan| train_on_slow_network(plan, schedule));
        let [before, after] = [&row, &table_row].map(|run| run.traffic.between.bytes);
        assert!(after > 0 && 10 * after <= 3 * before, "{after} and {before} bytes");
        for (got, expected) in table_row.losses.iter().zip(&row.losses) {
            assert!(((got - expected) / expected).abs() < 1e-6, "{got} {expected}");
        }
        println!(
            "{schedule}: {after} bytes between hosts in {:?} instead of {before} in {:?}",
            table_row.time, row.time
        );
    }
}

#[test]
fn hosts_do_not_change_results() {
    let config = config();
    let tables = &config.model.tables;
    let batches: Vec<Batch> = (0..12).map(|number| batch(number, number % 9)).collect();
    let layouts = [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 1]];
    let layouts = layouts.map(|hosts| HostLayout::from_hosts(&hosts));
    let plans = [
        ShardingPlan::table_row_wise(tables, &layouts[1]),
        ShardingPlan::grid(tables, &layouts[2]),
        ShardingPlan::row_wise(tables, 4),
        partly_by_host(tables, 4),
    ];
    for (number, plan) in plans.into_iter().enumerate() {
        let run = |hosts: &HostLayout| {
            let plan = plan.clone().on_hosts(hosts.clone());
            let steps =
                Steps { schedule: Schedule::PIPELINED, ..Steps::serial(&config, &plan, &batches) };
            steps.train(comm::world(4))
        };
        let one_host = run(&layouts[0]);
        for hosts in &layouts[1..] {
            assert!(run(hosts) == one_host, "plan {number}, {hosts:?}");
        }
    }
}

#[test]
fn a_run_resumes_on_other_hosts_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let plan = plan(|tables, ranks| ShardingPlan::table_row_wise(tables, &two_hosts(ranks)), 4);
    let mut request = request(&folder.path().join("whole"), &dataset, plan.clone());
    request.schedule = Schedule::PIPELINED;
    let whole = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    request.run_folder = folder.path().join("moved");
    let steps = request.config.training.steps.replace(7);
    let first = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    request.config.training.steps = steps;
    request.start = Start::Checkpoint(first.checkpoint.unwrap());
    request.plan = plan.on_hosts(HostLayout::from_hosts(&[0, 1, 0, 1]));
    let moved = train::run(&request, Cpu::open, &mut |_| {}).unwrap();
    assert!(files(&whole.checkpoint.unwrap()) == files(&moved.checkpoint.unwrap()));
}
