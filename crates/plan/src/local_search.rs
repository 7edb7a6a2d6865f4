//! Local search: changes of single tables that lower the predicted step, from several starts.

use schema::random::CounterRng;
use schema::{Rank, TableId};

use crate::allowed::AllowedLayouts;
use crate::layout::Layout;
use crate::placement::{CandidatePlan, Placement, is_split_on_one_rank};
use crate::priced_plan::{PlanScore, PricedPlan, RankMeasure};

/// Number of changes without success, per table, after which the search changes some tables at
/// random and goes on from there.
const PATIENCE_PER_TABLE: u64 = 8;
/// Least number of changes without success before random changes.
const PATIENCE: u64 = 100;
/// Part of the budget in which every layout of every table is tried first: one over this number.
const SWEPT: u64 = 4;

/// A local search on one plan.
pub struct LocalSearch<'a, 'p> {
    priced: &'a mut PricedPlan<'p>,
    allowed: &'a AllowedLayouts,
    random: CounterRng,
    drawn: u64,
}

impl<'a, 'p> LocalSearch<'a, 'p> {
    /// Creates a search that starts from the current plan of `priced`.
    pub fn new(
        priced: &'a mut PricedPlan<'p>,
        allowed: &'a AllowedLayouts,
        random: CounterRng,
    ) -> Self {
        Self { priced, allowed, random, drawn: 0 }
    }

    /// Improves the plan until `budget` plans were priced or the search was ended. Returns the best
    /// plan.
    #[must_use]
    pub fn improve(mut self, budget: u64) -> (PlanScore, CandidatePlan) {
        let end = self.priced.priced().saturating_add(budget);
        let tables = self.priced.plan().placements.len();
        let patience = PATIENCE + PATIENCE_PER_TABLE * tables as u64;
        let mut score = self.priced.score();
        let mut best: Option<(PlanScore, CandidatePlan)> = None;
        self.sweep(&mut score, self.priced.priced().saturating_add(budget / SWEPT));
        let (mut failures, mut attempts) = (0, 0);
        // Attempts that change nothing are not priced, so they are limited as well.
        while self.is_going_on(end) && attempts < 4 * budget {
            attempts += 1;
            failures = if self.try_change(&mut score) { 0 } else { failures + 1 };
            if failures > patience {
                failures = 0;
                self.keep_better(&mut best, score);
                for _ in 0..2 + self.below(4) {
                    self.change_at_random();
                }
                score = self.priced.score();
            }
        }
        self.keep_better(&mut best, score);
        best.unwrap_or_else(|| (score, self.priced.plan().clone()))
    }

    /// Replaces the best plan by the current one if that is better, and goes back to it otherwise.
    fn keep_better(&mut self, best: &mut Option<(PlanScore, CandidatePlan)>, score: PlanScore) {
        match best {
            Some((best_score, plan)) if score.order(best_score).is_ge() => self.priced.adopt(plan),
            _ => *best = Some((score, self.priced.plan().clone())),
        }
    }

    /// Tries every layout of every table once, on the ranks with the least load, until `end` plans
    /// were priced. Tables take turns at random, because a budget may not last for all of them.
    fn sweep(&mut self, score: &mut PlanScore, end: u64) {
        let mut order: Vec<usize> = (0..self.priced.plan().placements.len()).collect();
        for at in (1..order.len()).rev() {
            let other = self.below(at + 1);
            order.swap(at, other);
        }
        for table in order {
            for at in 0..self.allowed.choices(table).len() {
                if !self.is_going_on(end) {
                    return;
                }
                let placement = self.choose_ranks(table, at);
                self.try_place(table, placement, score);
            }
        }
    }

    /// Returns the number of tiles on a rank, which come before its replicated tables.
    fn count_tiles(&self, rank: Rank) -> usize {
        let placements = &self.priced.plan().placements;
        let is_tile = |table: &TableId| placements[table.index()].layout != Layout::Replicated;
        self.priced.pricer().tables_on(rank).take_while(is_tile).count()
    }

    fn is_going_on(&self, end: u64) -> bool {
        self.priced.priced() < end && !self.priced.watch().is_ended()
    }

    fn below(&mut self, bound: usize) -> usize {
        self.drawn += 1;
        self.random.below(self.drawn, bound.max(1) as u64) as usize
    }

    fn try_place(&mut self, table: usize, placement: Placement, score: &mut PlanScore) -> bool {
        if !self.priced.place(table, placement) {
            return false;
        }
        let next = self.priced.score();
        let is_better = next.is_better(score);
        if is_better {
            *score = next;
        } else {
            self.priced.undo();
        }
        is_better
    }

    /// Changes a table on a rank that is likely to limit the step.
    fn try_change(&mut self, score: &mut PlanScore) -> bool {
        let rank = self.limiting_rank(score.overflow > 0);
        let change = self.below(8);
        // A replicated table lies on every rank, so only its layout can change.
        let count = match change == 7 {
            true => self.priced.pricer().tables_on(rank).len(),
            false => self.count_tiles(rank),
        };
        if count == 0 {
            return false;
        }
        let at = self.below(count);
        let Some(table) = self.priced.pricer().tables_on(rank).nth(at) else { return false };
        let table = table.index();
        if self.allowed.pinned(table).is_some() {
            return false;
        }
        match change {
            0..=2 => match self.moved(table, rank) {
                Some(placement) => self.try_place(table, placement, score),
                None => false,
            },
            3..=5 => self.try_swap(table, rank, score),
            _ => {
                let choice = self.draw_choice(table);
                let placement = self.choose_ranks(table, choice);
                self.try_place(table, placement, score)
            }
        }
    }

