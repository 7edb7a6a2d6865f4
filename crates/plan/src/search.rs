//! Makes a plan: the published heuristics, starting plans of our own, and local search from the
//! best of them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use predict::step::StepCost;
use schema::layout::LayoutKind;
use schema::random::CounterRng;

use crate::allowed::AllowedLayouts;
use crate::baseline::Baseline;
use crate::error::Error;
use crate::least_memory::place_in_least_memory;
use crate::local_search::LocalSearch;
use crate::neo::NeoWeights;
use crate::placement::CandidatePlan;
use crate::priced_plan::{PlanScore, PricedPlan, first_plan};
use crate::problem::PlanProblem;
use crate::proposal::{self, ProposalRule, RuledTables};
use crate::shortage;
use crate::watch::{SearchObserver, SearchWatch};

/// Plans that are priced per table and start, between the least and the most below.
const BUDGET_PER_TABLE: u64 = 400;
const BUDGET: std::ops::RangeInclusive<u64> = 30_000..=100_000;
/// Number of starting plans that local search improves, and number of rounds. Each round improves
/// the better half of the plans of the last one.
const STARTS: usize = 8;
const ROUNDS: u32 = 4;
/// Longest time of the device for a plan that is improved, relative to the best starting plan.
const HOPELESS: f64 = 1.5;

/// How a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanMethod {
    /// Local search by the predicted step, from the best heuristic and other starting plans.
    Search,
    /// One published heuristic, for comparison.
    Baseline(Baseline),
}

/// Options of [`plan`].
#[derive(Clone, Debug)]
pub struct PlanOptions {
    pub method: PlanMethod,
    /// Equal seeds give equal plans.
    pub seed: u64,
    /// Number of plans that local search prices. `None` chooses it by the number of tables.
    pub budget: Option<u64>,
    /// Weights of Neo's cost. `None` derives them from the hardware.
    pub neo_weights: Option<NeoWeights>,
    /// Further plans from which the search may start, such as those of other planners. They must
    /// satisfy the constraints.
    pub starts: Vec<CandidatePlan>,
}

impl PlanOptions {
    /// Searches with a seed, without further starts.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let (budget, neo_weights) = (None, None);
        Self { method: PlanMethod::Search, seed, budget, neo_weights, starts: Vec::new() }
    }
}

/// The plan of a published heuristic, with its predicted step.
#[derive(Clone, Debug, PartialEq)]
pub struct BaselinePlan {
    pub baseline: Baseline,
    pub plan: CandidatePlan,
    pub cost: StepCost,
    /// Whether every rank has enough memory, including the reserve.
    pub fits: bool,
}

/// A plan with its predicted step.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanResult {
    pub plan: CandidatePlan,
    pub cost: StepCost,
    /// Plans of the published heuristics with their costs, in the order of [`Baseline::ALL`].
    pub baselines: Vec<BaselinePlan>,
    /// Number of plans that were priced.
    pub priced: u64,
}

/// Makes a plan for a problem. The step of a searched plan is never longer than that of the best
/// heuristic that fits.
///
/// # Cost
/// The budget of the options × a few microseconds, which grow with the number of ranks.
/// # Errors
/// [`Error::Memory`] if the search finds no plan that fits. The errors of
/// [`AllowedLayouts::new`] for constraints that cannot be satisfied, and [`Error::Step`] for a
/// workload that cannot be priced.
pub fn plan(problem: &PlanProblem<'_>, options: &PlanOptions) -> Result<PlanResult, Error> {
    plan_observed(problem, options, &|_| ControlFlow::Continue(()))
}

/// Makes a plan as [`plan`] does, and tells `observe` from time to time how far the search is. If
/// `observe` breaks, the search ends with the best plan so far. Then it must break at every later
/// call as well.
///
/// # Errors
/// As [`plan`], and [`Error::Ended`] if the search is ended before a plan fits.
pub fn plan_observed(
    problem: &PlanProblem<'_>,
    options: &PlanOptions,
    observe: SearchObserver<'_>,
) -> Result<PlanResult, Error> {
    let first = first_plan(problem)?;
    let mut priced = PricedPlan::new(*problem, &first)?;
    priced.watch_by(SearchWatch::new(observe));
    let found = find_best(&mut priced, options)?;
    if found.score.overflow > 0 {
        return Err(shortage::describe(&priced).map_or_else(|error| error, Error::Memory));
    }
    let (plan, cost) = (priced.plan().clone(), priced.cost());
    Ok(PlanResult { plan, cost, baselines: found.baselines, priced: priced.priced() })
}

/// The best plan of a search, which may need more memory than there is.
struct FoundPlan {
    score: PlanScore,
    baselines: Vec<BaselinePlan>,
}

/// A way to make a starting plan.
#[derive(Clone, Copy)]
enum Start<'a> {
    Baseline(Baseline),
    /// Neo's heuristic with two kinds of layouts alone.
    Kinds([LayoutKind; 2]),
    Given(&'a CandidatePlan),
    Proposal(ProposalRule),
}

