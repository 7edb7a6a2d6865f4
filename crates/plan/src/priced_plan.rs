//! A plan with its price, which follows changes of single tables.

use std::cmp::Ordering;

use predict::step::{StepCost, StepPricer, TableSharding};
use predict::workload::Workload;
use schema::{HostLayout, Rank, ShardingPlan, TableId, Tile};

use crate::error::Error;
use crate::layout::Layout;
use crate::placement::{CandidatePlan, Placement};
use crate::problem::PlanProblem;
use crate::watch::SearchWatch;

/// Differences below which two values of [`PlanScore::spread`], or two times, count as equal.
const EQUAL: f64 = 1e-12;
const EQUAL_NS: f64 = 1e-3;

/// Factor by which predicted times of the device may be too short. The host hides the device's time
/// if it takes longer than this multiple of it.
const HIDDEN: f64 = 1.25;
/// Number of steps in which memory is compared before the device's time is. Less than a step of
/// memory is not worth a slower device.
const FULLNESS_STEPS: u64 = 16;

/// Number of changes of single tables between two reports to the observer of a search.
const REPORTED_EVERY: u64 = 32;

/// What a search makes small: the memory that ranks lack, then the step. Among equal steps, the
/// device's time counts as far as the host may not hide it, then memory in large steps, then all of
/// the device's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanScore {
    /// Bytes above the capacity, over all ranks.
    pub overflow: u64,
    pub step_ns: f64,
    /// Time of the step if the host took no time.
    pub device_ns: f64,
    /// Memory of the fullest rank, in bytes.
    pub peak_bytes: u64,
    /// Memory of the fullest rank in sixteenths of the capacity, rounded up.
    pub fullness: u64,
    /// Sum over ranks of squared loads, relative to those of a reference plan.
    pub spread: f64,
}

impl PlanScore {
    /// Whether a search goes on from this score rather than from another one. Among equal costs,
    /// less unevenness of ranks shows the way when several ranks decide the step together.
    #[must_use]
    pub fn is_better(&self, other: &Self) -> bool {
        let key = |score: &Self| (score.costs(), (score.spread / EQUAL).round() as u64);
        key(self) < key(other)
    }

    /// Orders the results of searches, the best one first. Among equal costs, the plan with less
    /// memory is better.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        let key = |score: &Self| (score.costs(), score.peak_bytes);
        key(self).cmp(&key(other))
    }

    /// Returns the costs from the most to the least important one. Times are rounded so that nearly
    /// equal times are equal.
    fn costs(&self) -> [u64; 5] {
        let visible_ns = self.step_ns.max(HIDDEN * self.device_ns);
        let [step, visible, device] =
            [self.step_ns, visible_ns, self.device_ns].map(|ns| (ns / EQUAL_NS).round() as u64);
        [self.overflow, step, visible, self.fullness, device]
    }
}

/// A load by which ranks are compared when parts are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankMeasure {
    /// Nanoseconds of lookups and row updates.
    Time,
    /// Columns that the rank sends for each sample.
    Columns,
    Bytes,
}

impl RankMeasure {
    /// All measures, in the order of declaration.
    pub const ALL: [Self; 3] = [Self::Time, Self::Columns, Self::Bytes];
}

/// A plan with its price. Placing a table prices only the ranks whose tiles change.
#[derive(Clone, Debug)]
pub struct PricedPlan<'a> {
    problem: PlanProblem<'a>,
    hosts: HostLayout,
    pricer: StepPricer<'a>,
    plan: CandidatePlan,
    capacity: u64,
    /// Time and columns of all ranks of the first plan, to which loads are relative.
    reference: [f64; 2],
    priced: u64,
    /// Table that was placed last, and its placement before that.
    last: Option<(usize, Placement)>,
    tiles: Vec<Tile>,
    watch: SearchWatch<'a>,
}

