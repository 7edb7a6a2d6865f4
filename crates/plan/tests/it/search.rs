//! Searches: determinism, pinned tables, and that no heuristic is better.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use plan::explain::PlacementReason;
use plan::{
    Baseline, Constraints, Error, Layout, LayoutKind, Placement, PlanMethod, PlanOptions,
    PlanProblem, PlanTarget, SearchProgress, TableConstraints, explain, plan, plan_observed,
};
use predict::step::{Conditions, Models, price};
use predict::workload::Workload;
use schema::{FeatureStats, HostLayout, JobConfig, Rank, ShardingPlan, Topology};

use crate::cases::RandomCase;

#[test]
fn a_search_is_repeatable_and_never_worse_than_a_heuristic() {
    let models = Models::shipped().expect("models");
    let constraints = Constraints::default();
    let case = RandomCase::new(1);
    let problem = case.problem(&models, &constraints);
    let options = PlanOptions { budget: Some(4_000), ..PlanOptions::new(3) };
    let found = plan(&problem, &options).expect("a plan");
    assert_eq!(plan(&problem, &options).expect("a plan"), found);
    assert_eq!(found.baselines.len(), Baseline::ALL.len());
    for baseline in &found.baselines {
        assert!(baseline.fits && found.cost.step.mean_ns <= baseline.cost.step.mean_ns);
        let alone = PlanMethod::Baseline(baseline.baseline);
        let alone = plan(&problem, &PlanOptions { method: alone, ..options.clone() });
        assert_eq!(alone.expect("a plan").cost, baseline.cost, "{}", baseline.baseline.name());
    }
    // The price is that of the plan as the trainer reads it.
    let hosts = problem.hosts().expect("hosts");
    let sharding = found.plan.to_sharding_plan(&case.config.model.tables, &hosts).expect("a plan");
    let workload = Workload { config: &case.config, plan: &sharding, features: &case.features };
    assert_eq!(price(workload, problem.conditions).expect("a price").cost, found.cost);
}

/// The full search finds a plan that is at least as fast as every plan with one sharding for all
/// tables, and as every plan of a search that allows one kind of layout.
#[test]
fn a_search_is_never_worse_than_one_kind_of_sharding() {
    if !testkit::has_time("a search beside one of each kind") {
        return;
    }
    use LayoutKind::{Column, Replicated, Row, Table, TableRow};
    let models = Models::shipped().expect("models");
    let text = include_str!("../../../../configs/dlrm-dcnv2.toml");
    let config = JobConfig::parse(text, &[]).expect("a configuration");
    let features = FeatureStats::with_bag_sizes(&config, 1);
    for hardware in ["dgx-a100", "2xdgx-h100", "16xdgx-h100"] {
        let topology = Topology::parse(hardware).expect("hardware");
        let conditions = Conditions::new(&topology, &models);
        let step_ns = |layouts: Option<Vec<LayoutKind>>| {
            let every_table = TableConstraints { layouts, ..TableConstraints::default() };
            let constraints = &Constraints { every_table, ..Constraints::default() };
            let problem = PlanProblem {
                config: &config,
                features: &features,
                conditions,
                constraints,
                target: PlanTarget::Rowmill,
            };
            plan(&problem, &PlanOptions::new(0)).map(|found| found.cost.step.mean_ns)
        };
        let best_ns = step_ns(None).expect("a plan");
        let subsets: [&[LayoutKind]; 8] = [
            &[Table],
            &[Row],
            &[Column],
            &[Table, Row],
            &[Row, Column],
            &[TableRow, Table],
            &[Replicated, Row],
            &[Table, Row, Column, TableRow],
        ];
        for subset in subsets {
            let Ok(ns) = step_ns(Some(subset.to_vec())) else { continue };
            assert!(best_ns <= ns, "{hardware}: {subset:?} takes {ns} ns, all take {best_ns} ns");
        }
        let hosts =
            HostLayout::with_ranks_per_host(topology.ranks() as usize, topology.ranks_per_host);
        let (tables, hosts) = (&config.model.tables, hosts.expect("hosts"));
        let ranks = topology.ranks() as u32;
        let mut uniform = vec![
            ShardingPlan::table_wise(tables, ranks),
            ShardingPlan::row_wise(tables, ranks),
            ShardingPlan::column_wise(tables, ranks),
            ShardingPlan::mixed(tables, ranks),
        ];
        if topology.hosts > 1 {
            uniform.push(ShardingPlan::table_row_wise(tables, &hosts));
            uniform.push(ShardingPlan::grid(tables, &hosts));
        }
        for plan in uniform {
            let plan = &plan.on_hosts(hosts.clone());
            let workload = Workload { config: &config, plan, features: &features };
            let cost = price(workload, conditions).expect("a price").cost;
            assert!(best_ns <= cost.step.mean_ns || !cost.fits, "{hardware}");
        }
    }
}

#[test]
fn plans_satisfy_constraints() {
    let models = Models::shipped().expect("models");
    let pinned = Placement { layout: Layout::Row, ranks: vec![Rank(1), Rank(2)] };
    let own = TableConstraints { pinned: Some(pinned.clone()), ..TableConstraints::default() };
    let narrow = TableConstraints {
        layouts: Some(vec![LayoutKind::Column]),
        most_ranks: Some(2),
        ..TableConstraints::default()
    };
    let constraints = Constraints {
        every_table: TableConstraints {
            layouts: Some(vec![LayoutKind::Table, LayoutKind::Replicated]),
            ..TableConstraints::default()
        },
        tables: BTreeMap::from([("t3".to_owned(), own), ("t4".to_owned(), narrow)]),
        least_columns: Some(1),
        ..Constraints::default()
    };
    let case = RandomCase::new(4);
    let options = PlanOptions { budget: Some(2_000), ..PlanOptions::new(3) };
    let found = plan(&case.problem(&models, &constraints), &options).expect("a plan");
    for (at, placement) in found.plan.placements.iter().enumerate() {
        match at {
            3 => assert_eq!(*placement, pinned),
            4 => assert_eq!(placement.layout, Layout::Column { parts: 2 }),
            _ => assert!(matches!(placement.layout, Layout::Table | Layout::Replicated)),
        }
    }
}

