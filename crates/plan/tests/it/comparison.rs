//! Compares searched plans with published heuristics on random cases.
//!
//! The everyday test runs one case for each hardware with few priced plans. `cargo xtask ci --full`
//! runs 200 cases with as many priced plans as `rowmill plan` uses. Environment variables change
//! this:
//! - `ROWMILL_PLAN_CASES`: the number of random cases.
//! - `ROWMILL_PLAN_RESTRICTED=N`: in one of N rounds over the hardware, each case is also searched
//!   with fewer layouts.
//! - `ROWMILL_PLAN_RECORD=FILE.json`: writes the gain of each case to this file. The records that
//!   docs/planning.md cites were made this way.

use std::thread;

use plan::torchrec::TorchrecProblem;
use plan::torchrec::search::{Partitioner, search};
use plan::{
    CandidatePlan, Constraints, LayoutKind, PlanOptions, PlanProblem, TableConstraints, plan,
};
use predict::step::{Models, Stage, StepPrice, price};
use predict::workload::Workload;
use serde::Serialize;
use serde_json::json;

use crate::cases::{HARDWARE, RandomCase};

/// In one of this many rounds over the hardware, cases are searched again with fewer layouts.
/// `ROWMILL_PLAN_RESTRICTED` sets another number.
const RESTRICTED: u64 = 16;

/// Number of plans that local search prices in the everyday test. Searches with 30,000 to 100,000
/// of them take most of a minute in all.
const EVERYDAY_BUDGET: u64 = 4_000;

/// Number of cases from which the share of worse ones is judged.
const MANY: u64 = 30;

/// Names of the restrictions, and the layouts that they exclude.
const RESTRICTIONS: [(&str, &[LayoutKind]); 4] = [
    ("without replication", &[LayoutKind::Replicated]),
    ("without hierarchy", &[LayoutKind::TableRow, LayoutKind::Grid]),
    ("without column splits", &[LayoutKind::Column, LayoutKind::Grid]),
    (
        "whole tables only",
        &[
            LayoutKind::Replicated,
            LayoutKind::TableRow,
            LayoutKind::Grid,
            LayoutKind::Column,
            LayoutKind::Row,
        ],
    ),
];

/// The gains of the searched plan of one case over the best heuristic, as ratios of step times
/// minus one.
#[derive(Serialize)]
struct CaseGains {
    case: u64,
    hardware: &'static str,
    tables: usize,
    /// The heuristic with the fastest step.
    heuristic: &'static str,
    step_ms: f64,
    gain: f64,
    /// Gain by perturbed prices over the heuristic that is best by these prices.
    perturbed: f64,
    /// Share of the step in which the mean rank waits for the slowest lookups and row updates.
    /// Better balance of equal work gains no more than that.
    uneven: f64,
    /// Gains with fewer layouts, in the order of [`RESTRICTIONS`]. Empty for most cases.
    restricted: Vec<f64>,
}

/// Statistics of gains in percent.
#[derive(Serialize)]
struct Gains {
    cases: usize,
    mean_pct: f64,
    least_pct: f64,
    worse_pct: f64,
}

impl Gains {
    fn new(gains: impl Iterator<Item = f64>) -> Self {
        let gains: Vec<f64> = gains.map(|gain| 100.0 * gain).collect();
        let count = gains.len().max(1) as f64;
        Self {
            cases: gains.len(),
            mean_pct: gains.iter().sum::<f64>() / count,
            least_pct: gains.iter().copied().fold(f64::INFINITY, f64::min),
            worse_pct: 100.0 * gains.iter().filter(|gain| **gain < 0.0).count() as f64 / count,
        }
    }
}

fn price_plan(problem: &PlanProblem<'_>, plan: &CandidatePlan) -> StepPrice {
    let hosts = problem.hosts().expect("hosts");
    let tables = &problem.config.model.tables;
    let sharding = plan.to_sharding_plan(tables, &hosts).expect("a plan");
    let workload = Workload { config: problem.config, plan: &sharding, features: problem.features };
    price(workload, problem.conditions).expect("a price")
}

