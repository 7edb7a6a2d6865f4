//! Published heuristics that a search must beat: greedy placements by simple costs, Neo's greedy
//! one, and largest differencing (Karmarkar and Karp). All of them end with a repair for memory.

use std::cmp::Reverse;

use schema::{Rank, TableId};

use crate::allowed::{AllowedLayouts, LayoutChoice};
use crate::layout::{Layout, LayoutKind};
use crate::neo::{self, NeoWeights, TableSizes};
use crate::placement::{CandidatePlan, Placement, is_split_on_one_rank};
use crate::priced_plan::PricedPlan;

/// A heuristic that places tables without predicting a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Baseline {
    /// Greedy by the number of columns.
    Dimension,
    /// Greedy by bytes of weights and optimizer states.
    Size,
    /// Greedy by looked-up values.
    Lookups,
    /// Greedy by looked-up values × the logarithm of rows.
    LookupsByLogRows,
    /// Neo's greedy placement by [`crate::neo::part_cost`], with the cheapest layout of each table.
    Neo,
    /// Largest differencing by the costs of [`Baseline::Neo`].
    LargestDifferencing,
}

impl Baseline {
    /// All heuristics, in the order of declaration.
    pub const ALL: [Self; 6] = [
        Self::Dimension,
        Self::Size,
        Self::Lookups,
        Self::LookupsByLogRows,
        Self::Neo,
        Self::LargestDifferencing,
    ];

    /// Returns the name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dimension => "dimension",
            Self::Size => "size",
            Self::Lookups => "lookups",
            Self::LookupsByLogRows => "lookups × log rows",
            Self::Neo => "neo",
            Self::LargestDifferencing => "largest differencing",
        }
    }

    /// Places all tables, and repairs the plan if a rank lacks memory.
    #[must_use]
    pub fn place(
        self,
        priced: &mut PricedPlan<'_>,
        allowed: &AllowedLayouts,
        weights: NeoWeights,
    ) -> CandidatePlan {
        let sizes = neo::table_sizes(priced.problem());
        let ranks = priced.problem().ranks();
        let neo_cost = |table: usize, choice: LayoutChoice| {
            let placement = choice.place(priced.hosts(), |_| 0.0);
            neo::part_cost(&sizes[table], &placement, ranks, weights)
        };
        let cost = |table: usize, choice: LayoutChoice| {
            let TableSizes { rows, dim, lookups, bytes, .. } = sizes[table];
            let whole = match self {
                Self::Dimension => dim,
                Self::Size => bytes,
                Self::Lookups => lookups * dim,
                Self::LookupsByLogRows => lookups * dim * rows.max(2.0).log10(),
                Self::Neo | Self::LargestDifferencing => return neo_cost(table, choice),
            };
            whole / choice.parts() as f64
        };
        let capacity = priced.capacity() as f64;
        let choose = |table: usize| {
            let fits = |choice: &&LayoutChoice| {
                sizes[table].bytes / choice.parts() as f64 <= 0.5 * capacity
            };
            let whole = allowed.first(table, LayoutKind::Table);
            match self {
                Self::Neo | Self::LargestDifferencing => {
                    let fitting = allowed.choices(table).iter().filter(fits);
                    let all = |choice: &LayoutChoice| {
                        let copies = if choice.layout == Layout::Replicated { ranks } else { 1 };
                        neo_cost(table, *choice) * (choice.parts() * copies as usize) as f64
                    };
                    fitting.min_by(|a, b| all(a).total_cmp(&all(b))).copied().or(whole)
                }
                _ => whole.filter(|choice| fits(&choice)),
            }
            .or_else(|| allowed.choices(table).iter().copied().max_by_key(|one| one.parts()))
        };
        let units = list_units(sizes.len(), choose, cost);
        let placements = match self {
            Self::LargestDifferencing => place_by_differencing(&units, priced, allowed),
            _ => place_greedily(&units, priced, allowed),
        };
        priced.adopt(&CandidatePlan { placements });
        repair(priced, allowed, &sizes);
        priced.plan().clone()
    }
}

/// A table with its layout, whose parts are to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    table: usize,
    choice: LayoutChoice,
    /// Cost of each part.
    cost: f64,
}

/// Lists the tables that are not pinned, the most expensive parts first.
pub fn list_units(
    tables: usize,
    choose: impl Fn(usize) -> Option<LayoutChoice>,
    cost: impl Fn(usize, LayoutChoice) -> f64,
) -> Vec<Unit> {
    let unit = |table: usize| {
        let choice = choose(table)?;
        Some(Unit { table, choice, cost: cost(table, choice) })
    };
    let mut units: Vec<Unit> = (0..tables).filter_map(unit).collect();
    units.sort_by(|a, b| b.cost.total_cmp(&a.cost).then(a.table.cmp(&b.table)));
    units
}

/// Places each unit on the ranks whose costs are least so far. Tables without a unit keep their
/// pinned placement.
#[must_use]
pub fn place_greedily(
    units: &[Unit],
    priced: &PricedPlan<'_>,
    allowed: &AllowedLayouts,
) -> Vec<Placement> {
    let mut placements = pinned_or_current(priced, allowed);
    let mut sums = vec![0.0; priced.problem().ranks() as usize];
    for unit in units {
        let placement = unit.choice.place(priced.hosts(), |rank| sums[rank.index()]);
        placement.ranks.iter().for_each(|rank| sums[rank.index()] += unit.cost);
        placements[unit.table] = placement;
    }
    placements
}