#[test]
fn searches_of_many_tables_end_within_their_budget() {
    let models = Models::shipped().expect("models");
    let constraints = Constraints::default();
    // 26 tables on eight ranks, and a thousand on 128.
    let jobs = [(1, 26, 30_000), (2, 1_000, 100_000)];
    let count = if testkit::has_time("a search of 1,000 tables") { 2 } else { 1 };
    for (number, tables, budget) in jobs.into_iter().take(count) {
        let mut case = RandomCase::new(number);
        let random = schema::random::CounterRng::new(5, number);
        case.config = crate::cases::config(tables, 65_536, random);
        case.features = (0..tables).map(|at| case.features[at % case.features.len()]).collect();
        let found = plan(&case.problem(&models, &constraints), &PlanOptions::new(1));
        let found = found.expect("a plan");
        // At most 200 starting plans are priced in addition, without repairs.
        assert!(found.priced < budget + 200, "{} plans priced", found.priced);
    }
}

/// A search that is ended at once has the plan of its first start, or none if that does not fit.
#[test]
fn an_ended_search_has_the_best_plan_so_far() {
    let models = Models::shipped().expect("models");
    let constraints = Constraints::default();
    let mut case = RandomCase::new(1);
    let end = |options: &PlanOptions, case: &RandomCase| {
        let problem = case.problem(&models, &constraints);
        plan_observed(&problem, options, &|_| ControlFlow::Break(()))
    };
    let options = PlanOptions::new(3);
    let ended = end(&options, &case).expect("a plan");
    let tables = case.config.model.tables.len() as u64;
    assert!(ended.baselines.len() == 1 && ended.priced <= 4 * tables, "{}", ended.priced);
    // The observer learns how many plans are expected, and the number grows with every report.
    let reports = RefCell::new(Vec::new());
    let observe = |progress: SearchProgress| {
        reports.borrow_mut().push(progress);
        ControlFlow::Continue(())
    };
    let options = PlanOptions { budget: Some(500), ..options };
    plan_observed(&case.problem(&models, &constraints), &options, &observe).expect("a plan");
    let reports = reports.into_inner();
    assert!(reports.len() > 10 && reports.is_sorted_by(|a, b| a.priced < b.priced));
    assert!(reports.iter().all(|report| report.priced <= report.expected));
    case.topology.device.memory_bytes = 1 << 20;
    assert!(matches!(end(&options, &case), Err(Error::Ended)));
}

/// If the host limits the step, plans whose time it hides are compared by memory.
#[test]
fn time_that_the_host_hides_is_not_worth_memory() {
    let models = Models::shipped().expect("models");
    let constraints = Constraints::default();
    let case = RandomCase::new(1);
    let mut problem = case.problem(&models, &constraints);
    let options = PlanOptions { budget: Some(8_000), ..PlanOptions::new(3) };
    let fast = plan(&problem, &options).expect("a plan");
    // The host takes several times as long as the devices.
    problem.conditions.launch_ns = fast.cost.device_ns / 20.0;
    let hidden = plan(&problem, &options).expect("a plan");
    assert!(hidden.cost.step.mean_ns > 1.25 * hidden.cost.device_ns, "{hidden:?}");
    assert!(hidden.cost.device_ns >= fast.cost.device_ns);
    assert!(hidden.cost.peak_bytes < fast.cost.peak_bytes, "{:?} {:?}", hidden.cost, fast.cost);
}

#[test]
fn explanations_price_other_layouts_of_a_table() {
    let models = Models::shipped().expect("models");
    let constraints = Constraints::default();
    let case = RandomCase::new(1);
    let problem = case.problem(&models, &constraints);
    let options = PlanOptions { budget: Some(8_000), ..PlanOptions::new(3) };
    let found = plan(&problem, &options).expect("a plan");
    let mut fastest = 0;
    for at in 0..8 {
        let name = &case.config.model.tables[at].name;
        let explained = explain(&problem, &found.plan, name).expect("an explanation");
        assert_eq!(
            (explained.cost, &explained.placement),
            (found.cost, &found.plan.placements[at])
        );
        assert!(explained.alternatives.len() >= 2);
        let next = &explained.alternatives[0];
        let mut changed = found.plan.clone();
        changed.placements[at] = next.placement.clone();
        let hosts = problem.hosts().expect("hosts");
        let sharding = changed.to_sharding_plan(&case.config.model.tables, &hosts).expect("a plan");
        let workload = Workload { config: &case.config, plan: &sharding, features: &case.features };
        let step = price(workload, problem.conditions).expect("a price").cost.step;
        assert_eq!(step.mean_ns - found.cost.step.mean_ns, next.added_ns);
        fastest += usize::from(explained.reason == PlacementReason::Fastest);
    }
    assert!(fastest >= 6, "{fastest}");
    let error = explain(&problem, &found.plan, "t1000").expect_err("no such table");
    assert!(error.to_string().contains("\"t1000\""), "{error}");
}
