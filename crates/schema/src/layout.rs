//! Layouts and placements of tables: how a table is cut, and which ranks hold its parts.

use serde::{Deserialize, Serialize};

use crate::model::TableConfig;
use crate::plan::Tile;
use crate::unit::{Rank, TableId};

/// How a table is cut into parts. Every layout but [`Layout::Replicated`] is a grid of column
/// parts × row blocks; [`Placement`] names the rank of each cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "layout")]
pub enum Layout {
    /// One rank holds the whole table.
    Table,
    /// Each rank holds a block of rows.
    Row,
    /// Each rank holds a block of ⌈D ÷ parts⌉ columns.
    Column { parts: u32 },
    /// The ranks of one host hold blocks of rows, and the host adds up their partial sums.
    #[serde(rename = "table-row")]
    TableRow,
    /// Each host holds ⌈D ÷ columns⌉ columns, and divides their rows among its ranks.
    Grid { columns: u32 },
    /// Every rank holds the whole table.
    Replicated,
}

/// A [`Layout`] without its number of parts, as constraints name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayoutKind {
    Table,
    Row,
    Column,
    #[serde(rename = "table-row")]
    TableRow,
    Grid,
    Replicated,
}

impl LayoutKind {
    /// All kinds, in the order of declaration.
    pub const ALL: [Self; 6] =
        [Self::Table, Self::Row, Self::Column, Self::TableRow, Self::Grid, Self::Replicated];

    /// Returns the name in files and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Row => "row",
            Self::Column => "column",
            Self::TableRow => "table-row",
            Self::Grid => "grid",
            Self::Replicated => "replicated",
        }
    }
}

impl Layout {
    /// Returns the layout without its number of parts.
    #[must_use]
    pub fn kind(self) -> LayoutKind {
        match self {
            Self::Table => LayoutKind::Table,
            Self::Row => LayoutKind::Row,
            Self::Column { .. } => LayoutKind::Column,
            Self::TableRow => LayoutKind::TableRow,
            Self::Grid { .. } => LayoutKind::Grid,
            Self::Replicated => LayoutKind::Replicated,
        }
    }

    /// Returns the number of parts into which the columns are cut.
    #[must_use]
    pub fn column_parts(self) -> u32 {
        match self {
            Self::Column { parts } => parts,
            Self::Grid { columns } => columns,
            _ => 1,
        }
    }
}

/// The layout of a table and the ranks of its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    #[serde(flatten)]
    pub layout: Layout,
    /// One rank for each part, column part by column part, and within a column part in the order
    /// of rows. A replicated table lists none, because every rank holds it.
    #[serde(default)]
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