impl<'a> PricedPlan<'a> {
    /// Prices a plan in which every table is whole, in turn on each rank. `first` has the memory of
    /// this plan and is made by [`first_plan`].
    ///
    /// # Errors
    /// [`Error::Step`] if the workload cannot be priced.
    pub fn new(problem: PlanProblem<'a>, first: &'a ShardingPlan) -> Result<Self, Error> {
        let PlanProblem { config, features, conditions, .. } = problem;
        let pricer = StepPricer::new(Workload { config, plan: first, features }, conditions)?;
        let placements = first.tiles().iter().map(|tile| Placement::whole(tile.rank)).collect();
        let mut priced = Self {
            problem,
            hosts: first.hosts().clone(),
            pricer,
            plan: CandidatePlan { placements },
            capacity: problem.capacity(),
            reference: [1.0; 2],
            priced: 0,
            last: None,
            tiles: Vec::new(),
            watch: SearchWatch::default(),
        };
        let sum = |value: fn(&Self, Rank) -> f64| {
            let ranks = (0..problem.ranks()).map(Rank);
            ranks.map(|rank| value(&priced, rank)).sum::<f64>().max(1.0)
        };
        priced.reference = [sum(Self::rank_ns), sum(Self::rank_columns)];
        Ok(priced)
    }

    /// Places a table, and returns whether its placement changed.
    ///
    /// # Panics
    /// Panics if the table or a rank does not exist.
    pub fn place(&mut self, table: usize, placement: Placement) -> bool {
        if self.plan.placements[table] == placement {
            return false;
        }
        self.send_to_pricer(table, &placement);
        let before = std::mem::replace(&mut self.plan.placements[table], placement);
        self.last = Some((table, before));
        self.priced += 1;
        if self.priced.is_multiple_of(REPORTED_EVERY) {
            self.watch.report(self.priced);
        }
        true
    }

    /// Reverts the last change, of which there is only one to revert.
    pub fn undo(&mut self) {
        if let Some((table, placement)) = self.last.take() {
            self.pricer.undo();
            self.plan.placements[table] = placement;
        }
    }

    /// Places all tables as another plan does, and prices them once.
    ///
    /// # Panics
    /// Panics if the plan has other tables, or if a rank does not exist.
    pub fn adopt(&mut self, plan: &CandidatePlan) {
        let mut tiles = std::mem::take(&mut self.tiles);
        tiles.clear();
        let tables = &self.problem.config.model.tables;
        let mut changes = Vec::new();
        let pairs = self.plan.placements.iter().zip(&plan.placements);
        for (at, (_, next)) in pairs.enumerate().filter(|(_, (now, next))| now != next) {
            let (first, id) = (tiles.len(), TableId(at as u32));
            next.push_tiles(id, &tables[at], &mut tiles);
            changes.push((id, next.layout, first..tiles.len()));
        }
        let shardings = changes.into_iter().map(|(id, layout, own)| match layout {
            Layout::Replicated => (id, TableSharding::Replicated),
            _ => (id, TableSharding::Tiles(&tiles[own])),
        });
        self.pricer.place_tables(&shardings.collect::<Vec<_>>());
        self.tiles = tiles;
        self.plan.placements.clone_from(&plan.placements);
        self.last = None;
        self.priced += 1;
        self.watch.report(self.priced);
    }

    fn send_to_pricer(&mut self, table: usize, placement: &Placement) {
        let id = TableId(table as u32);
        self.tiles.clear();
        placement.push_tiles(id, &self.problem.config.model.tables[table], &mut self.tiles);
        let sharding = match placement.layout {
            Layout::Replicated => TableSharding::Replicated,
            _ => TableSharding::Tiles(&self.tiles),
        };
        self.pricer.place_table(id, sharding);
    }

