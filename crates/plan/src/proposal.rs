//! Starting plans of a search: small tables are replicated, expensive ones are cut, and the parts
//! are placed greedily.

use crate::allowed::{AllowedLayouts, LayoutChoice};
use crate::baseline::{self, list_units};
use crate::layout::LayoutKind;
use crate::neo::{self, NeoWeights, TableSizes};
use crate::placement::CandidatePlan;
use crate::priced_plan::PricedPlan;
use crate::problem::PlanProblem;

/// Shares of the tables that are replicated.
const REPLICATED: [f64; 5] = [0.0, 0.4, 0.7, 0.9, 1.0];
/// Largest costs of a part, relative to the mean cost of a rank. 0 cuts every table into as many
/// parts as possible.
const LARGEST_PARTS: [f64; 3] = [1.0, 0.3, 0.0];
/// Most tables × ranks for which every table is cut, because prices of such plans take long.
const MOST_CUTS: usize = 1 << 15;
/// Share of the memory that replicated tables may take.
const REPLICATED_BYTES: f64 = 0.4;
const CUT_KINDS: [LayoutKind; 4] =
    [LayoutKind::Column, LayoutKind::Row, LayoutKind::TableRow, LayoutKind::Grid];

/// Which tables a proposal replicates, and which ones it cuts.
#[derive(Clone, Copy, Debug)]
pub struct ProposalRule {
    /// Share of the tables that is replicated.
    replicated: f64,
    /// Layout of the tables whose parts would cost more than a share of the mean cost of a rank.
    cut: Option<(LayoutKind, f64)>,
}

/// The sizes and costs of the tables to which rules are applied.
pub struct RuledTables<'a> {
    allowed: &'a AllowedLayouts,
    sizes: Vec<TableSizes>,
    weights: NeoWeights,
    /// Tables that may be replicated, those that gain most first.
    replicable: Vec<usize>,
}

/// Whether plans are proposed that cut every table.
#[must_use]
pub fn cuts_everything(problem: &PlanProblem<'_>) -> bool {
    problem.config.model.tables.len() * problem.ranks() as usize <= MOST_CUTS
}

impl<'a> RuledTables<'a> {
    /// Computes the sizes of the tables of a problem.
    #[must_use]
    pub fn new(
        problem: &PlanProblem<'_>,
        allowed: &'a AllowedLayouts,
        weights: NeoWeights,
    ) -> Self {
        let sizes = neo::table_sizes(problem);
        let is_replicable = |table: &usize| allowed.first(*table, LayoutKind::Replicated).is_some();
        let mut replicable: Vec<usize> = (0..sizes.len()).filter(is_replicable).collect();
        // Replicas sum the gradients of used rows instead of exchanging pooled vectors.
        let ratio = |table: &usize| {
            let TableSizes { rows, lookups, vectors, .. } = sizes[*table];
            rows.min(lookups) / vectors.max(1.0)
        };
        replicable.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)).then(a.cmp(b)));
        Self { allowed, sizes, weights, replicable }
    }

    /// Lists the rules of all proposals: every combination of replicated and of cut tables.
    #[must_use]
    pub fn rules(&self, problem: &PlanProblem<'_>) -> Vec<ProposalRule> {
        let cuts = CUT_KINDS.iter().flat_map(|kind| LARGEST_PARTS.map(|share| (*kind, share)));
        let cuts_everything = cuts_everything(problem);
        let is_possible = |(kind, share): &(LayoutKind, f64)| {
            (cuts_everything || *share > 0.0)
                && (0..self.sizes.len()).any(|table| self.allowed.first(table, *kind).is_some())
        };
        let cuts: Vec<_> =
            std::iter::once(None).chain(cuts.filter(is_possible).map(Some)).collect();
        let with_cuts =
            |replicated| cuts.iter().map(move |cut| ProposalRule { replicated, cut: *cut });
        REPLICATED.into_iter().flat_map(with_cuts).collect()
    }

    /// Makes the plan of a rule.
    #[must_use]
    pub fn plan(&self, priced: &PricedPlan<'_>, rule: ProposalRule) -> CandidatePlan {
        let (count, ranks) = (self.sizes.len(), priced.problem().ranks());
        let mut is_replicated = vec![false; count];
        let mut room = REPLICATED_BYTES * priced.capacity() as f64;
        let most = (rule.replicated * count as f64).round() as usize;
        for &table in self.replicable.iter().take(most) {
            room -= self.sizes[table].bytes;
            is_replicated[table] = room >= 0.0;
        }
        let cost = |table: usize, choice: LayoutChoice| {
            let placement = choice.place(priced.hosts(), |_| 0.0);
            neo::part_cost(&self.sizes[table], &placement, ranks, self.weights)
        };
        let whole = |table: usize| self.allowed.first(table, LayoutKind::Table);
        let tiled = (0..count).filter(|table| !is_replicated[*table]);
        let all: f64 = tiled.filter_map(|table| Some(cost(table, whole(table)?))).sum();
        let mean = all / f64::from(ranks);
        let choose = |table: usize| {
            if is_replicated[table] {
                return self.allowed.first(table, LayoutKind::Replicated);
            }
            let whole = whole(table).filter(|choice| match rule.cut {
                Some((_, share)) => cost(table, *choice) <= share * mean,
                None => true,
            });
            let has_kind = |choice: &&LayoutChoice| {
                rule.cut.is_some_and(|(kind, _)| choice.layout.kind() == kind)
            };
            let is_small = |choice: &&LayoutChoice| {
                rule.cut.is_some_and(|(_, share)| cost(table, **choice) <= share * mean)
            };
            let choices = self.allowed.choices(table);
            let cut = || choices.iter().filter(has_kind);
            whole
                .or_else(|| cut().find(is_small).or_else(|| cut().next_back()).copied())
                .or_else(|| self.allowed.first(table, LayoutKind::Table))
                .or_else(|| choices.first().copied())
        };
        let placements =
            baseline::place_greedily(&list_units(count, choose, cost), priced, self.allowed);
        CandidatePlan { placements }
    }
}
