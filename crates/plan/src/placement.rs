//! Candidate plans: the placement of each table, and their conversion to the plan of the trainer.

use std::collections::BTreeSet;

use schema::plan::PlanError;
use schema::{HostLayout, ShardingPlan, TableConfig, TableId};
use serde::{Deserialize, Serialize};

use crate::layout::{Layout, LayoutKind};
pub use schema::layout::Placement;

/// Whether all column parts of a placement lie on one rank, which costs more than a whole table.
#[must_use]
pub fn is_split_on_one_rank(placement: &Placement) -> bool {
    let is_column = matches!(placement.layout, Layout::Column { .. });
    is_column && placement.ranks.windows(2).all(|pair| pair[0] == pair[1])
}

/// The placement of every table of a model, in the model's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CandidatePlan {
    pub placements: Vec<Placement>,
}

impl CandidatePlan {
    /// Returns the kinds of layouts that occur in the plan.
    #[must_use]
    pub fn kinds(&self) -> BTreeSet<LayoutKind> {
        self.placements.iter().map(|placement| placement.layout.kind()).collect()
    }

    /// Converts the placements to the plan that the trainer reads.
    ///
    /// # Errors
    /// [`PlanError`] if the placements are not those of `tables` on the ranks of `hosts`.
    pub fn to_sharding_plan(
        &self,
        tables: &[TableConfig],
        hosts: &HostLayout,
    ) -> Result<ShardingPlan, PlanError> {
        let mut tiles = Vec::new();
        let mut replicated = Vec::new();
        for ((id, table), placement) in (0..).map(TableId).zip(tables).zip(&self.placements) {
            match placement.layout {
                Layout::Replicated => replicated.push(id),
                _ => placement.push_tiles(id, table, &mut tiles),
            }
        }
        let ranks = hosts.world_size() as u32;
        let plan = ShardingPlan::with_replicas(ranks, tiles, &replicated, tables)?;
        Ok(plan.on_hosts(hosts.clone()))
    }
}
