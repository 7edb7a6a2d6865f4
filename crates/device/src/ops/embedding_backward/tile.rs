//! Update targets: tiles of tables with their state, and counts of the updated rows.

use crate::weights::WeightsMut;

/// A row's gradients are summed in parts of this many ids, and the parts are added in order. A row
/// that fills half of the batch then does not occupy one thread while the others wait.
pub const IDS_PER_PART: usize = 512;

/// One tile of a table with its optimizer state.
#[derive(Debug)]
pub struct TileMut<'a> {
    /// `[rows, dim]`, updated in place.
    pub weights: WeightsMut<'a>,
    /// `[rows, Optimizer::state_per_row(dim)]`, updated in place.
    pub state: &'a mut [f32],
    /// Rows of the tile.
    pub rows: usize,
    /// Columns of the tile, above 0.
    pub dim: usize,
    /// Name of the table, for messages.
    pub name: &'a str,
    /// Position of the tile in its table.
    pub origin: TileOrigin,
}

/// The table of a tile, and the tile's first row and column in the table. The random bits of
/// rounding depend on this position, so the division of a table into tiles does not change them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileOrigin {
    /// Number of the table.
    pub table: u32,
    pub row: u64,
    pub column: u32,
}

/// The numbers of rows, elements and bytes that one call updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updated {
    /// Distinct rows, over all tiles.
    pub unique_rows: usize,
    /// Sum of D over the updated rows.
    pub unique_elements: usize,
    /// Bytes of the updated rows' weights.
    pub unique_bytes: usize,
}
