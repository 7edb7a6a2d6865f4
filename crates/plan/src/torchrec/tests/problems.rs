//! Problems of this crate, planned by TorchRec's planner.

use predict::step::{Conditions, Models};
use schema::{FeatureStats, JobConfig, Rank, ShardingPlan, Topology};

use crate::constraints::{Constraints, TableConstraints};
use crate::layout::{Layout, LayoutKind};
use crate::placement::{CandidatePlan, Placement};
use crate::problem::{PlanProblem, PlanTarget};
use crate::torchrec::cost::price_plan;
use crate::torchrec::error::TorchrecError;
use crate::torchrec::problem::{StorageReservation, TorchrecProblem};
use crate::torchrec::search::{Partitioner, search};

const KAGGLE: &str = include_str!("../../../../../configs/dlrm-criteo-kaggle.toml");

fn check(topology: &str, constraints: &Constraints, check: impl FnOnce(&PlanProblem<'_>)) {
    let config = JobConfig::parse(KAGGLE, &[]).unwrap();
    let features = FeatureStats::with_bag_sizes(&config, 1);
    let (topology, models) = (Topology::parse(topology).unwrap(), Models::shipped().unwrap());
    let conditions = Conditions::new(&topology, &models);
    check(&PlanProblem {
        config: &config,
        features: &features,
        conditions,
        constraints,
        target: PlanTarget::Rowmill,
    });
}

fn every_table(every_table: TableConstraints) -> Constraints {
    Constraints { every_table, ..Constraints::default() }
}

#[test]
fn torchrecs_plan_is_a_plan_of_the_trainer() {
    check("2xh100x4", &Constraints::default(), |problem| {
        let converted = TorchrecProblem::from_problem(problem).unwrap();
        let StorageReservation::Heuristic { dense_parameter_bytes, .. } =
            converted.setting.reservation
        else {
            panic!("the default reservation is the heuristic");
        };
        // Bottom MLP 13-512-256-64-16 and top MLP 367-512-256-1.
        let bottom = 14 * 512 + 513 * 256 + 257 * 64 + 65 * 16;
        assert_eq!(dense_parameter_bytes, 4 * (bottom + 368 * 512 + 513 * 256 + 257));
        let result = search(&converted, Partitioner::GreedyPerf).unwrap();
        let candidate = result.to_candidate();
        let tables = &problem.config.model.tables;
        let plan = candidate.to_sharding_plan(tables, &problem.hosts().unwrap()).unwrap();
        assert_eq!(plan.world_size(), 8);
        let times = price_plan(&candidate, &converted);
        let whole = Placement { layout: Layout::Table, ranks: vec![Rank(0)] };
        let on_one_rank = CandidatePlan { placements: vec![whole; tables.len()] };
        let largest = |times: Vec<f64>| times.into_iter().fold(0.0, f64::max);
        assert!(largest(times) < largest(price_plan(&on_one_rank, &converted)) / 4.0);
    });
}

#[test]
fn torchrec_uses_the_allowed_layouts() {
    let row = TableConstraints { layouts: Some(vec![LayoutKind::Row]), ..Default::default() };
    check("h100x4", &every_table(row), |problem| {
        let converted = TorchrecProblem::from_problem(problem).unwrap();
        let result = search(&converted, Partitioner::MemoryBalanced).unwrap();
        let tables = &problem.config.model.tables;
        let plan = result.to_candidate().to_sharding_plan(tables, &problem.hosts().unwrap());
        assert_eq!(plan, Ok(ShardingPlan::row_wise(tables, 4)));
    });
}

#[test]
fn constraints_that_torchrec_lacks_are_errors() {
    let refused = |constraints: TableConstraints, what: &str| {
        check("h100x4", &every_table(constraints), |problem| {
            let error = TorchrecProblem::from_problem(problem).unwrap_err();
            let table = &problem.config.model.tables[0].name;
            let expected = format!("table {table:?}: TorchRec's planner has no form for {what}");
            assert_eq!(error.to_string(), expected);
        });
    };
    refused(TableConstraints { most_ranks: Some(2), ..Default::default() }, "most_ranks");
    let pinned = Some(Placement::whole(Rank(0)));
    refused(TableConstraints { pinned, ..Default::default() }, "a pinned placement");
}

#[test]
fn a_model_that_does_not_fit_names_a_shard() {
    check("h100x2", &Constraints::default(), |problem| {
        let mut converted = TorchrecProblem::from_problem(problem).unwrap();
        converted.setting.topology.memory_bytes = 100 << 20;
        let error = search(&converted, Partitioner::GreedyPerf).unwrap_err();
        assert!(matches!(error, TorchrecError::NoPlan { .. }), "{error}");
        assert!(error.to_string().contains("expected a rank with"), "{error}");
        converted.setting.topology.memory_bytes = 1 << 20;
        let error = search(&converted, Partitioner::GreedyPerf).unwrap_err();
        assert!(error.to_string().starts_with("reserved memory: expected at most"), "{error}");
        converted.setting.topology.ranks_per_host = 3;
        let error = search(&converted, Partitioner::GreedyPerf).unwrap_err();
        assert_eq!(error, TorchrecError::Hosts { ranks: 2, ranks_per_host: 3 });
    });
}
