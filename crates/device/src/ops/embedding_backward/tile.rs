//! The tiles that an update changes, with their optimizer state, and the counts of updated rows.

use schema::random::CounterRng;

use crate::rounding::RowNoise;
use crate::weights::{StoredWeight, WeightsMut};

/// Number of ids in a part. A row's gradients are summed in parts of this size, and the parts are
/// added in order. With parts, a row that fills half of the batch does not occupy one thread
/// while the others wait.
pub const IDS_PER_PART: usize = 512;

/// One tile of a table with its optimizer state.
#[derive(Debug)]
pub struct TileMut<'a> {
    /// Weights of the tile, `[rows, dim]`, updated in place.
    pub weights: WeightsMut<'a>,
    /// Optimizer state, `[rows, Optimizer::state_per_row(dim)]`, updated in place.
    pub state: &'a mut [f32],
    /// Number of rows of the tile.
    pub rows: usize,
    /// Number of columns of the tile, above 0.
    pub dim: usize,
    /// Name of the tile's table, for error messages.
    pub name: &'a str,
    /// Position of the tile in its table.
    pub origin: TileOrigin,
}

/// The table of a tile, and the tile's first row and column in the table. The random bits of
/// rounding depend on this position, so the division of a table into tiles does not change them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileOrigin {
    /// Index of the table in the model.
    pub table: u32,
    pub row: u64,
    pub column: u32,
}

/// Overwrites the weights of rows with `values`, both `[rows, dim]`. Values of 16-bit tables are
/// rounded up or down at random, as an update rounds them. `origin` is the position of the first
/// row in its table.
///
/// # Panics
/// Panics if the numbers of values and weights differ.
pub fn write_rows(
    to: WeightsMut<'_>,
    values: &[f32],
    dim: usize,
    origin: TileOrigin,
    rounding: CounterRng,
) {
    assert_eq!(to.len(), values.len(), "one value per weight");
    match to {
        WeightsMut::F32(to) => to.copy_from_slice(values),
        WeightsMut::F16(to) => round_rows(to, values, dim, origin, rounding),
        WeightsMut::Bf16(to) => round_rows(to, values, dim, origin, rounding),
    }
}

fn round_rows<E: StoredWeight>(
    to: &mut [E],
    values: &[f32],
    dim: usize,
    TileOrigin { table, row, column }: TileOrigin,
    rounding: CounterRng,
) {
    let table = rounding.child(u64::from(table));
    for (row, (to, values)) in (row..).zip(to.chunks_mut(dim).zip(values.chunks(dim))) {
        let noise = RowNoise::new(table, row, column);
        for (column, (to, &value)) in to.iter_mut().zip(values).enumerate() {
            *to = E::round(value, noise.at(column));
        }
    }
}

/// The numbers of rows, elements and bytes that one call updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updated {
    /// Number of distinct updated rows, over all tiles.
    pub unique_rows: usize,
    /// Sum of the numbers of columns of the updated rows.
    pub unique_elements: usize,
    /// Total size in bytes of the updated rows' weights.
    pub unique_bytes: usize,
}

impl std::ops::AddAssign for Updated {
    fn add_assign(&mut self, other: Self) {
        self.unique_rows += other.unique_rows;
        self.unique_elements += other.unique_elements;
        self.unique_bytes += other.unique_bytes;
    }
}
