//! Sharding plans. A plan replicates some tables on every rank. It is a tiling of every other table
//! by rectangles over rows × columns, each on one rank.
//!
//! Table-, row- and column-wise sharding and their mixes are all tilings. The runtime needs only
//! two rules: tiles over split rows are summed, and tiles over split columns are concatenated.
//! [`crate::host_tiling`] makes the plans that place tables on hosts, and [`crate::row_scope`]
//! describes how split columns affect rules that use whole rows.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::host_layout::HostLayout;
use crate::model::TableConfig;
use crate::replica_groups::ReplicaGroups;
use crate::unit::{Rank, TableId};

/// One rectangle of a table's rows and columns, stored on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tile {
    pub table: TableId,
    pub rows: Range<u64>,
    pub columns: Range<usize>,
    pub rank: Rank,
}

impl Tile {
    /// Returns D, the number of columns of the tile.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.columns.len()
    }

    /// Returns the number of rows of the tile.
    #[must_use]
    pub fn row_count(&self) -> usize {
        (self.rows.end - self.rows.start) as usize
    }
}

/// Error of a plan that is not a tiling of its tables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A tile refers to a table, row, column or rank that does not exist.
    #[error("tile {tile}: {what}: expected below {bound}, got {got}")]
    OutOfRange {
        /// Index of the tile in the plan.
        tile: usize,
        what: &'static str,
        bound: u64,
        got: u64,
    },
    /// A tile has no rows or columns.
    #[error("tile {tile} of table {table:?} is empty")]
    Empty {
        /// Index of the tile in the plan.
        tile: usize,
        table: String,
    },
    /// Two tiles share a cell of their table.
    #[error("tiles {first} and {second} of table {table:?} overlap")]
    Overlap {
        table: String,
        /// Index of the first tile in the plan.
        first: usize,
        /// Index of the second tile in the plan.
        second: usize,
    },
    /// A table has tiles and is replicated.
    #[error("table {table:?} is replicated: expected no tile of it, got tile {tile}")]
    TiledReplica {
        table: String,
        /// Index of the tile in the plan.
        tile: usize,
    },
    #[error("replicated tables: expected numbers below {tables}, each once, got {} as well", table.0)]
    Replicated {
        /// Number of tables of the model.
        tables: usize,
        table: TableId,
    },
    #[error("table {table:?}: expected tiles over {expected} weights, got {got}")]
    Uncovered {
        table: String,
        /// Number of weights of the table, which is rows × dim.
        expected: u128,
        got: u128,
    },
}

/// A sharding plan divides the tables among the ranks of a group. Every rank holds a copy of each
/// replicated table. The other tables are cut into tiles, and each of their weights is on exactly
/// one rank of the group. Usually all ranks of a job form one group. Otherwise each
/// [replica group](ReplicaGroups) repeats the plan.
///
/// A plan also knows the hosts of its ranks, because exchanges between ranks use them. Plan files
/// do not contain the hosts, since a job may move to others. A new plan has all ranks on one host.
///
/// ```
/// use schema::{Rank, ShardingPlan, TableConfig};
///
/// let table = TableConfig {
///     name: "product".to_owned(),
///     rows: 100,
///     dim: 8,
///     pooling: Default::default(),
///     sequence_length: None,
///     data_type: Default::default(),
///     features: Vec::new(),
/// };
/// let plan = ShardingPlan::row_wise(&[table], 2);
/// let rows: Vec<usize> = plan.tiles_of(Rank(1)).map(|tile| tile.row_count()).collect();
/// assert_eq!(rows, [50]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShardingPlan {
    #[serde(rename = "world_size")]
    group_size: u32,
    #[serde(skip)]
    groups: ReplicaGroups,
    tiles: Vec<Tile>,
    /// One tile for each replicated table. It covers the whole table, and its rank is the one that
    /// saves the table to checkpoints.
    #[serde(
        rename = "replicated",
        serialize_with = "tables_of",
        skip_serializing_if = "Vec::is_empty"
    )]
    replicas: Vec<Tile>,
    #[serde(skip)]
    hosts: HostLayout,
}