/// Searches for the best plan, and leaves `priced` with it. If no plan fits, that is the plan with
/// the least memory.
fn find_best(priced: &mut PricedPlan<'_>, options: &PlanOptions) -> Result<FoundPlan, Error> {
    let problem = *priced.problem();
    let allowed = AllowedLayouts::new(&problem, priced.hosts())?;
    let weights = options
        .neo_weights
        .unwrap_or_else(|| NeoWeights::from_topology(problem.conditions.topology));
    let proposals = RuledTables::new(&problem, &allowed, weights);
    let list = list_starts(&problem, options, &proposals);
    let tables = problem.config.model.tables.len() as u64;
    let budget = options
        .budget
        .unwrap_or_else(|| (BUDGET_PER_TABLE * tables).clamp(*BUDGET.start(), *BUDGET.end()));
    priced.expect_plans(list.len() as u64 + budget);
    let mut starts: Vec<(PlanScore, CandidatePlan)> = Vec::new();
    let mut baselines = Vec::new();
    for start in list {
        // The first start is kept, so that there is a plan.
        if priced.watch().is_ended() && !starts.is_empty() {
            break;
        }
        let plan = match start {
            Start::Baseline(baseline) => baseline.place(priced, &allowed, weights),
            Start::Kinds(kinds) => {
                Baseline::Neo.place(priced, &allowed.only(&kinds.into()), weights)
            }
            Start::Given(plan) => plan.clone(),
            Start::Proposal(rule) => proposals.plan(priced, rule),
        };
        priced.adopt(&plan);
        let score = priced.score();
        if let Start::Baseline(baseline) = start {
            let (plan, cost, fits) = (plan.clone(), priced.cost(), score.overflow == 0);
            baselines.push(BaselinePlan { baseline, plan, cost, fits });
        }
        starts.push((score, plan));
    }
    if starts.iter().all(|start| start.0.overflow > 0) {
        let enough = priced.capacity();
        place_in_least_memory(priced, &allowed, enough);
        let score = priced.score();
        if priced.watch().is_ended() && score.overflow > 0 {
            return Err(Error::Ended);
        }
        starts = vec![(score, priced.plan().clone())];
    }
    let fits = starts.iter().any(|start| start.0.overflow == 0);
    if options.method == PlanMethod::Search && fits {
        starts = search_from(starts, priced, &allowed, SearchEffort { budget, seed: options.seed });
    }
    let Some((score, plan)) = best(starts) else { return Err(Error::NoTables) };
    priced.adopt(&plan);
    Ok(FoundPlan { score, baselines })
}

/// Lists the starts of a method.
fn list_starts<'a>(
    problem: &PlanProblem<'_>,
    options: &'a PlanOptions,
    proposals: &RuledTables<'_>,
) -> Vec<Start<'a>> {
    if let PlanMethod::Baseline(baseline) = options.method {
        return vec![Start::Baseline(baseline)];
    }
    let mut starts: Vec<Start<'a>> = Baseline::ALL.map(Start::Baseline).into();
    // Constraints that allow one or two kinds of layouts alone must not lead to a better plan.
    if proposal::cuts_everything(problem) {
        for (at, &kind) in LayoutKind::ALL.iter().enumerate() {
            starts.extend(LayoutKind::ALL[at..].iter().map(|other| Start::Kinds([kind, *other])));
        }
    }
    starts.extend(options.starts.iter().map(Start::Given));
    starts.extend(proposals.rules(problem).into_iter().map(Start::Proposal));
    starts
}

/// The number of plans that local search prices, and the seed of its changes.
#[derive(Clone, Copy)]
struct SearchEffort {
    budget: u64,
    seed: u64,
}

/// Improves the best starting plans, and returns the results. Starts differ in the kinds of their
/// layouts, because local search seldom changes the layouts of most tables. The first round keeps
/// these kinds, so that constraints which allow them alone do not lead to a better plan.
fn search_from(
    mut starts: Vec<(PlanScore, CandidatePlan)>,
    priced: &mut PricedPlan<'_>,
    allowed: &AllowedLayouts,
    SearchEffort { budget, seed }: SearchEffort,
) -> Vec<(PlanScore, CandidatePlan)> {
    starts.sort_by(|a, b| a.0.order(&b.0));
    starts.dedup_by(|a, b| a.0 == b.0);
    // The device's time also tells plans apart whose steps are as long as the host takes.
    let longest = starts.first().map_or(0.0, |best| HOPELESS * best.0.device_ns);
    starts.retain(|start| start.0.device_ns <= longest);
    let mut counts = BTreeMap::new();
    starts.sort_by_cached_key(|(_, plan)| {
        let count = counts.entry(plan.kinds()).or_insert(0);
        *count += 1;
        *count
    });
    starts.truncate(STARTS);
    let random = CounterRng::new(seed, 0);
    let mut number = 0;
    for round in 0..ROUNDS {
        let share = budget / u64::from(ROUNDS) / starts.len().max(1) as u64;
        for start in &mut starts {
            if priced.watch().is_ended() {
                return starts;
            }
            priced.adopt(&start.1);
            let own = (round == 0).then(|| allowed.only(&start.1.kinds()));
            let allowed = own.as_ref().unwrap_or(allowed);
            let search = LocalSearch::new(priced, allowed, random.child(number));
            *start = search.improve(share);
            number += 1;
        }
        starts.sort_by(|a, b| a.0.order(&b.0));
        starts.truncate(starts.len().div_ceil(2));
    }
    starts
}

fn best(plans: Vec<(PlanScore, CandidatePlan)>) -> Option<(PlanScore, CandidatePlan)> {
    plans.into_iter().min_by(|a, b| a.0.order(&b.0))
}
