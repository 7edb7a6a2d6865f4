//! Explains a plan: why a table lies where it lies, and what other layouts would cost.

use kernel_model::Estimate;
use predict::step::{STAGES, StepCost};
use schema::{TableConfig, TableId, Tile};

use crate::allowed::AllowedLayouts;
use crate::error::Error;
use crate::layout::LayoutKind;
use crate::placement::{CandidatePlan, Placement};
use crate::priced_plan::{PlanScore, PricedPlan, RankMeasure, first_plan};
use crate::problem::PlanProblem;

/// Difference of steps in nanoseconds below which they count as equal.
pub const EQUAL_NS: f64 = 1.0;

/// Why a table has its placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlacementReason {
    /// A constraint pins the table.
    Pinned,
    /// The constraints and the topology allow only one layout.
    OnlyLayout,
    /// A faster placement of the table does not fit into memory.
    Memory {
        /// Largest part of the memory of the rank that lacks most.
        kind: &'static str,
        /// Bytes that this rank needs, and bytes that it may use.
        needed: u64,
        capacity: u64,
    },
    /// No other placement of the table alone gives a faster step.
    Fastest,
    /// Others take less time on the devices, but the host hides it, and they need more memory.
    Hidden,
    /// Another placement that fits is better. The plan was not searched for this problem, or not
    /// for long enough.
    NotFastest,
}

/// Another placement of a table, with all other tables where they are.
#[derive(Clone, Debug, PartialEq)]
pub struct AlternativePlacement {
    pub placement: Placement,
    pub cost: StepCost,
    pub fits: bool,
    /// Whether a search prefers this placement.
    pub is_better: bool,
    /// Nanoseconds by which this placement would lengthen the step if the host took no time.
    pub added_ns: f64,
    /// Nanoseconds by which each stage would lengthen the step more, in the order of
    /// [`predict::step::Stage::ALL`].
    pub added_stages_ns: [f64; STAGES],
}

/// The placement of a table, its reason, and its alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TableExplanation {
    pub table: String,
    pub placement: Placement,
    pub reason: PlacementReason,
    pub cost: StepCost,
    /// Time by which each stage lengthens the step, in the order of [`predict::step::Stage::ALL`].
    pub stages: [Estimate; STAGES],
    /// The best other placement of each layout: first those that fit, the fastest first.
    pub alternatives: Vec<AlternativePlacement>,
}

/// Explains the placement of a table, given by its name, in a plan for a problem.
///
/// # Errors
/// [`Error::UnknownTable`] for a table that the model lacks, [`Error::Plan`] for a plan of other
/// tables or ranks, and the errors of [`AllowedLayouts::new`].
pub fn explain(
    problem: &PlanProblem<'_>,
    plan: &CandidatePlan,
    table: &str,
) -> Result<TableExplanation, Error> {
    // A pinned table is explained by its other layouts, too.
    let mut free = problem.constraints.clone();
    let own = free.tables.get_mut(table).and_then(|own| own.pinned.take());
    let is_pinned = own.or(free.every_table.pinned.take()).is_some();
    let problem = &PlanProblem { constraints: &free, ..*problem };
    let first = first_plan(problem)?;
    let tables = &problem.config.model.tables;
    let Some(at) = tables.iter().position(|config| config.name == table) else {
        return Err(Error::UnknownTable { name: table.to_owned(), tables: tables.len() });
    };
    plan.to_sharding_plan(tables, first.hosts())?;
    let allowed = AllowedLayouts::new(problem, first.hosts())?;
    let mut priced = PricedPlan::new(*problem, &first)?;
    priced.adopt(plan);
    let placement = plan.placements[at].clone();
    let before =
        CostBefore { score: priced.score(), cost: priced.cost(), stages: priced.pricer().stages() };
    let mut alternatives: Vec<AlternativePlacement> = Vec::new();
    let mut shortage = None;
    for kind in LayoutKind::ALL {
        let of_kind = allowed.choices(at).iter().filter(|choice| choice.layout.kind() == kind);
        let mut best: Option<AlternativePlacement> = None;
        for choice in of_kind {
            for measure in RankMeasure::ALL {
                let other = choice.place(priced.hosts(), |rank| priced.rank_load(measure, rank));
                if !priced.place(at, other.clone()) {
                    continue;
                }
                let tried = alternative(&priced, other, &before);
                if !tried.fits && tried.added_ns <= -EQUAL_NS && shortage.is_none() {
                    shortage = Some(describe_memory(&priced));
                }
                priced.undo();
                if best.as_ref().is_none_or(|best| order(&tried, best).is_lt()) {
                    best = Some(tried);
                }
            }
        }
        alternatives.extend(best);
    }
    // Rows over the ranks of one host have two names.
    let mut known = vec![tiles(&placement, &tables[at])];
    alternatives.retain(|other| {
        let own = tiles(&other.placement, &tables[at]);
        let is_new = !known.contains(&own);
        known.push(own);
        is_new
    });
    alternatives.sort_by(order);
    let is_faster = |other: &AlternativePlacement| other.fits && other.added_ns <= -EQUAL_NS;
    let is_better = |other: &AlternativePlacement| is_faster(other) && other.is_better;
    let reason = if is_pinned {
        PlacementReason::Pinned
    } else if allowed.choices(at).len() == 1 {
        PlacementReason::OnlyLayout
    } else if alternatives.iter().any(is_better) {
        PlacementReason::NotFastest
    } else if alternatives.iter().any(is_faster) {
        PlacementReason::Hidden
    } else {
        shortage.unwrap_or(PlacementReason::Fastest)
    };
    let CostBefore { cost, stages, .. } = before;
    Ok(TableExplanation { table: table.to_owned(), placement, reason, cost, stages, alternatives })
}

/// The cost of a plan before a table is placed elsewhere.
struct CostBefore {
    score: PlanScore,
    cost: StepCost,
    stages: [Estimate; STAGES],
}

/// Returns the tiles of a placement, of which a replicated table has none.
fn tiles(placement: &Placement, table: &TableConfig) -> Vec<Tile> {
    let mut tiles = Vec::new();
    placement.push_tiles(TableId(0), table, &mut tiles);
    tiles
}

fn alternative(
    priced: &PricedPlan<'_>,
    placement: Placement,
    before: &CostBefore,
) -> AlternativePlacement {
    let (cost, stages) = (priced.cost(), priced.pricer().stages());
    let added = |at: usize| stages[at].mean_ns - before.stages[at].mean_ns;
    AlternativePlacement {
        placement,
        cost,
        fits: cost.peak_bytes <= priced.capacity(),
        is_better: priced.score().order(&before.score).is_lt(),
        added_ns: cost.device_ns - before.cost.device_ns,
        added_stages_ns: std::array::from_fn(added),
    }
}

fn describe_memory(priced: &PricedPlan<'_>) -> PlacementReason {
    let memory = priced.pricer().rank_memory(priced.fullest_rank());
    let (needed, capacity) = (memory.total(), priced.capacity());
    PlacementReason::Memory { kind: memory.largest().0, needed, capacity }
}

fn order(a: &AlternativePlacement, b: &AlternativePlacement) -> std::cmp::Ordering {
    b.fits.cmp(&a.fits).then(a.cost.device_ns.total_cmp(&b.cost.device_ns))
}
