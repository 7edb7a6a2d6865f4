//! Measures how training changed the tables: the number of changed rows and the norms of these
//! rows.
//!
//! Weights are compared with their initial values, so training steps need not count anything.

use device::Pool;
use device::weights::{StoredWeight, WeightsView};
use schema::ModelConfig;
use serde::{Deserialize, Serialize};

use crate::initial::Draw;
use crate::parameter::TileView;

/// The changes that training has made to one table so far.
#[derive(Clone, Debug, PartialEq)]
pub struct TableUse {
    pub table: String,
    /// Number of rows whose weights differ from their initial values. These are the rows that were
    /// looked up and had a gradient. For a table with imported weights, all rows count as changed.
    pub rows_changed: u64,
    /// Root mean square of the L2 norms of the changed rows, or 0 if no row changed.
    pub row_norm: f64,
}

/// The changes that training has made to one tile. [`sum_tiles`] combines the tiles of a table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TileUse {
    /// Index of the tile's table in the model.
    table: u32,
    /// Number of changed rows, which is 0 for tiles without the table's first columns, so that no
    /// row is counted twice.
    rows_changed: u64,
    /// Sum of the squares of the weights in changed rows.
    squares: f64,
}

/// Number of rows that one chunk of work compares.
const ROWS_PER_CHUNK: usize = 4096;

/// Compares one tile with its initial weights.
///
/// # Cost
/// Reads the tile once and draws the initial weights of the unchanged rows again.
/// # Numerics
/// Sums in f64, chunk by chunk in order, so any number of threads gives the same bits.
#[must_use]
pub fn measure_tile(host: &Pool, model: &ModelConfig, state: &TileView<'_>) -> TileUse {
    let draw = Draw::new(model, &state.tile);
    let (rows_changed, squares) = match state.weight {
        WeightsView::F32(weights) => measure_weights(host, draw, state, weights),
        WeightsView::F16(weights) => measure_weights(host, draw, state, weights),
        WeightsView::Bf16(weights) => measure_weights(host, draw, state, weights),
    };
    let is_first = state.tile.columns.start == 0;
    let rows_changed = if is_first { rows_changed } else { 0 };
    TileUse { table: state.tile.table.0, rows_changed, squares }
}

fn measure_weights<E: StoredWeight>(
    host: &Pool,
    draw: Draw,
    state: &TileView<'_>,
    weights: &[E],
) -> (u64, f64) {
    let (dim, first) = (state.tile.dim(), state.tile.rows.start);
    let mut sums = vec![(0, 0.0); state.tile.row_count().div_ceil(ROWS_PER_CHUNK)];
    host.run_slices(&mut sums, 1, |chunk, sum| {
        let start = chunk * ROWS_PER_CHUNK;
        let end = weights.len().min((start + ROWS_PER_CHUNK) * dim);
        let rows = weights[start * dim..end].chunks_exact(dim);
        for (row, values) in (first + start as u64..).zip(rows) {
            if !draw.is_row(row, values) {
                sum[0].0 += 1;
                sum[0].1 += squares(values);
            }
        }
    });
    // Add the chunks in order, so that the sum has the same bits for any number of threads.
    sums.iter().fold((0, 0.0), |(rows, squares), sum| (rows + sum.0, squares + sum.1))
}

fn squares<E: StoredWeight>(values: &[E]) -> f64 {
    values.iter().map(|value| f64::from(value.widen()).powi(2)).sum()
}

/// Sums the tiles of each table of `model`, in the model's order.
#[must_use]
pub fn sum_tiles(model: &ModelConfig, tiles: &[TileUse]) -> Vec<TableUse> {
    let table = |(index, table): (u32, &schema::TableConfig)| {
        let own = || tiles.iter().filter(|tile| tile.table == index);
        let rows_changed: u64 = own().map(|tile| tile.rows_changed).sum();
        let squares: f64 = own().map(|tile| tile.squares).sum();
        let row_norm = (squares / rows_changed.max(1) as f64).sqrt();
        TableUse { table: table.name.clone(), rows_changed, row_norm }
    };
    (0..).zip(&model.tables).map(table).collect()
}
