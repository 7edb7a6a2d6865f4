//! Tests that ranks wait for each other at exchanges alone, and that communication threads share
//! cores with computation.

use kernel_model::Estimate;
use schema::{JobConfig, Schedule, ShardingPlan, Stage, StepGraph};

use super::{RankTimes, StageTimeline, TileTimes};

const CONFIG: &str = include_str!("../../../../../configs/dlrm-ddp.toml");
const DENSE_NS: f64 = 1.0;

fn exactly(ns: f64) -> Estimate {
    Estimate::within(ns, (1.0, 1.0))
}

fn rank([lookup, update, lane]: [f64; 3]) -> RankTimes {
    RankTimes { lookup: exactly(lookup), update: exactly(update), lane: exactly(lane) }
}

/// Returns the step of two ranks with these lookups, updates and distributions of ids. Exchanges of
/// ids and of vectors take `exchange_ns`. A message keeps no link busy for `latency_ns`. The bottom
/// MLP takes 1 ns.
fn step_ns(ranks: [[f64; 3]; 2], [ids_ns, vectors_ns]: [f64; 2], latency_ns: f64) -> f64 {
    let config = JobConfig::parse(CONFIG, &[]).expect("a configuration");
    let plan = ShardingPlan::table_wise(&config.model.tables, 2);
    let graph = StepGraph::new(&config, 1 << 20, Schedule::PIPELINED, &plan);
    let dense = |stage| match stage {
        Stage::BottomMlp => exactly(DENSE_NS),
        _ => Estimate::default(),
    };
    let timeline = StageTimeline::new(&graph, exactly(latency_ns), dense);
    let ranks = ranks.map(rank);
    let nothing = Estimate::default();
    let times = TileTimes {
        ids: exactly(ids_ns),
        pooled: exactly(vectors_ns),
        gradients: exactly(vectors_ns),
        terms: nothing,
        copies: nothing,
        replicas: nothing,
        ranks: &ranks,
    };
    let mut sum = 0.0;
    let step = timeline.simulate(&times, &|_, time| time, |_, added| sum += added.mean_ns);
    assert_eq!(step.mean_ns, sum, "stages add up to the step");
    step.mean_ns
}

#[test]
fn a_slow_update_hides_behind_the_slow_lookup_of_another_rank() {
    let even = step_ns([[10.0, 10.0, 0.0]; 2], [0.0; 2], 0.0);
    assert_eq!(even, 20.0 + DENSE_NS);
    // Rank 1 updates rows while rank 0 already looks up those of the next batch.
    let crossed = step_ns([[10.0, 0.0, 0.0], [0.0, 10.0, 0.0]], [0.0; 2], 0.0);
    assert_eq!(crossed, 10.0 + DENSE_NS);
    // All work is on one rank, so nothing hides.
    assert_eq!(step_ns([[10.0, 10.0, 0.0], [0.0; 3]], [0.0; 2], 0.0), 20.0 + DENSE_NS);
    let partly = step_ns([[10.0, 4.0, 0.0], [2.0, 10.0, 0.0]], [0.0; 2], 0.0);
    assert_eq!(partly, 14.0 + DENSE_NS);
}

#[test]
fn latencies_keep_no_link_busy_for_the_next_exchange() {
    // The bottom MLP runs beside the pooled exchange.
    assert_eq!(step_ns([[10.0, 10.0, 0.0]; 2], [0.0, 5.0], 0.0), 30.0);
    assert_eq!(step_ns([[10.0, 10.0, 0.0]; 2], [0.0, 5.0], 3.0), 30.0);
    // Pooled vectors wait behind the ids of the next batch only while these are sent.
    assert_eq!(step_ns([[0.0; 3]; 2], [20.0, 5.0], 0.0), 30.0);
    assert_eq!(step_ns([[0.0; 3]; 2], [20.0, 5.0], 10.0), 20.0);
}

#[test]
fn distributing_ids_slows_computation_but_not_waits() {
    // The thread has half of the core during the lookup, and goes on during the exchange.
    assert_eq!(step_ns([[10.0, 10.0, 12.0]; 2], [0.0, 5.0], 0.0), 30.0 + 10.0);
    assert_eq!(step_ns([[10.0, 10.0, 4.0]; 2], [0.0, 5.0], 0.0), 30.0 + 4.0);
}
