//! Describes the memory that a problem lacks: the smallest changes with which a plan fits. Each
//! change is tried by the search for the plan with the least memory, with which every plan begins
//! that no heuristic makes fit.

use predict::step::Conditions;
use schema::{JobConfig, TableId, Topology};

use crate::constraints::Constraints;
use crate::error::{BindingConstraints, Error, MemoryShortage};
use crate::least_memory::has_fitting_plan;
use crate::neo;
use crate::priced_plan::PricedPlan;
use crate::problem::PlanProblem;

/// Most ranks for which hosts are added until a plan fits.
const MOST_RANKS: u32 = 1024;
/// Number of tables whose constraints are dropped in turn if no plan fits, the largest first.
const RELAXED_TABLES: usize = 4;
/// Share by which the largest batch may be larger than the one that is found.
const BATCH_SHARE: usize = 32;

/// Names the memory that the current plan, the one with the least memory, lacks, and the smallest
/// changes with which a plan fits.
///
/// # Errors
/// [`Error::Ended`] if the search was ended.
pub fn describe(priced: &PricedPlan<'_>) -> Result<MemoryShortage, Error> {
    let problem = priced.problem();
    let rank = priced.fullest_rank();
    let memory = priced.pricer().rank_memory(rank);
    let (needed, reserved) = (memory.total(), problem.constraints.reserve_bytes);
    let memory_bytes = problem.conditions.topology.device.memory_bytes;
    let binding = find_binding_constraints(priced)?;
    // Where constraints bind, more hosts seldom help, and trying a thousand ranks takes long.
    let hosts = if binding.is_none() { find_least_hosts(priced)? } else { None };
    Ok(MemoryShortage {
        rank: rank.0,
        kind: memory.largest().0,
        needed,
        memory: memory_bytes,
        reserved,
        reserve: memory_bytes.checked_sub(needed).filter(|_| reserved > 0),
        constraints: binding,
        batch: find_largest_batch(priced)?,
        hosts,
    })
}

/// Returns the least number of hosts on which a plan fits: by doubling, then by bisection.
fn find_least_hosts(priced: &PricedPlan<'_>) -> Result<Option<u32>, Error> {
    let problem = priced.problem();
    let topology = problem.conditions.topology;
    let fits = |hosts: u32| {
        let topology = Topology { hosts, ..topology.clone() };
        let conditions = Conditions { topology: &topology, ..problem.conditions };
        has_fitting_plan(PlanProblem { conditions, ..*problem }, priced.watch())
    };
    // The number is seldom much larger, and a search with few ranks is fast.
    let most = MOST_RANKS / topology.ranks_per_host.max(1);
    let (mut low, mut high) = (topology.hosts, (2 * topology.hosts).min(most));
    while high > low && !fits(high)? {
        (low, high) = (high, (2 * high).min(most));
    }
    if high <= low {
        return Ok(None);
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        if fits(middle)? { high = middle } else { low = middle }
    }
    Ok(Some(high))
}

/// Returns the largest batch with which a plan fits, to one part in [`BATCH_SHARE`].
fn find_largest_batch(priced: &PricedPlan<'_>) -> Result<Option<usize>, Error> {
    let problem = priced.problem();
    let fits = |batch_size: usize| {
        let mut config: JobConfig = problem.config.clone();
        config.training.batch_size = batch_size;
        has_fitting_plan(PlanProblem { config: &config, ..*problem }, priced.watch())
    };
    // Without a batch of this plan, the weights alone are too large.
    let Some(mut low) = priced.pricer().max_batch_size(priced.capacity()) else { return Ok(None) };
    let mut high = problem.config.training.batch_size;
    // With another batch, the search may end at a plan that needs more memory than this one.
    while !fits(low)? {
        if low <= 1 {
            return Ok(None);
        }
        (low, high) = (low - low.div_ceil(8), low);
    }
    while high.saturating_sub(low) > low.div_ceil(BATCH_SHARE) {
        let middle = low.midpoint(high);
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok(Some(low))
}

/// Returns the constraints without which a plan fits: those of one table on the fullest rank, if
/// there is such a table, or else all of them.
fn find_binding_constraints(priced: &PricedPlan<'_>) -> Result<Option<BindingConstraints>, Error> {
    let problem = priced.problem();
    let constraints = problem.constraints;
    let fits = |constraints: &Constraints| {
        has_fitting_plan(PlanProblem { constraints, ..*problem }, priced.watch())
    };
    let only_reserve =
        Constraints { reserve_bytes: constraints.reserve_bytes, ..Constraints::default() };
    if only_reserve == *constraints || !fits(&only_reserve)? {
        return Ok(None);
    }
    let sizes = neo::table_sizes(problem);
    let on_rank = priced.pricer().tables_on(priced.fullest_rank()).map(TableId::index);
    let mut tables: Vec<usize> = on_rank.collect();
    tables.sort_by(|a, b| sizes[*b].bytes.total_cmp(&sizes[*a].bytes));
    tables.dedup();
    let names = tables.into_iter().map(|table| &problem.config.model.tables[table].name);
    let constrained = names.filter(|name| constraints.tables.contains_key(*name));
    for name in constrained.take(RELAXED_TABLES) {
        let mut relaxed = constraints.clone();
        relaxed.tables.remove(name);
        if fits(&relaxed)? {
            return Ok(Some(BindingConstraints::Table(name.clone())));
        }
    }
    Ok(Some(BindingConstraints::Several))
}