    /// Draws one of the layouts of a table. Every second time it has the kind of another table's
    /// layout, because most tables of a good plan share few kinds.
    fn draw_choice(&mut self, table: usize) -> usize {
        let allowed = self.allowed;
        let choices = allowed.choices(table);
        if self.below(2) == 0 {
            let like = self.below(self.priced.plan().placements.len());
            let kind = self.priced.plan().placements[like].layout.kind();
            let is_like = |at: &usize| choices[*at].layout.kind() == kind;
            let alike: Vec<usize> = (0..choices.len()).filter(is_like).collect();
            if !alike.is_empty() {
                return alike[self.below(alike.len())];
            }
        }
        self.below(choices.len())
    }

    fn change_at_random(&mut self) {
        let table = self.below(self.priced.plan().placements.len());
        let choices = self.allowed.choices(table).len();
        if choices > 0 {
            let choice = self.below(choices);
            let placement = self.choose_ranks(table, choice);
            self.priced.place(table, placement);
        }
    }

    /// Returns the placement of a table under one of its layouts, on ranks with little load of one
    /// kind.
    fn choose_ranks(&mut self, table: usize, choice: usize) -> Placement {
        let measure = RankMeasure::ALL[self.below(3)];
        let choice = self.allowed.choices(table)[choice];
        choice.place(self.priced.hosts(), |rank| self.priced.rank_load(measure, rank))
    }

    /// Returns the rank with the most time, columns or bytes, or any rank.
    fn limiting_rank(&mut self, lacks_memory: bool) -> Rank {
        let ranks = self.priced.problem().ranks();
        let measure = match self.below(8) {
            0..=3 if lacks_memory => RankMeasure::Bytes,
            0..=3 => RankMeasure::Time,
            4..=5 => RankMeasure::Columns,
            _ => return Rank(self.below(ranks as usize) as u32),
        };
        let load = |rank: &Rank| self.priced.rank_load(measure, *rank);
        let most = (0..ranks).map(Rank).max_by(|a, b| load(a).total_cmp(&load(b)));
        most.unwrap_or(Rank(0))
    }

    /// Returns a rank to which parts may move: the one with the least load of a kind, or any.
    fn light_rank(&mut self) -> Rank {
        let ranks = self.priced.problem().ranks();
        let drawn = self.below(6);
        let Some(&measure) = RankMeasure::ALL.get(drawn) else {
            return Rank(self.below(ranks as usize) as u32);
        };
        let load = |rank: &Rank| self.priced.rank_load(measure, *rank);
        let least = (0..ranks).map(Rank).min_by(|a, b| load(a).total_cmp(&load(b)));
        least.unwrap_or(Rank(0))
    }

    /// Returns the placement in which the part of a table on `from`, or its parts on the host of
    /// `from`, lie elsewhere.
    fn moved(&mut self, table: usize, from: Rank) -> Option<Placement> {
        let to = self.light_rank();
        let mut placement = self.priced.plan().placements[table].clone();
        if matches!(placement.layout, Layout::TableRow | Layout::Grid { .. }) {
            let hosts = self.priced.hosts();
            let [source, target] = [from, to].map(|rank| hosts.host(rank));
            for rank in &mut placement.ranks {
                if hosts.host(*rank) == source {
                    *rank = hosts.ranks_of(target)[hosts.place(*rank)];
                }
            }
            return Some(placement);
        }
        let part = placement.ranks.iter().position(|rank| *rank == from)?;
        if placement.layout == Layout::Row && placement.ranks.contains(&to) {
            return None;
        }
        placement.ranks[part] = to;
        if is_split_on_one_rank(&placement) {
            return None;
        }
        if placement.layout == Layout::Row {
            // A host adds up partial sums in the order of ranks.
            placement.ranks.sort_unstable();
        }
        Some(placement)
    }

    /// Exchanges the ranks of a part of a table and a part of another one.
    fn try_swap(&mut self, table: usize, from: Rank, score: &mut PlanScore) -> bool {
        let to = self.light_rank();
        let there = self.count_tiles(to);
        if there == 0 || to == from {
            return false;
        }
        let at = self.below(there);
        let Some(TableId(other)) = self.priced.pricer().tables_on(to).nth(at) else { return false };
        let other = other as usize;
        if other == table || self.allowed.pinned(other).is_some() {
            return false;
        }
        let [own, others] = [(table, from, to), (other, to, from)].map(|(table, old, new)| {
            let mut placement = self.priced.plan().placements[table].clone();
            let is_single = matches!(placement.layout, Layout::Table | Layout::Column { .. });
            let part =
                placement.ranks.iter().position(|rank| *rank == old).filter(|_| is_single)?;
            placement.ranks[part] = new;
            (!is_split_on_one_rank(&placement)).then_some(placement)
        });
        let (Some(own), Some(others)) = (own, others) else { return false };
        let before = self.priced.plan().placements[table].clone();
        self.priced.place(table, own);
        if self.try_place(other, others, score) {
            return true;
        }
        self.priced.place(table, before);
        false
    }
}
