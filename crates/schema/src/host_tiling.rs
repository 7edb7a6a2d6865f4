//! Makes sharding plans that place tables on hosts, and finds the tiles whose partial sums can be
//! added within a host.
//!
//! A hierarchical plan is a tiling like any other ([`crate::plan`]). Only the ranks of its tiles
//! differ.

use std::ops::Range;

use crate::host_layout::HostLayout;
use crate::model::TableConfig;
use crate::plan::{ShardingPlan, Tile};
use crate::unit::TableId;

/// A range of a table's columns, which one host holds.
struct HostPart {
    table: TableId,
    rows: u64,
    columns: Range<usize>,
}

impl HostPart {
    fn weights(&self) -> u128 {
        u128::from(self.rows) * self.columns.len() as u128
    }
}

impl ShardingPlan {
    /// Keeps each table on one host, and splits its rows over the ranks of that host in blocks of
    /// equal size. The largest table comes first, and goes to the host with the fewest weights per
    /// rank so far.
    #[must_use]
    pub fn table_row_wise(tables: &[TableConfig], hosts: &HostLayout) -> Self {
        Self::from_parts(split_columns(tables, 1), hosts)
    }

    /// Splits the columns of each table over at most as many hosts as there are, in blocks of ⌈D/H⌉
    /// columns. Each block is placed as [`Self::table_row_wise`] places a table.
    #[must_use]
    pub fn grid(tables: &[TableConfig], hosts: &HostLayout) -> Self {
        Self::from_parts(split_columns(tables, hosts.host_count()), hosts)
    }

    fn from_parts(parts: Vec<HostPart>, hosts: &HostLayout) -> Self {
        Self::from_tiles(hosts.world_size() as u32, place(parts, hosts)).on_hosts(hosts.clone())
    }

    /// Returns for each tile the host whose ranks can add up its partial sums, or `None` if
    /// receivers must add them, or if there is nothing to add.
    ///
    /// A host can add up the tiles of some columns of a table if it holds all rows of these
    /// columns, and if the order of rows is the order of ranks. The sum then has the same bytes as
    /// that of a receiver, which adds in the order of rows. If hosts have different numbers of
    /// ranks, none adds up tiles.
    #[must_use]
    pub fn hosts_that_reduce(&self) -> Vec<Option<usize>> {
        let hosts = self.hosts();
        if hosts.ranks_per_host().is_err() {
            return vec![None; self.tiles().len()];
        }
        let tables = self.tiles().chunk_by(|a, b| a.table == b.table);
        tables
            .flat_map(|table| table.iter().map(move |tile| (tile, table)))
            .map(|(tile, table)| hosts.reduces(tile, table.iter()).then(|| hosts.host(tile.rank)))
            .collect()
    }
}

impl HostLayout {
    /// Whether the host of a tile can add up the partial sums of its columns, as in
    /// [`ShardingPlan::hosts_that_reduce`]. `table` has all tiles of the tile's table in plan
    /// order, and all hosts have equally many ranks.
    #[must_use]
    pub fn reduces<'t>(&self, tile: &Tile, table: impl Iterator<Item = &'t Tile> + Clone) -> bool {
        let shares_columns = |other: &&Tile| {
            other.columns.start < tile.columns.end && tile.columns.start < other.columns.end
        };
        let host = self.host(tile.rank);
        let is_on_host =
            |other: &Tile| other.columns == tile.columns && self.host(other.rank) == host;
        let group = || table.clone().filter(shares_columns);
        group().all(is_on_host)
            && group().count() > 1
            && group().is_sorted_by(|a, b| a.rank < b.rank)
    }
}

fn split_columns(tables: &[TableConfig], blocks: usize) -> Vec<HostPart> {
    let mut parts = Vec::new();
    for (id, table) in (0..).zip(tables) {
        let block = table.dim.div_ceil(blocks.max(1)).max(1);
        for start in (0..table.dim).step_by(block) {
            let columns = start..(start + block).min(table.dim);
            parts.push(HostPart { table: TableId(id), rows: table.rows, columns });
        }
    }
    parts
}

