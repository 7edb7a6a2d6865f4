//! How training changed the tables: the number of changed rows and their lengths. Compares weights
//! with their initial draw, so steps need no memory and no counting.

use device::Pool;
use device::weights::{StoredWeight, WeightsView};
use schema::ModelConfig;
use serde::{Deserialize, Serialize};

use crate::initial::Draw;
use crate::parameter::TileView;

/// One table after some steps.
#[derive(Clone, Debug, PartialEq)]
pub struct TableUse {
    pub table: String,
    /// Rows whose weights are no longer those they were drawn as: all that were looked up and had a
    /// gradient. Of a table with imported weights, every row.
    pub rows_changed: u64,
    /// Root mean square of the L2 norms of these rows; 0 without any.
    pub row_norm: f64,
}

/// The same of one tile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TileUse {
    /// Number of its table.
    table: u32,
    /// Rows it has changed; 0 of a tile that has not the table's first columns, lest rows count
    /// twice.
    rows_changed: u64,
    /// Σ of the squares of the weights in changed rows.
    squares: f64,
}

/// Rows looked at by one chunk.
const ROWS_PER_CHUNK: usize = 4096;

/// Looks at one tile.
///
/// # Cost
/// Reads the tile once and draws the initial weights of rows that did not change.
/// # Numerics
/// Sums in f64, chunk by chunk in order: the same bits for any number of threads.
#[must_use]
pub fn of_tile(host: &Pool, model: &ModelConfig, state: &TileView<'_>) -> TileUse {
    let draw = Draw::new(model, &state.tile);
    let (rows_changed, squares) = match state.weight {
        WeightsView::F32(weights) => of_weights(host, draw, state, weights),
        WeightsView::F16(weights) => of_weights(host, draw, state, weights),
        WeightsView::Bf16(weights) => of_weights(host, draw, state, weights),
    };
    let is_first = state.tile.columns.start == 0;
    let rows_changed = if is_first { rows_changed } else { 0 };
    TileUse { table: state.tile.table.0, rows_changed, squares }
}

fn of_weights<E: StoredWeight>(
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
    sums.iter().fold((0, 0.0), |(rows, squares), sum| (rows + sum.0, squares + sum.1))
}

fn squares<E: StoredWeight>(values: &[E]) -> f64 {
    values.iter().map(|value| f64::from(value.widen()).powi(2)).sum()
}

/// The tables of `model`, in its order, from all their tiles.
#[must_use]
pub fn of_tables(model: &ModelConfig, tiles: &[TileUse]) -> Vec<TableUse> {
    let table = |(index, table): (u32, &schema::TableConfig)| {
        let own = || tiles.iter().filter(|tile| tile.table == index);
        let rows_changed: u64 = own().map(|tile| tile.rows_changed).sum();
        let squares: f64 = own().map(|tile| tile.squares).sum();
        let row_norm = (squares / rows_changed.max(1) as f64).sqrt();
        TableUse { table: table.name.clone(), rows_changed, row_norm }
    };
    (0..).zip(&model.tables).map(table).collect()
}