impl ShardingPlan {
    /// Creates a plan from tiles that cover each table exactly once. Sorts them by table, first row
    /// and first column.
    ///
    /// # Errors
    /// Returns a [`PlanError`] that names the tile and the table.
    pub fn new(
        world_size: u32,
        tiles: Vec<Tile>,
        tables: &[TableConfig],
    ) -> Result<Self, PlanError> {
        Self::with_replicas(world_size, tiles, &[], tables)
    }

    /// Creates a plan that keeps the `replicated` tables whole on every rank, from tiles that cover
    /// each other table exactly once.
    ///
    /// # Errors
    /// As [`Self::new`], and if a table is both replicated and tiled.
    pub fn with_replicas(
        world_size: u32,
        mut tiles: Vec<Tile>,
        replicated: &[TableId],
        tables: &[TableConfig],
    ) -> Result<Self, PlanError> {
        for (i, &table) in replicated.iter().enumerate() {
            if table.index() >= tables.len() || replicated[..i].contains(&table) {
                return Err(PlanError::Replicated { tables: tables.len(), table });
            }
            if let Some(tile) = tiles.iter().position(|tile| tile.table == table) {
                let table = tables[table.index()].name.clone();
                return Err(PlanError::TiledReplica { table, tile });
            }
        }
        for (i, tile) in tiles.iter().enumerate() {
            check_tile(i, tile, world_size, tables)?;
        }
        tiles.sort_by_key(|tile| (tile.table, tile.rows.start, tile.columns.start));
        let is_tiled = |id: &usize| !replicated.contains(&TableId(*id as u32));
        for id in (0..tables.len()).filter(is_tiled) {
            check_cover(id, &tables[id], &tiles)?;
        }
        let mut replicas: Vec<Tile> =
            replicated.iter().map(|&id| replica(id, &tables[id.index()])).collect();
        replicas.sort_by_key(|tile| tile.table);
        Ok(Self { replicas, ..Self::from_tiles(world_size, tiles) })
    }

    /// Replaces the hosts of the ranks of a group.
    ///
    /// # Panics
    /// Panics if the layout has another number of ranks than a group.
    #[must_use]
    pub fn on_hosts(self, hosts: HostLayout) -> Self {
        assert_eq!(hosts.world_size(), self.group_size as usize, "the layout has all ranks");
        Self { hosts, ..self }
    }

    /// Returns the hosts of the ranks of a group, which are the same in all groups or one host.
    #[must_use]
    pub fn hosts(&self) -> &HostLayout {
        &self.hosts
    }

    /// Repeats the plan of one group by all `groups`.
    #[must_use]
    pub fn in_groups(self, groups: ReplicaGroups) -> Self {
        Self { groups, ..self }
    }

    /// Returns the groups of ranks that repeat the plan.
    #[must_use]
    pub fn groups(&self) -> ReplicaGroups {
        self.groups
    }