fn place(mut parts: Vec<HostPart>, layout: &HostLayout) -> Vec<Tile> {
    // Placing the largest parts first keeps the loads of the hosts close together.
    parts.sort_by_key(|part| std::cmp::Reverse(part.weights()));
    let mut loads = vec![0u128; layout.host_count()];
    let mut tiles = Vec::new();
    for part in parts {
        let load_per_rank = |&host: &usize| loads[host] / layout.ranks_of(host).len() as u128;
        let Some(host) = (0..loads.len()).min_by_key(load_per_rank) else { break };
        loads[host] += part.weights();
        let ranks = layout.ranks_of(host);
        let block = part.rows.div_ceil(ranks.len() as u64);
        for (place, &rank) in (0..).zip(ranks) {
            let rows = (place * block).min(part.rows)..((place + 1) * block).min(part.rows);
            if !rows.is_empty() {
                tiles.push(Tile { table: part.table, rows, columns: part.columns.clone(), rank });
            }
        }
    }
    tiles
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::host_layout::HostLayout;
    use crate::model::{DataType, Pooling, TableConfig};
    use crate::plan::ShardingPlan;

    fn tables(shapes: &[(u64, usize)]) -> Vec<TableConfig> {
        let table = |&(rows, dim): &(u64, usize)| {
            let name = format!("{rows}x{dim}");
            let (features, pooling, data_type) = (vec![name.clone()], Pooling::Sum, DataType::F32);
            TableConfig { name, rows, dim, pooling, sequence_length: None, data_type, features }
        };
        shapes.iter().map(table).collect()
    }

    #[test]
    fn a_table_row_wise_plan_keeps_each_table_on_one_host() {
        let tables = tables(&[(100, 8), (90, 8), (3, 8), (1, 8)]);
        let layout = HostLayout::with_ranks_per_host(4, 2).unwrap();
        let plan = ShardingPlan::table_row_wise(&tables, &layout);
        let ranks: Vec<u32> = plan.tiles().iter().map(|tile| tile.rank.0).collect();
        assert_eq!(ranks, [0, 1, 2, 3, 2, 3, 2]);
    }

    #[test]
    fn a_grid_plan_splits_columns_over_hosts_and_rows_within() {
        let tables = tables(&[(100, 8), (7, 3), (4, 1)]);
        let layout = HostLayout::with_ranks_per_host(6, 2).unwrap();
        let plan = ShardingPlan::grid(&tables, &layout);
        let hosts = plan.hosts_that_reduce();
        assert!(hosts.iter().all(Option::is_some), "{hosts:?}");
        let first: Vec<_> = plan
            .tiles()
            .iter()
            .zip(&hosts)
            .take(3)
            .map(|(tile, host)| (&tile.columns, host))
            .collect();
        assert_eq!(first, [(&(0..3), &Some(0)), (&(3..6), &Some(1)), (&(6..8), &Some(2))]);
    }

    #[test]
    fn receivers_add_sums_that_no_host_can_add_in_rank_order() {
        let tables = tables(&[(100, 8)]);
        let layout = HostLayout::with_ranks_per_host(4, 2).unwrap();
        let reduced = |plan: ShardingPlan| plan.on_hosts(layout.clone()).hosts_that_reduce();
        assert_eq!(reduced(ShardingPlan::row_wise(&tables, 4)), [None; 4]);
        assert_eq!(reduced(ShardingPlan::column_wise(&tables, 4)), [None; 4]);
        let plan = ShardingPlan::table_row_wise(&tables, &layout);
        assert_eq!(plan.hosts_that_reduce(), [Some(0); 2]);
        // The order of rows must be the order of ranks.
        let mut tiles = plan.tiles().to_vec();
        let [first, second] = &mut tiles[..] else { unreachable!() };
        std::mem::swap(&mut first.rank, &mut second.rank);
        assert_eq!(reduced(ShardingPlan::new(4, tiles, &tables).unwrap()), [None; 2]);
        let alone = ShardingPlan::row_wise(&tables, 4);
        assert_eq!(alone.hosts_that_reduce(), [Some(0); 4]);
        let unequal = HostLayout::from_hosts(&[0, 0, 0, 1]);
        assert_eq!(plan.on_hosts(unequal).hosts_that_reduce(), [None; 2]);
    }

    proptest! {
        #[test]
        fn every_plan_over_hosts_is_a_tiling_that_hosts_can_add_up(
            shapes in proptest::collection::vec((1u64..40, 1usize..20), 1..9),
            hosts in proptest::collection::vec(0usize..4, 1..9),
        ) {
            let tables = tables(&shapes);
            let layout = HostLayout::from_hosts(&hosts);
            let is_equal = layout.ranks_per_host().is_ok();
            for make in [ShardingPlan::table_row_wise, ShardingPlan::grid] {
                let plan = make(&tables, &layout);
                let tiles = plan.tiles().to_vec();
                let checked = ShardingPlan::new(hosts.len() as u32, tiles, &tables).unwrap();
                prop_assert_eq!(&checked.on_hosts(layout.clone()), &plan);
                for (tile, host) in plan.tiles().iter().zip(plan.hosts_that_reduce()) {
                    let is_split = tile.rows != (0..tables[tile.table.index()].rows);
                    let expected = (is_split && is_equal).then_some(layout.host(tile.rank));
                    prop_assert_eq!(host, expected);
                }
            }
        }
    }
}
