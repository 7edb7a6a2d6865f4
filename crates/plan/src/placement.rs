//! Placements: the layout of each table and the ranks of its parts, and their conversion to tiles.

use schema::plan::PlanError;
use schema::{HostLayout, Rank, ShardingPlan, TableConfig, TableId, Tile};
use serde::{Deserialize, Serialize};

use crate::layout::Layout;

/// The layout of a table and the ranks of its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    #[serde(flatten)]
    pub layout: Layout,
    /// One rank for each part, column part by column part, and within a column part in the order
    /// of rows. A replicated table lists none, because every rank holds it.
    pub ranks: Vec<Rank>,
}

impl Placement {
    /// Keeps a table whole on one rank.
    #[must_use]
    pub fn whole(rank: Rank) -> Self {
        Self { layout: Layout::Table, ranks: vec![rank] }
    }

    /// Keeps a table whole on every rank.
    #[must_use]
    pub fn replicated() -> Self {
        Self { layout: Layout::Replicated, ranks: Vec::new() }
    }

    /// Appends the tiles of the table to `tiles`, ordered by first row and first column. Blocks
    /// have ⌈R ÷ blocks⌉ rows and ⌈D ÷ parts⌉ columns, so the last ranks of a short table may get
    /// fewer rows or none. A replicated table has no tiles.
    pub fn push_tiles(&self, id: TableId, table: &TableConfig, tiles: &mut Vec<Tile>) {
        let parts = self.layout.column_parts().max(1) as usize;
        let blocks = self.ranks.len() / parts;
        if blocks == 0 {
            return;
        }
        let rows_per_block = table.rows.div_ceil(blocks as u64).max(1);
        let columns_per_part = table.dim.div_ceil(parts).max(1);
        for block in 0..blocks {
            let first_row = (block as u64 * rows_per_block).min(table.rows);
            let rows = first_row..(first_row + rows_per_block).min(table.rows);
            for part in 0..parts {
                let first_column = (part * columns_per_part).min(table.dim);
                let columns = first_column..(first_column + columns_per_part).min(table.dim);
                if !rows.is_empty() && !columns.is_empty() {
                    let rank = self.ranks[part * blocks + block];
                    tiles.push(Tile { table: id, rows: rows.clone(), columns, rank });
                }
            }
        }
    }
}

/// The placement of every table of a model, in the model's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CandidatePlan {
    pub placements: Vec<Placement>,
}

impl CandidatePlan {
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
