//! Checks of a run's plan: prices follow the measured ratios, and only a better plan is suggested.

use kernel_model::host_costs::HostCosts;
use plan::check::{MeasuredRank, PlanCheck, check};
use plan::{Constraints, PlanOptions, PlanProblem, PlanTarget, plan};
use predict::step::{Conditions, Models, StepPrice, StepPricer, price};
use predict::workload::Workload;
use schema::{FeatureStats, JobConfig, Rank, ShardingPlan, Tile, topology::Topology};

const CONFIG: &str = include_str!("../../../../configs/dlrm-ddp.toml");

/// Checks a plan whose ranks measured `factor` times the predicted stages.
fn check_with(uneven: bool, factor: f64, noise: f64) -> PlanCheck {
    let config = JobConfig::parse(CONFIG, &[]).expect("a configuration");
    let features = FeatureStats::uniform(&config.model, 1);
    let topology = Topology::parse("a100x2").expect("a topology");
    let (models, constraints) = (Models::shipped().expect("models"), Constraints::default());
    let costs = HostCosts::typical(1, false);
    let conditions = Conditions { host: Some(&costs), ..Conditions::new(&topology, &models) };
    let problem = PlanProblem {
        config: &config,
        features: &features,
        conditions,
        constraints: &constraints,
        target: PlanTarget::Rowmill,
    };
    let tables = &config.model.tables;
    let run_plan = if uneven {
        let whole = ShardingPlan::table_wise(tables, 2);
        let tiles = whole.tiles().iter().map(|tile| Tile { rank: Rank(0), ..tile.clone() });
        ShardingPlan::with_replicas(2, tiles.collect(), &[], tables).expect("a plan")
    } else {
        let found = plan(&problem, &PlanOptions::new(0)).expect("a plan");
        let hosts = problem.hosts().expect("hosts");
        found.plan.to_sharding_plan(tables, &hosts).expect("a plan")
    };
    let workload = Workload { config: &config, plan: &run_plan, features: &features };
    let predicted: StepPrice = price(workload, conditions).expect("a price");
    let pricer = StepPricer::new(workload, conditions).expect("a price");
    let measured = predicted.ranks.iter().map(|rank| MeasuredRank {
        stages_ns: rank.stages.map(|stage| factor * stage.mean_ns),
        copies_ns: pricer.exchange_copies(Rank(rank.rank)).map(|copies| factor * copies.mean_ns),
        step_ns: factor * predicted.cost.step.mean_ns,
    });
    check(&problem, &costs, &run_plan, &measured.collect::<Vec<_>>(), noise).expect("a check")
}

#[test]
fn prices_follow_the_measured_ratios() {
    let found = check_with(true, 3.0, 0.0);
    let ratios = found.ratios;
    for ratio in [ratios.lookup, ratios.update, ratios.dense, ratios.exchange] {
        assert!((ratio - 3.0).abs() < 1e-9, "{ratios:?}");
    }
    let step_ns = found.predicted.cost.step.mean_ns;
    assert!((found.measured_ns / (3.0 * step_ns) - 1.0).abs() < 1e-9, "{found:?}");
    // Ids that are distributed beside the computation have no stage, so part of the step stays.
    assert!(found.unpriced_ns.abs() < 0.5 * found.measured_ns, "{found:?}");
}

#[test]
fn only_a_plan_that_gains_more_than_the_noise_is_suggested() {
    let better = check_with(true, 1.0, 0.0).better.expect("a better plan");
    assert!(better.step_ns < check_with(true, 1.0, 0.0).measured_ns);
    assert!(check_with(true, 1.0, 0.99).better.is_none());
    assert!(check_with(false, 1.0, 0.0).better.is_none());
}
