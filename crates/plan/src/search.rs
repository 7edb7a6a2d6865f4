//! Makes a plan: the published heuristics, starting plans of our own, and local search from the
//! best of them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use predict::step::{Conditions, StepCost};
use schema::Topology;
use schema::layout::LayoutKind;
use schema::random::CounterRng;

use crate::allowed::AllowedLayouts;
use crate::baseline::Baseline;
use crate::constraints::Constraints;
use crate::error::{BindingConstraints, Error, MemoryShortage};
use crate::local_search::LocalSearch;
use crate::neo::{self, NeoWeights};
use crate::placement::CandidatePlan;
use crate::priced_plan::{PlanScore, PricedPlan, first_plan};
use crate::problem::PlanProblem;
use crate::proposal;

/// Plans that are priced per table and start, between the least and the most below.
const BUDGET_PER_TABLE: u64 = 400;
const BUDGET: std::ops::RangeInclusive<u64> = 30_000..=100_000;
/// Number of starting plans that local search improves, and number of rounds. Each round improves
/// the better half of the plans of the last one.
const STARTS: usize = 8;
const ROUNDS: u32 = 4;
/// Longest time of the device for a plan that is improved, relative to the best starting plan.
const HOPELESS: f64 = 1.5;
/// Most ranks for which hosts are added until a plan fits.
const MOST_RANKS: u32 = 1024;
/// Number of tables whose constraints are dropped in turn if no plan fits, the largest first.
const RELAXED_TABLES: usize = 4;

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

/// How far a search is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchProgress {
    /// Number of plans that local search has priced.
    pub priced: u64,
    /// Number of plans after which the search ends.
    pub budget: u64,
}

/// A function that is told how far a search is, and may end it.
pub type SearchObserver<'a> = &'a dyn Fn(SearchProgress) -> ControlFlow<()>;

/// What a run of the search gets besides its problem.
#[derive(Clone, Copy)]
struct SearchRun<'a> {
    options: &'a PlanOptions,
    observe: SearchObserver<'a>,
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
/// `observe` breaks, the search ends with the best plan so far.
///
/// # Errors
/// As [`plan`].
pub fn plan_observed(
    problem: &PlanProblem<'_>,
    options: &PlanOptions,
    observe: SearchObserver<'_>,
) -> Result<PlanResult, Error> {
    let first = first_plan(problem)?;
    let mut priced = PricedPlan::new(*problem, &first)?;
    let found = find_best(&mut priced, options, observe)?;
    if found.score.overflow > 0 {
        return Err(Error::Memory(describe_shortage(&priced, options)));
    }
    let (plan, cost) = (priced.plan().clone(), priced.cost());
    Ok(PlanResult { plan, cost, baselines: found.baselines, priced: priced.priced() })
}

/// The best plan of a search, which may need more memory than there is.
struct FoundPlan {
    score: PlanScore,
    baselines: Vec<BaselinePlan>,
}

/// Searches for the best plan, and leaves `priced` with it.
fn find_best(
    priced: &mut PricedPlan<'_>,
    options: &PlanOptions,
    observe: SearchObserver<'_>,
) -> Result<FoundPlan, Error> {
    let problem = *priced.problem();
    let allowed = AllowedLayouts::new(&problem, priced.hosts())?;
    let weights = options
        .neo_weights
        .unwrap_or_else(|| NeoWeights::from_topology(problem.conditions.topology));
    let mut starts: Vec<(PlanScore, CandidatePlan)> = Vec::new();
    let mut baselines = Vec::new();
    for baseline in Baseline::ALL {
        if matches!(options.method, PlanMethod::Baseline(wanted) if wanted != baseline) {
            continue;
        }
        let plan = baseline.place(priced, &allowed, weights);
        let (score, cost) = (priced.score(), priced.cost());
        starts.push((score, plan.clone()));
        baselines.push(BaselinePlan { baseline, plan, cost, fits: score.overflow == 0 });
    }
    if options.method == PlanMethod::Search {
        // Constraints that allow one or two kinds of layouts alone must not lead to a better plan.
        let all: &[LayoutKind] = &LayoutKind::ALL;
        let all = if proposal::cuts_everything(&problem) { all } else { &[] };
        for (at, &kind) in all.iter().enumerate() {
            for &other in &all[at..] {
                let plan =
                    Baseline::Neo.place(priced, &allowed.only(&[kind, other].into()), weights);
                starts.push((priced.score(), plan));
            }
        }
        for plan in &options.starts {
            priced.adopt(plan);
            starts.push((priced.score(), plan.clone()));
        }
        starts.extend(proposal::propose(priced, &allowed, weights));
        starts = search_from(starts, priced, &allowed, SearchRun { options, observe });
    }
    let Some((score, plan)) = best(starts) else { return Err(Error::NoTables) };
    priced.adopt(&plan);
    Ok(FoundPlan { score, baselines })
}