fn pinned_or_current(priced: &PricedPlan<'_>, allowed: &AllowedLayouts) -> Vec<Placement> {
    let current = priced.plan().placements.iter().enumerate();
    current.map(|(table, now)| allowed.pinned(table).unwrap_or(now).clone()).collect()
}

/// A division of parts into one subset for each rank, in descending order of the subsets' sums.
#[derive(Clone, Debug)]
struct PartDivision {
    /// Sum of each subset, and its parts as unit and position within the unit.
    subsets: Vec<(f64, Vec<(usize, usize)>)>,
}

impl PartDivision {
    fn spread(&self) -> f64 {
        let [first, last] = [self.subsets.first(), self.subsets.last()];
        first.map_or(0.0, |subset| subset.0) - last.map_or(0.0, |subset| subset.0)
    }

    /// Joins the largest subsets of one division with the smallest ones of the other.
    fn join(mut self, other: Self) -> Self {
        for (own, other) in self.subsets.iter_mut().rev().zip(other.subsets) {
            own.0 += other.0;
            own.1.extend(other.1);
        }
        self.subsets.sort_by(|a, b| b.0.total_cmp(&a.0));
        self
    }
}

/// Divides the parts by largest differencing: the two divisions with the largest spreads are joined
/// until one is left. Row blocks go to the least loaded ranks beforehand, as the greedy placement
/// puts them.
fn place_by_differencing(
    units: &[Unit],
    priced: &PricedPlan<'_>,
    allowed: &AllowedLayouts,
) -> Vec<Placement> {
    let ranks = priced.problem().ranks() as usize;
    let is_free = |unit: &Unit| matches!(unit.choice.layout, Layout::Table | Layout::Column { .. });
    let fixed: Vec<Unit> = units.iter().copied().filter(|unit| !is_free(unit)).collect();
    let mut placements = place_greedily(&fixed, priced, allowed);
    let mut divisions: Vec<PartDivision> = Vec::new();
    for (at, unit) in units.iter().enumerate().filter(|(_, unit)| is_free(unit)) {
        for part in 0..unit.choice.parts() {
            let mut subsets = vec![(0.0, Vec::new()); ranks];
            subsets[0] = (unit.cost, vec![(at, part)]);
            divisions.push(PartDivision { subsets });
        }
    }
    // The last division has the largest spread.
    divisions.sort_by(|a, b| a.spread().total_cmp(&b.spread()));
    while divisions.len() > 1 {
        let (Some(first), Some(second)) = (divisions.pop(), divisions.pop()) else { break };
        let joined = first.join(second);
        let place = divisions.partition_point(|other| other.spread() <= joined.spread());
        divisions.insert(place, joined);
    }
    for (rank, (_, parts)) in divisions.into_iter().flat_map(|one| one.subsets).enumerate() {
        for (at, part) in parts {
            let Unit { table, choice, .. } = units[at];
            let placement = &mut placements[table];
            if placement.layout != choice.layout || placement.ranks.len() != choice.parts() {
                let ranks = vec![Rank(0); choice.parts()];
                *placement = Placement { layout: choice.layout, ranks };
            }
            placement.ranks[part] = Rank(rank as u32);
        }
    }
    for unit in units {
        let placement = &mut placements[unit.table];
        if is_split_on_one_rank(placement) {
            *placement = unit.choice.place(priced.hosts(), |rank| priced.rank_ns(rank));
        }
    }
    placements
}

/// Number of tables of an overfull rank for which the repair tries other placements.
const TRIED_TABLES: usize = 8;

/// Moves or cuts tables of ranks that lack memory, largest first, until none lacks any or no change
/// helps.
pub fn repair(priced: &mut PricedPlan<'_>, allowed: &AllowedLayouts, sizes: &[TableSizes]) {
    for _ in 0..2 * sizes.len() + 16 {
        let score = priced.score();
        if score.overflow == 0 || priced.watch().is_ended() {
            return;
        }
        let fullest = priced.fullest_rank();
        let part_bytes = |table: usize| {
            let placement = &priced.plan().placements[table];
            (sizes[table].bytes / placement.ranks.len().max(1) as f64) as u64
        };
        let on_rank = priced.pricer().tables_on(fullest).map(TableId::index);
        let mut tables: Vec<usize> = on_rank.collect();
        tables.sort_by_key(|table| (Reverse(part_bytes(*table)), *table));
        tables.dedup();
        let mut best = (score, None);
        for table in tables.into_iter().take(TRIED_TABLES) {
            for choice in allowed.choices(table) {
                let placement = choice.place(priced.hosts(), |rank| priced.rank_bytes(rank) as f64);
                if priced.place(table, placement.clone()) {
                    if priced.score().is_better(&best.0) {
                        best = (priced.score(), Some((table, placement)));
                    }
                    priced.undo();
                }
            }
        }
        let (_, Some((table, placement))) = best else { return };
        priced.place(table, placement);
    }
}