    /// Returns the score by which a search compares the current plan with others.
    ///
    /// # Cost
    /// One pass over the ranks.
    #[must_use]
    pub fn score(&self) -> PlanScore {
        let cost = self.cost();
        let ranks = || (0..self.problem.ranks()).map(Rank);
        let overflow = if cost.peak_bytes > self.capacity {
            let lacking = |rank| self.pricer.rank_bytes(rank).saturating_sub(self.capacity);
            ranks().map(lacking).sum()
        } else {
            0
        };
        let [ns, columns] = self.reference;
        let load = |rank| {
            let (ns, columns) = (self.rank_ns(rank) / ns, self.rank_columns(rank) / columns);
            ns * ns + columns * columns
        };
        PlanScore {
            overflow,
            step_ns: cost.step.mean_ns,
            device_ns: cost.device_ns,
            peak_bytes: cost.peak_bytes,
            fullness: cost.peak_bytes.div_ceil((self.capacity / FULLNESS_STEPS).max(1)),
            spread: ranks().map(load).sum(),
        }
    }

    /// Returns the predicted time and memory of a step.
    #[must_use]
    pub fn cost(&self) -> StepCost {
        self.pricer.cost()
    }

    /// Returns the current plan.
    #[must_use]
    pub fn plan(&self) -> &CandidatePlan {
        &self.plan
    }

    /// Returns the incremental prices of the current plan.
    #[must_use]
    pub fn pricer(&self) -> &StepPricer<'a> {
        &self.pricer
    }

    /// Returns the hosts of the ranks.
    #[must_use]
    pub fn hosts(&self) -> &HostLayout {
        &self.hosts
    }

    /// Returns the problem that the plan solves.
    #[must_use]
    pub fn problem(&self) -> &PlanProblem<'a> {
        &self.problem
    }

    /// Returns the number of plans that were priced.
    #[must_use]
    pub fn priced(&self) -> u64 {
        self.priced
    }

    /// Returns the time of a rank's lookups and row updates, in nanoseconds.
    #[must_use]
    pub fn rank_ns(&self, rank: Rank) -> f64 {
        let load = &self.pricer.loads()[rank.index()];
        load.forward.mean_ns + load.backward.mean_ns
    }

    /// Returns the number of columns that a rank sends for each sample.
    #[must_use]
    pub fn rank_columns(&self, rank: Rank) -> f64 {
        self.pricer.loads()[rank.index()].width
    }

    /// Returns a load of a rank.
    #[must_use]
    pub fn rank_load(&self, measure: RankMeasure, rank: Rank) -> f64 {
        match measure {
            RankMeasure::Time => self.rank_ns(rank),
            RankMeasure::Columns => self.rank_columns(rank),
            RankMeasure::Bytes => self.rank_bytes(rank) as f64,
        }
    }

    /// Returns the bytes of memory that a rank uses.
    #[must_use]
    pub fn rank_bytes(&self, rank: Rank) -> u64 {
        self.pricer.rank_bytes(rank)
    }

    /// Returns the rank that uses most memory.
    #[must_use]
    pub fn fullest_rank(&self) -> Rank {
        let ranks = (0..self.problem.ranks()).map(Rank);
        ranks.max_by_key(|rank| self.rank_bytes(*rank)).unwrap_or(Rank(0))
    }

    /// Returns the bytes that a rank may use.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Replaces the bytes that a rank may use.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }

    /// Replaces the watch to which priced plans are reported.
    pub fn watch_by(&mut self, watch: SearchWatch<'a>) {
        self.watch = watch;
    }

    /// Sets the number of priced plans after which the search is expected to end.
    pub fn expect_plans(&mut self, plans: u64) {
        self.watch.expect(plans);
    }

    /// Returns the watch of the search.
    #[must_use]
    pub fn watch(&self) -> SearchWatch<'a> {
        self.watch
    }
}

/// Makes the plan from which [`PricedPlan::new`] starts: whole tables, in turn on each rank.
///
/// # Errors
/// [`Error::Hosts`] if the topology has no rank.
pub fn first_plan(problem: &PlanProblem<'_>) -> Result<ShardingPlan, Error> {
    let (hosts, ranks) = (problem.hosts()?, problem.ranks());
    let whole = |table: u32| Placement::whole(Rank(table % ranks.max(1)));
    let tables = &problem.config.model.tables;
    let placements = (0..tables.len() as u32).map(whole).collect();
    Ok(CandidatePlan { placements }.to_sharding_plan(tables, &hosts)?)
}