fn step_ns(problem: &PlanProblem<'_>, plan: &CandidatePlan) -> f64 {
    price_plan(problem, plan).cost.step.mean_ns
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Returns the share of a step in which the mean rank waits for the slowest one.
fn unevenness(step: &StepPrice) -> f64 {
    let stages = [Stage::Lookup, Stage::EmbeddingUpdate];
    let waits = stages.map(|stage| {
        let times = || step.ranks.iter().map(|rank| rank.stages[stage as usize].mean_ns);
        times().fold(0.0, f64::max) - times().sum::<f64>() / step.ranks.len() as f64
    });
    waits.iter().sum::<f64>() / step.cost.step.mean_ns
}

fn plan_as_torchrec(problem: &PlanProblem<'_>) -> Option<CandidatePlan> {
    let torchrec = TorchrecProblem::from_problem(problem).ok()?;
    Some(search(&torchrec, Partitioner::GreedyPerf).ok()?.to_candidate())
}

/// Searches for the plan of a case, and compares it with the heuristics that fit. `budget` is the
/// number of plans that local search prices. Returns `None` if no plan or no heuristic fits.
fn judge(number: u64, models: &Models, budget: Option<u64>) -> Option<CaseGains> {
    let case = RandomCase::new(number);
    let all = Constraints::default();
    let problem = case.problem(models, &all);
    let starts: Vec<CandidatePlan> = plan_as_torchrec(&problem).into_iter().collect();
    let options = PlanOptions { budget, starts: starts.clone(), ..PlanOptions::new(1) };
    let found = plan(&problem, &options).ok()?;
    let fitting = found.baselines.iter().filter(|baseline| baseline.fits);
    let mut heuristics: Vec<(&str, &CandidatePlan)> =
        fitting.map(|baseline| (baseline.baseline.name(), &baseline.plan)).collect();
    // TorchRec reserves memory by its own estimate, so its plans fit.
    heuristics.extend(starts.iter().map(|plan| ("torchrec", plan)));
    let best = |problem: &PlanProblem<'_>| {
        let steps = heuristics.iter().map(|(name, plan)| (step_ns(problem, plan), *name));
        steps.min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let (best_ns, heuristic) = best(&problem)?;
    let chosen = price_plan(&problem, &found.plan);
    let chosen_ns = chosen.cost.step.mean_ns;
    let changed = case.perturbed(number);
    let changed = changed.problem(models, &all);
    let perturbed = best(&changed)?.0 / step_ns(&changed, &found.plan) - 1.0;
    let mut restricted = Vec::new();
    let rounds = number_from("ROWMILL_PLAN_RESTRICTED").unwrap_or(RESTRICTED);
    if number / HARDWARE.len() as u64 % rounds == rounds - 1 {
        for (_, excluded) in RESTRICTIONS {
            let allowed = LayoutKind::ALL.into_iter().filter(|kind| !excluded.contains(kind));
            let layouts = Some(allowed.collect());
            let every_table = TableConstraints { layouts, ..TableConstraints::default() };
            let constraints = Constraints { every_table, ..Constraints::default() };
            let problem = case.problem(models, &constraints);
            let starts = plan_as_torchrec(&problem).into_iter().collect();
            let options = PlanOptions { budget, starts, ..PlanOptions::new(1) };
            let other = plan(&problem, &options).ok()?;
            restricted.push(best_ns / other.cost.step.mean_ns - 1.0);
        }
    }
    Some(CaseGains {
        case: number,
        hardware: HARDWARE[number as usize % HARDWARE.len()],
        tables: case.config.model.tables.len(),
        heuristic,
        step_ms: chosen_ns / 1e6,
        gain: best_ns / chosen_ns - 1.0,
        perturbed,
        uneven: unevenness(&chosen),
        restricted,
    })
}

/// Judges the cases below a number on all cores, in the order of their numbers.
fn judge_all(count: u64, budget: Option<u64>) -> Vec<CaseGains> {
    let models = Models::shipped().expect("models");
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut cases: Vec<CaseGains> = thread::scope(|scope| {
        let share = |first: usize| {
            let numbers = (first as u64..count).step_by(threads);
            let models = &models;
            scope.spawn(move || {
                let gains = numbers.filter_map(|number| judge(number, models, budget));
                gains.inspect(|gains| println!("{}", json!(gains))).collect()
            })
        };
        let workers: Vec<_> = (0..threads).map(share).collect();
        let joined = workers.into_iter().flat_map(|worker| -> Vec<CaseGains> {
            worker.join().expect("a worker without panics")
        });
        joined.collect()
    });
    cases.sort_by_key(|case| case.case);
    cases
}

#[test]
fn searched_plans_beat_the_best_heuristic() {
    let (count, budget) = match number_from("ROWMILL_PLAN_CASES") {
        Some(count) => (count, None),
        None => (HARDWARE.len() as u64, Some(EVERYDAY_BUDGET)),
    };
    let cases = judge_all(count, budget);
    let gains = Gains::new(cases.iter().map(|case| case.gain));
    let perturbed = Gains::new(cases.iter().map(|case| case.perturbed));
    let on = |hardware| cases.iter().filter(move |case| case.hardware == hardware);
    let by_hardware = HARDWARE.map(|name| {
        let uneven = Gains::new(on(name).map(|case| case.uneven)).mean_pct;
        (name, Gains::new(on(name).map(|case| case.gain)), uneven)
    });
    let restricted = || cases.iter().filter(|case| !case.restricted.is_empty());
    let all_layouts = ("all layouts", Gains::new(restricted().map(|case| case.gain)));
    let fewer_layouts = (0..RESTRICTIONS.len())
        .map(|at| (RESTRICTIONS[at].0, Gains::new(restricted().map(|case| case.restricted[at]))));
    let fewer_layouts: Vec<_> = std::iter::once(all_layouts).chain(fewer_layouts).collect();
    let summary = json!({
        "cases": count,
        "without_plan": count - cases.len() as u64,
        "gains": gains,
        "perturbed": perturbed,
        "by_hardware": by_hardware,
        "fewer_layouts": fewer_layouts,
    });
    println!("{summary:#}");
    if let Some(path) = std::env::var_os("ROWMILL_PLAN_RECORD") {
        let record = json!({ "summary": summary, "cases": cases });
        std::fs::write(path, format!("{record:#}\n")).expect("a record");
    }
    assert!(gains.least_pct >= -1e-7 && gains.mean_pct >= 10.0);
    // Shares of few cases say little, so each of these may be slightly worse.
    let is_safe =
        if count < MANY { perturbed.least_pct >= -3.0 } else { perturbed.worse_pct <= 10.0 };
    assert!(perturbed.mean_pct >= 5.0 && is_safe);
}
