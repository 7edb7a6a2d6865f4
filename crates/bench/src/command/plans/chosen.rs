//! Chooses plans of a model whose predicted steps differ: those of the planner, and random ones
//! with mixed layouts.

use plan::allowed::AllowedLayouts;
use plan::priced_plan::first_plan;
use plan::{CandidatePlan, LayoutKind, PlanOptions, PlanProblem};
use predict::step::StepPricer;
use schema::random::CounterRng;
use schema::{HostLayout, Rank, ShardingPlan};

use setup::error::Error;

/// Random plans among which some are chosen.
const RANDOM: u64 = 300;
/// Layouts that random plans mix.
const KINDS: [LayoutKind; 4] =
    [LayoutKind::Table, LayoutKind::Row, LayoutKind::Column, LayoutKind::Replicated];
/// Predicted steps whose ratio is closer to 1 count as equal.
const EQUAL: f64 = 1e-3;

/// A plan with its predicted step and stages.
pub struct ChosenPlan {
    pub name: String,
    pub sharding: ShardingPlan,
    pub step_ns: f64,
    /// In the order of [`predict::step::Stage::ALL`].
    pub stages_ns: [f64; predict::step::STAGES],
}

/// Chooses `count` plans, fastest predicted one first: the plan of the search, and others at equal
/// distances in the order of predicted steps.
pub fn choose(problem: &PlanProblem<'_>, count: usize) -> Result<Vec<ChosenPlan>, Error> {
    let found = plan::plan(problem, &PlanOptions::new(0))?;
    let first = first_plan(problem)?;
    let allowed = AllowedLayouts::new(problem, first.hosts())?;
    let mut plans = vec![("search".to_owned(), found.plan)];
    for one in found.baselines {
        plans.push((one.baseline.name().to_owned(), one.plan));
    }
    for kind in KINDS {
        plans.push((
            format!("all {}", kind.name()),
            uniform(&allowed, kind, problem, first.hosts()),
        ));
    }
    for number in 0..RANDOM {
        let plan = random(&allowed, CounterRng::new(number, 0), problem, first.hosts());
        plans.push((format!("random {number}"), plan));
    }
    let mut priced = Vec::new();
    for (name, plan) in plans {
        priced.push(price(name, &plan, problem, first.hosts())?);
    }
    priced.sort_by(|a, b| a.step_ns.total_cmp(&b.step_ns));
    priced.dedup_by(|next, kept| next.step_ns < (1.0 + EQUAL) * kept.step_ns);
    let last = priced.len().saturating_sub(1);
    let gaps = count.saturating_sub(1).max(1);
    let mut places: Vec<usize> = (0..count).map(|at| at * last / gaps).collect();
    places.dedup();
    let mut at = 0;
    priced.retain(|_| {
        at += 1;
        places.contains(&(at - 1))
    });
    Ok(priced)
}

/// Places all tables by one layout where a table allows it.
fn uniform(
    allowed: &AllowedLayouts,
    kind: LayoutKind,
    problem: &PlanProblem<'_>,
    hosts: &HostLayout,
) -> CandidatePlan {
    let placements = (0..problem.config.model.tables.len()).filter_map(|table| {
        let choice = allowed.first(table, kind).or(allowed.first(table, LayoutKind::Table))?;
        // Tables take turns, as `--sharding table` places them.
        let turn = |rank: Rank| f64::from((rank.0 + table as u32) % hosts.world_size() as u32);
        Some(choice.place(hosts, turn))
    });
    CandidatePlan { placements: placements.collect() }
}

/// Places each table by a random layout on random ranks. Plans differ in how often they choose a
/// layout and a rank.
fn random(
    allowed: &AllowedLayouts,
    random: CounterRng,
    problem: &PlanProblem<'_>,
    hosts: &HostLayout,
) -> CandidatePlan {
    let weights: Vec<f64> = (0..KINDS.len() as u64).map(|at| random.unit(at).powi(2)).collect();
    let all: f64 = weights.iter().sum();
    let lean = random.child(1).unit(0);
    let placements = (0..problem.config.model.tables.len()).filter_map(|table| {
        let own = random.child(2 + table as u64);
        let mut left = all * own.unit(0);
        let kind = KINDS.iter().zip(&weights).find(|(_, weight)| {
            left -= **weight;
            left <= 0.0
        });
        let kind = kind.map_or(LayoutKind::Table, |(kind, _)| *kind);
        let choice = allowed.first(table, kind).or(allowed.first(table, LayoutKind::Table))?;
        let on_first = own.unit(1) < lean;
        Some(choice.place(hosts, |rank| f64::from(u8::from((rank.0 == 0) != on_first))))
    });
    CandidatePlan { placements: placements.collect() }
}

fn price(
    name: String,
    candidate: &CandidatePlan,
    problem: &PlanProblem<'_>,
    hosts: &HostLayout,
) -> Result<ChosenPlan, Error> {
    let PlanProblem { config, features, conditions, .. } = *problem;
    let sharding = candidate.to_sharding_plan(&config.model.tables, hosts);
    let sharding = sharding.map_err(plan::Error::from)?;
    let workload = predict::workload::Workload { config, plan: &sharding, features };
    let pricer = StepPricer::new(workload, conditions)?;
    let stages_ns = pricer.stages().map(|stage| stage.mean_ns);
    let step_ns = pricer.cost().step.mean_ns;
    Ok(ChosenPlan { name, sharding, step_ns, stages_ns })
}