    /// Returns the number of ranks of all groups.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.group_size.saturating_mul(self.groups.count.get())
    }

    /// Returns the number of ranks of one group, among which the tables are divided.
    #[must_use]
    pub fn group_size(&self) -> u32 {
        self.group_size
    }

    /// Returns the position of a rank within its replica group. The tiles of the plan name their
    /// ranks by this position.
    #[must_use]
    pub fn place(&self, rank: Rank) -> Rank {
        Rank(rank.0 % self.group_size.max(1))
    }

    /// Returns all tiles, ordered by table, first row and first column.
    #[must_use]
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// Returns one tile for each replicated table, in the order of tables. A tile covers the whole
    /// table.
    #[must_use]
    pub fn replicas(&self) -> &[Tile] {
        &self.replicas
    }

    /// Returns the replicated tables, in order.
    #[must_use]
    pub fn replicated(&self) -> Vec<TableId> {
        self.replicas.iter().map(|tile| tile.table).collect()
    }

    /// Returns all tiles that one rank holds: its own in plan order, then those of replicated
    /// tables.
    pub fn held_by(&self, rank: Rank) -> impl Iterator<Item = &Tile> {
        self.tiles_of(rank).chain(&self.replicas)
    }

    /// Returns the tiles of one rank in plan order, without replicated tables.
    pub fn tiles_of(&self, rank: Rank) -> impl Iterator<Item = &Tile> {
        let place = self.place(rank);
        self.tiles.iter().filter(move |tile| tile.rank == place)
    }

    /// Assigns whole tables to ranks. The largest table comes first, and goes to the rank with the
    /// fewest weights so far.
    #[must_use]
    pub fn table_wise(tables: &[TableConfig], world_size: u32) -> Self {
        let mut order: Vec<usize> = (0..tables.len()).collect();
        let weights = |id: &usize| u128::from(tables[*id].rows) * tables[*id].dim as u128;
        // Placing the largest tables first keeps the loads of the ranks close together.
        order.sort_by_key(|id| std::cmp::Reverse(weights(id)));
        let mut load = vec![0u128; world_size as usize];
        let mut tiles = Vec::new();
        for id in order {
            let least = (0..load.len()).min_by_key(|&rank| load[rank]).unwrap_or(0);
            load[least] += weights(&id);
            tiles.push(Tile {
                table: TableId(id as u32),
                rows: 0..tables[id].rows,
                columns: 0..tables[id].dim,
                rank: Rank(least as u32),
            });
        }
        Self::from_tiles(world_size, tiles)
    }

    /// Splits the rows of every table into blocks of ⌈R/W⌉. The last ranks may get fewer rows or
    /// none.
    #[must_use]
    pub fn row_wise(tables: &[TableConfig], world_size: u32) -> Self {
        let mut tiles = Vec::new();
        for (id, table) in tables.iter().enumerate() {
            let block = table.rows.div_ceil(u64::from(world_size));
            for rank in 0..world_size {
                let start = (u64::from(rank) * block).min(table.rows);
                let rows = start..(start + block).min(table.rows);
                let columns = 0..table.dim;
                tiles.push(Tile { table: TableId(id as u32), rows, columns, rank: Rank(rank) });
            }
        }
        Self::from_tiles(world_size, tiles)
    }

    /// Splits the columns of every table into blocks of ⌈D/W⌉. The last ranks may get fewer columns
    /// or none.
    #[must_use]
    pub fn column_wise(tables: &[TableConfig], world_size: u32) -> Self {
        let mut tiles = Vec::new();
        for (id, table) in tables.iter().enumerate() {
            let block = table.dim.div_ceil(world_size as usize);
            for rank in 0..world_size {
                let start = (rank as usize * block).min(table.dim);
                let columns = start..(start + block).min(table.dim);
                let rows = 0..table.rows;
                tiles.push(Tile { table: TableId(id as u32), rows, columns, rank: Rank(rank) });
            }
        }
        Self::from_tiles(world_size, tiles)
    }

    /// Shards the tables in turn as a whole, by rows, by columns, and as a 2 × 2 grid. The ranks
    /// are assigned in rotation.
    #[must_use]
    pub fn mixed(tables: &[TableConfig], world_size: u32) -> Self {
        let mut tiles = Vec::new();
        for (id, table) in tables.iter().enumerate() {
            let one = std::slice::from_ref(table);
            let plan = match id % 4 {
                0 => Self::table_wise(one, 1),
                1 => Self::row_wise(one, world_size),
                2 => Self::column_wise(one, world_size),
                _ => Self::from_tiles(4, quarters(table)),
            };
            for mut tile in plan.tiles {
                tile.table = TableId(id as u32);
                tile.rank = Rank((tile.rank.0 + id as u32) % world_size);
                tiles.push(tile);
            }
        }
        Self::from_tiles(world_size, tiles)
    }

    /// Keeps every table whole on every rank.
    #[must_use]
    pub fn replicate(tables: &[TableConfig], world_size: u32) -> Self {
        let replicas = (0..).zip(tables).map(|(id, table)| replica(TableId(id), table)).collect();
        Self { replicas, ..Self::from_tiles(world_size, Vec::new()) }
    }

    pub(crate) fn from_tiles(world_size: u32, mut tiles: Vec<Tile>) -> Self {
        tiles.retain(|tile| !tile.rows.is_empty() && !tile.columns.is_empty());
        tiles.sort_by_key(|tile| (tile.table, tile.rows.start, tile.columns.start));
        let (groups, replicas) = (ReplicaGroups::SINGLE, Vec::new());
        let hosts = HostLayout::on_one_host(world_size as usize);
        Self { group_size: world_size, groups, tiles, replicas, hosts }
    }
}