/// Improves the best starting plans, and returns the results. Starts differ in the kinds of their
/// layouts, because local search seldom changes the layouts of most tables. The first round keeps
/// these kinds, so that constraints which allow them alone do not lead to a better plan.
fn search_from(
    mut starts: Vec<(PlanScore, CandidatePlan)>,
    priced: &mut PricedPlan<'_>,
    allowed: &AllowedLayouts,
    SearchRun { options, observe }: SearchRun<'_>,
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
    let tables = priced.plan().placements.len() as u64;
    let budget = options
        .budget
        .unwrap_or_else(|| (BUDGET_PER_TABLE * tables).clamp(*BUDGET.start(), *BUDGET.end()));
    let random = CounterRng::new(options.seed, 0);
    let (mut number, before) = (0, priced.priced());
    let observe = |priced: u64| observe(SearchProgress { priced: priced - before, budget });
    for round in 0..ROUNDS {
        let share = budget / u64::from(ROUNDS) / starts.len().max(1) as u64;
        for start in &mut starts {
            priced.adopt(&start.1);
            let own = (round == 0).then(|| allowed.only(&start.1.kinds()));
            let allowed = own.as_ref().unwrap_or(allowed);
            let search = LocalSearch::new(priced, allowed, random.child(number));
            *start = search.improve(share, &observe);
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

/// Names the memory that the current plan lacks, and the smallest changes that would make it fit.
fn describe_shortage(priced: &PricedPlan<'_>, options: &PlanOptions) -> MemoryShortage {
    let problem = priced.problem();
    let (capacity, topology) = (priced.capacity(), problem.conditions.topology);
    let rank = priced.fullest_rank();
    let memory = priced.pricer().rank_memory(rank);
    let needed = memory.total();
    let constraints = problem.constraints;
    MemoryShortage {
        rank: rank.0,
        kind: memory.largest().0,
        needed,
        memory: topology.device.memory_bytes,
        reserved: constraints.reserve_bytes,
        reserve: topology
            .device
            .memory_bytes
            .checked_sub(needed)
            .filter(|_| constraints.reserve_bytes > 0),
        constraints: find_binding_constraints(priced, options),
        batch: priced.pricer().max_batch_size(capacity),
        hosts: find_least_hosts(problem),
    }
}

/// Returns the least number of hosts on which some heuristic plan fits, by bisection.
fn find_least_hosts(problem: &PlanProblem<'_>) -> Option<u32> {
    let topology = problem.conditions.topology;
    let fits = |hosts: u32| {
        let topology = Topology { hosts, ..topology.clone() };
        let conditions = Conditions { topology: &topology, ..problem.conditions };
        let method = PlanMethod::Baseline(Baseline::Size);
        let options = PlanOptions { method, ..PlanOptions::new(0) };
        finds_fitting_plan(PlanProblem { conditions, ..*problem }, &options)
    };
    let (mut low, mut high) = (topology.hosts, MOST_RANKS / topology.ranks_per_host.max(1));
    if high <= low || !fits(high) {
        return None;
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        if fits(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

fn finds_fitting_plan(problem: PlanProblem<'_>, options: &PlanOptions) -> bool {
    let Ok(first) = first_plan(&problem) else { return false };
    let Ok(mut priced) = PricedPlan::new(problem, &first) else { return false };
    find_best(&mut priced, options, &|_| ControlFlow::Continue(()))
        .is_ok_and(|found| found.score.overflow == 0)
}

/// Returns the constraints without which a plan fits: those of one table on the fullest rank, if
/// there is such a table, or else all of them.
fn find_binding_constraints(
    priced: &PricedPlan<'_>,
    options: &PlanOptions,
) -> Option<BindingConstraints> {
    let problem = priced.problem();
    let constraints = problem.constraints;
    let fits = |constraints: &Constraints| {
        finds_fitting_plan(PlanProblem { constraints, ..*problem }, options)
    };
    let only_reserve =
        Constraints { reserve_bytes: constraints.reserve_bytes, ..Constraints::default() };
    if only_reserve == *constraints || !fits(&only_reserve) {
        return None;
    }
    let sizes = neo::table_sizes(problem);
    let on_rank = priced.pricer().tables_on(priced.fullest_rank()).map(schema::TableId::index);
    let mut tables: Vec<usize> = on_rank.collect();
    tables.sort_by(|a, b| sizes[*b].bytes.total_cmp(&sizes[*a].bytes));
    tables.dedup();
    let names = tables.into_iter().map(|table| &problem.config.model.tables[table].name);
    let constrained = names.filter(|name| constraints.tables.contains_key(*name));
    let binding = constrained.take(RELAXED_TABLES).find(|name| {
        let mut relaxed = constraints.clone();
        relaxed.tables.remove(*name);
        fits(&relaxed)
    });
    Some(
        binding.map_or(BindingConstraints::Several, |name| BindingConstraints::Table(name.clone())),
    )
}
