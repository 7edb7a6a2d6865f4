//! The layouts of a table: how it is cut, before its parts are placed on ranks.

use serde::{Deserialize, Serialize};

/// How a table is cut into parts. Every layout but [`Layout::Replicated`] is a grid of column
/// parts × row blocks; [`crate::Placement`] names the rank of each cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "layout", deny_unknown_fields)]
pub enum Layout {
    /// One rank holds the whole table.
    Table,
    /// Each rank holds a block of rows.
    Row,
    /// Each rank holds a block of ⌈D ÷ parts⌉ columns.
    Column { parts: u32 },
    /// The ranks of one host hold blocks of rows, and the host adds up their partial sums.
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
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Row => "row",
            Self::Column => "column",
            Self::TableRow => "table_row",
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