/// Serializes the tables of replicas, as plan files list them.
fn tables_of<S: serde::Serializer>(replicas: &[Tile], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(replicas.iter().map(|tile| tile.table))
}

/// Returns the tile of a replicated table.
fn replica(table: TableId, config: &TableConfig) -> Tile {
    Tile { table, rows: 0..config.rows, columns: 0..config.dim, rank: Rank(0) }
}

fn quarters(table: &TableConfig) -> Vec<Tile> {
    let (row, column) = (table.rows.div_ceil(2), table.dim.div_ceil(2));
    let halves = [(0..row, 0..column), (0..row, column..table.dim)];
    let lower = [(row..table.rows, 0..column), (row..table.rows, column..table.dim)];
    let tile =
        |(rank, (rows, columns))| Tile { table: TableId(0), rows, columns, rank: Rank(rank) };
    (0..).zip(halves.into_iter().chain(lower)).map(tile).collect()
}

fn check_tile(
    i: usize,
    tile: &Tile,
    world_size: u32,
    tables: &[TableConfig],
) -> Result<(), PlanError> {
    let below = |what, bound: u64, got: u64| {
        (got < bound).then_some(()).ok_or(PlanError::OutOfRange { tile: i, what, bound, got })
    };
    below("rank", u64::from(world_size), u64::from(tile.rank.0))?;
    below("table", tables.len() as u64, u64::from(tile.table.0))?;
    let table = &tables[tile.table.index()];
    if tile.rows.is_empty() || tile.columns.is_empty() {
        return Err(PlanError::Empty { tile: i, table: table.name.clone() });
    }
    below("last row", table.rows, tile.rows.end - 1)?;
    below("last column", table.dim as u64, tile.columns.end as u64 - 1)
}

