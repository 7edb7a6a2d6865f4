//! Replica groups: groups that sum gradients follow a single rank and hold equal tables, and groups
//! that average their tables do what a plain model of them does.

use schema::{
    Batch, Interaction, JobConfig, Optimizer, Pooling, ReplicaGroups, Schedule, ShardingPlan,
    TableConfig, TriangleOrder,
};

use crate::rank_steps::{Ended, Make, Steps, batch};
use crate::ranks;
use crate::stub::model;

const PLANS: [Make; 4] = [
    ShardingPlan::table_wise,
    ShardingPlan::row_wise,
    ShardingPlan::column_wise,
    crate::checkpoint::with_replicas,
];

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

/// Checks that the ranks with the same place in all groups hold the same bytes.
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
                if !has_time && (count == 3 || (at + number + group_size as usize) % 2 != 0) {
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
