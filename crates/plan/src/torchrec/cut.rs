//! Cuts tables into shards, as TorchRec's enumerator does.

use std::ops::Range;

use super::problem::{TorchrecSetting, TorchrecTable};
use super::sharding::ShardingType;

/// TorchRec's default of the least number of columns of a part.
const LEAST_COLUMNS: usize = 128;

/// The rows and columns of a shard. A short table leaves the last shards of a row-wise cut empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardCell {
    pub rows: Range<u64>,
    pub columns: Range<usize>,
}

/// Cuts a table. Shards are ordered by column part, then by row.
pub fn cut(
    table: &TorchrecTable,
    sharding: ShardingType,
    setting: &TorchrecSetting,
) -> Vec<ShardCell> {
    let topology = &setting.topology;
    let parts = table.dim / part_width(table).max(1);
    let (parts, blocks) = match sharding {
        ShardingType::DataParallel => {
            let whole = cut_grid(table, 1, 1);
            return whole.into_iter().cycle().take(topology.ranks as usize).collect();
        }
        ShardingType::TableWise => (1, 1),
        ShardingType::ColumnWise | ShardingType::TableColumnWise => (parts, 1),
        ShardingType::RowWise => (1, topology.ranks),
        ShardingType::TableRowWise => (1, topology.ranks_per_host),
        ShardingType::GridShard => (parts, topology.ranks_per_host),
    };
    cut_grid(table, parts, blocks as usize)
}

/// Cuts a table into column parts of ⌈D ÷ parts⌉ columns × row blocks of ⌈R ÷ blocks⌉ rows.
pub fn cut_grid(table: &TorchrecTable, parts: usize, blocks: usize) -> Vec<ShardCell> {
    let rows_per_block = table.rows.div_ceil(blocks.max(1) as u64);
    let columns_per_part = table.dim.div_ceil(parts.max(1));
    let mut cells = Vec::with_capacity(parts * blocks);
    for part in 0..parts {
        let first = (part * columns_per_part).min(table.dim);
        let columns = first..(first + columns_per_part).min(table.dim);
        for block in 0..blocks as u64 {
            let first = (block * rows_per_block).min(table.rows);
            let rows = first..(first + rows_per_block).min(table.rows);
            cells.push(ShardCell { rows, columns: columns.clone() });
        }
    }
    cells
}

/// Returns the columns of a part: the least divisor of D that is a multiple of 4 and not below the
/// table's least number of columns, or all columns.
fn part_width(table: &TorchrecTable) -> usize {
    let least = table.least_columns.filter(|&columns| columns > 0).unwrap_or(LEAST_COLUMNS);
    let fits = |columns: &usize| table.dim.is_multiple_of(*columns) && columns.is_multiple_of(4);
    (least..table.dim).find(fits).unwrap_or(table.dim)
}