fn check_cover(id: usize, table: &TableConfig, tiles: &[Tile]) -> Result<(), PlanError> {
    let own: Vec<(usize, &Tile)> =
        tiles.iter().enumerate().filter(|(_, tile)| tile.table.index() == id).collect();
    for (n, (first, a)) in own.iter().enumerate() {
        for (second, b) in &own[n + 1..] {
            // Tiles are sorted by first row, so no later tile can overlap this one.
            if b.rows.start >= a.rows.end {
                break;
            }
            if a.columns.start < b.columns.end && b.columns.start < a.columns.end {
                let table = table.name.clone();
                return Err(PlanError::Overlap { table, first: *first, second: *second });
            }
        }
    }
    // Tiles without overlaps cover the table exactly if their areas sum to its area.
    let area = |tile: &Tile| tile.row_count() as u128 * tile.dim() as u128;
    let got: u128 = own.iter().map(|(_, tile)| area(tile)).sum();
    // The number of weights may exceed 64 bits, because the rows alone may need 63 bits.
    let expected = u128::from(table.rows) * table.dim as u128;
    if got != expected {
        return Err(PlanError::Uncovered { table: table.name.clone(), expected, got });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{PlanError, ShardingPlan, Tile};
    use crate::model::{DataType, Pooling, TableConfig};
    use crate::unit::{Rank, TableId};

    fn table(rows: u64, dim: usize) -> TableConfig {
        let name = format!("{rows}x{dim}");
        let (features, pooling, data_type) = (vec![name.clone()], Pooling::Sum, DataType::F32);
        TableConfig { name, rows, dim, pooling, sequence_length: None, data_type, features }
    }

    fn tile(rows: std::ops::Range<u64>, columns: std::ops::Range<usize>) -> Tile {
        Tile { table: TableId(0), rows, columns, rank: Rank(0) }
    }

    #[test]
    fn short_tables_leave_late_ranks_empty() {
        let plan = ShardingPlan::row_wise(&[table(10, 4), table(5, 4)], 4);
        let rows: Vec<_> = plan.tiles().iter().map(Tile::row_count).collect();
        assert_eq!(rows, [3, 3, 3, 1, 2, 2, 1]);
    }

    #[test]
    fn gaps_and_overlaps_are_errors() {
        let tables = [table(10, 4)];
        let refused = |tiles| ShardingPlan::new(1, tiles, &tables).unwrap_err();
        assert_eq!(
            refused(vec![tile(0..10, 0..3)]),
            PlanError::Uncovered { table: "10x4".into(), expected: 40, got: 30 }
        );
        assert_eq!(
            refused(vec![tile(0..10, 0..3), tile(5..10, 2..4)]),
            PlanError::Overlap { table: "10x4".into(), first: 0, second: 1 }
        );
        assert_eq!(
            refused(vec![tile(0..11, 0..4)]),
            PlanError::OutOfRange { tile: 0, what: "last row", bound: 10, got: 10 }
        );
    }

    #[test]
    fn a_table_is_tiled_or_replicated() {
        let tables = [table(10, 4), table(5, 4)];
        let made = |tiles, replicated: &[u32]| {
            let replicated: Vec<TableId> = replicated.iter().map(|&id| TableId(id)).collect();
            ShardingPlan::with_replicas(2, tiles, &replicated, &tables)
        };
        let plan = made(vec![tile(0..10, 0..4)], &[1]).unwrap();
        let held: Vec<u32> = plan.held_by(Rank(1)).map(|tile| tile.table.0).collect();
        assert_eq!((held, plan.replicated()), (vec![1], vec![TableId(1)]));
        let refused = |tiles, replicated| made(tiles, replicated).unwrap_err().to_string();
        let text = refused(vec![tile(0..10, 0..4)], &[0, 1]);
        assert_eq!(text, "table \"10x4\" is replicated: expected no tile of it, got tile 0");
        let text = "replicated tables: expected numbers below 2, each once, got ";
        assert_eq!(refused(vec![], &[0, 1, 1]), format!("{text}1 as well"));
        assert_eq!(refused(vec![], &[2]), format!("{text}2 as well"));
        assert!(refused(vec![tile(0..10, 0..4)], &[]).contains("expected tiles over 20 weights"));
        assert_eq!(made(vec![], &[1, 0]), Ok(ShardingPlan::replicate(&tables, 2)));
    }

    proptest! {
        #[test]
        fn every_generated_plan_is_a_tiling(
            shapes in proptest::collection::vec((1u64..40, 1usize..20), 1..9),
            world_size in 1u32..9,
        ) {
            let tables: Vec<_> = shapes.iter().map(|&(rows, dim)| table(rows, dim)).collect();
            for make in [
                ShardingPlan::table_wise,
                ShardingPlan::row_wise,
                ShardingPlan::column_wise,
                ShardingPlan::mixed,
            ] {
                let plan = make(&tables, world_size);
                let again = ShardingPlan::new(world_size, plan.tiles().to_vec(), &tables);
                prop_assert_eq!(again, Ok(plan));
            }
        }
    }
}
