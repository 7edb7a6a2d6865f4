//! Compares searched plans with published heuristics on random cases.
//!
//! The test runs a dozen cases. `ROWMILL_PLAN_CASES=200 cargo test -p plan --test it comparison --
//! --nocapture` runs the comparison of the documentation.

use plan::{
    CandidatePlan, Constraints, LayoutKind, PlanOptions, PlanProblem, TableConstraints, plan,
};
use predict::step::{Models, price};
use predict::workload::Workload;

use crate::cases::{HARDWARE, RandomCase};

/// Cases whose layouts are restricted in turn, to see where the gain comes from: one in so many.
const RESTRICTED: u64 = 4;

/// Gains over the best heuristic, as ratios of step times minus one.
#[derive(Default)]
struct Gains(Vec<f64>);

impl Gains {
    fn mean_pct(&self) -> f64 {
        100.0 * self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    fn worst_pct(&self) -> f64 {
        100.0 * self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn worse_pct(&self) -> f64 {
        let worse = self.0.iter().filter(|gain| **gain < 0.0).count();
        100.0 * worse as f64 / self.0.len().max(1) as f64
    }
}

fn step_ns(problem: &PlanProblem<'_>, plan: &CandidatePlan) -> f64 {
    let hosts = problem.hosts().expect("hosts");
    let tables = &problem.config.model.tables;
    let sharding = plan.to_sharding_plan(tables, &hosts).expect("a plan");
    let workload = Workload { config: problem.config, plan: &sharding, features: problem.features };
    price(workload, problem.conditions).expect("a price").cost.step.mean_ns
}

fn without(kinds: &[LayoutKind]) -> Constraints {
    let layouts = LayoutKind::ALL.into_iter().filter(|kind| !kinds.contains(kind)).collect();
    let every_table = TableConstraints { layouts: Some(layouts), ..TableConstraints::default() };
    Constraints { every_table, ..Constraints::default() }
}

#[test]
fn searched_plans_beat_the_best_heuristic() {
    let count = std::env::var("ROWMILL_PLAN_CASES").ok().and_then(|count| count.parse().ok());
    let count: u64 = count.unwrap_or(12);
    let models = Models::shipped().expect("models");
    let all = Constraints::default();
    let restrictions = [
        ("without replication", without(&[LayoutKind::Replicated])),
        ("without hierarchy", without(&[LayoutKind::TableRow, LayoutKind::Grid])),
        ("without column splits", without(&[LayoutKind::Column, LayoutKind::Grid])),
        ("whole tables only", {
            let cut = [LayoutKind::Replicated, LayoutKind::TableRow, LayoutKind::Grid];
            without(&[&cut[..], &[LayoutKind::Column, LayoutKind::Row]].concat())
        }),
    ];
    let (mut gains, mut perturbed) = (Gains::default(), Gains::default());
    let mut by_hardware: [Gains; 3] = Default::default();
    let mut restricted: [Gains; 5] = Default::default();
    let mut infeasible = 0;
    for number in 0..count {
        let case = RandomCase::new(number);
        let problem = case.problem(&models, &all);
        let Ok(found) = plan(&problem, &PlanOptions::new(1)) else {
            infeasible += 1;
            continue;
        };
        let fitting = || found.baselines.iter().filter(|baseline| baseline.fits);
        let best =
            fitting().map(|baseline| baseline.cost.step.mean_ns).fold(f64::INFINITY, f64::min);
        let gain = best / found.cost.step.mean_ns - 1.0;
        gains.0.push(gain);
        by_hardware[number as usize % HARDWARE.len()].0.push(gain);
        let changed = case.perturbed(number);
        let judged = changed.problem(&models, &all);
        let others = fitting().map(|baseline| step_ns(&judged, &baseline.plan));
        let best_changed = others.fold(f64::INFINITY, f64::min);
        perturbed.0.push(best_changed / step_ns(&judged, &found.plan) - 1.0);
        if (number / HARDWARE.len() as u64).is_multiple_of(RESTRICTED) {
            restricted[0].0.push(gain);
            for ((_, constraints), gains) in restrictions.iter().zip(&mut restricted[1..]) {
                let problem = case.problem(&models, constraints);
                if let Ok(other) = plan(&problem, &PlanOptions::new(1)) {
                    gains.0.push(best / other.cost.step.mean_ns - 1.0);
                }
            }
        }
    }
    println!("{count} cases, {infeasible} infeasible");
    println!("mean gain {:.1} %, least {:.1} %", gains.mean_pct(), gains.worst_pct());
    for (hardware, gains) in HARDWARE.iter().zip(&by_hardware) {
        println!("  {hardware}: mean {:.1} %, least {:.1} %", gains.mean_pct(), gains.worst_pct());
    }
    println!(
        "prices perturbed: mean gain {:.1} %, least {:.1} %, worse in {:.1} % of the cases",
        perturbed.mean_pct(),
        perturbed.worst_pct(),
        perturbed.worse_pct()
    );
    println!(
        "cases searched with fewer layouts: mean gain with all {:.1} %",
        restricted[0].mean_pct()
    );
    for ((name, _), gains) in restrictions.iter().zip(&restricted[1..]) {
        println!("  {name}: mean gain {:.1} %", gains.mean_pct());
    }
    assert!(gains.worst_pct() >= 0.0 && gains.mean_pct() >= 10.0);
    assert!(perturbed.mean_pct() >= 5.0 && perturbed.worse_pct() <= 10.0);
}
