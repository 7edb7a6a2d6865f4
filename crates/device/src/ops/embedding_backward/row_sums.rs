//! The two halves of the embedding backward where ranks exchange something between them: sums of
//! gradients by row, and the update of rows with given sums.
//!
//! Without an exchange, [`super::run`] computes both at once.

use schema::random::CounterRng;

use super::numbering::{bits_below, first_rows_of};
use super::scratch::Scratch;
use super::tile::{TileMut, Updated};
use super::update::{RowForm, TileSums, UpdateBatch, UpdateTarget};
use super::{BackwardArguments, OP, sort_ids, targets, update_rows};
use crate::cpu::{Cpu, DisjointMut};
use crate::error::Error;
use crate::ops::extent;
use crate::optimizer::UpdateRule;

/// Distinct rows with their summed gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowSums {
    /// Numbers of the rows, counted over all tiles, in ascending order.
    pub rows: Vec<u64>,
    /// Gradient of each row, `[D]` of its tile, in the order of `rows`.
    pub sums: Vec<f32>,
}

/// Arguments of [`row_terms`] and [`apply_rows`]: tiles, and the rows of them to update.
#[derive(Debug)]
pub struct RowArguments<'a, 'tile> {
    pub tiles: &'a mut [TileMut<'tile>],
    pub sums: &'a RowSums,
    pub rule: UpdateRule,
    /// Random bits of this step for stochastic rounding when 16-bit tables are written.
    pub rounding: CounterRng,
}

/// Sums the gradients of each row that the batch looked up, and changes no row.
///
/// # Shapes
/// As for [`super::run`].
/// # Numerics
/// The sums are those of [`super::run`].
/// # Errors
/// As for [`super::run`].
pub fn sum_rows(
    cpu: &Cpu,
    arguments: BackwardArguments<'_, '_>,
    scratch: &mut Scratch,
    to: &mut RowSums,
) -> Result<(), Error> {
    let sorted = sort_ids(cpu, &arguments, scratch)?;
    let BackwardArguments { tiles, gradient, rule, rounding, .. } = arguments;
    let mut targets = targets(tiles, &sorted.numbering.first_rows, rule, rounding);
    let Scratch { pairs, sources, long, partials, .. } = scratch;
    let gradient = if sorted.is_packed { &scratch.gradient[..] } else { gradient };
    let payload_bits = sorted.numbering.payload_bits;
    let batch = UpdateBatch { gradient, pairs, sources, payload_bits };
    let RowSums { rows, sums } = to;
    rows.clear();
    for position in 0..batch.pairs.len() {
        let row = batch.row(position) as u64;
        if rows.last() != Some(&row) {
            rows.push(row);
        }
    }
    let len = place_sums(&mut targets, rows);
    sums.resize(len, 0.0);
    let form = RowForm::Sum { rows, sums: DisjointMut::new(sums) };
    update_rows::run(cpu, &batch, &targets, rule, form, long, partials);
    Ok(())
}

/// Computes the first half of the update of each row, see [`UpdateRule::row_terms`], and writes its
/// result to `terms` `[rows, 2]`.
///
/// # Errors
/// Fails with [`Error::Shape`] if rows are not in order or not in the tiles, or if an argument has
/// the wrong size.
pub fn row_terms(
    cpu: &Cpu,
    arguments: RowArguments<'_, '_>,
    scratch: &mut Scratch,
    terms: &mut Vec<f32>,
) -> Result<(), Error> {
    terms.resize(2 * arguments.sums.rows.len(), 0.0);
    run_rows(cpu, arguments, scratch, RowForm::Terms(DisjointMut::new(terms))).map(|_| ())
}

/// Updates rows with their summed gradients. With the `terms` `[rows, 2]` of whole rows, computes
/// the second half of their updates.
///
/// # Numerics
/// [`sum_rows`] followed by this function gives the bytes of [`super::run`].
/// # Errors
/// As for [`row_terms`].
pub fn apply_rows(
    cpu: &Cpu,
    arguments: RowArguments<'_, '_>,
    scratch: &mut Scratch,
    terms: Option<&[f32]>,
) -> Result<Updated, Error> {
    if let Some(terms) = terms {
        extent::check(OP, "terms [rows, 2]", 2 * arguments.sums.rows.len(), terms.len())?;
    }
    run_rows(cpu, arguments, scratch, terms.map_or(RowForm::Update, RowForm::Finish))
}

/// Runs the third phase on given rows. Each row has one pair, which refers to its sum.
fn run_rows(
    cpu: &Cpu,
    arguments: RowArguments<'_, '_>,
    scratch: &mut Scratch,
    form: RowForm<'_>,
) -> Result<Updated, Error> {
    let RowArguments { tiles, sums: RowSums { rows, sums }, rule, rounding } = arguments;
    for tile in &*tiles {
        let (elements, width) = (tile.rows * tile.dim, rule.kind.state_per_row(tile.dim));
        extent::check(OP, "weights [rows, D]", elements, tile.weights.len())?;
        extent::check(OP, "state [rows, state per row]", tile.rows * width, tile.state.len())?;
    }
    let first_rows = first_rows_of(tiles);
    let total = first_rows[tiles.len()];
    let ascending = rows.windows(2).take_while(|pair| pair[0] < pair[1]).count() + 1;
    extent::check(OP, "rows in ascending order", rows.len(), ascending.min(rows.len()))?;
    let last = rows.last().map_or(0, |&row| row as usize + 1);
    extent::within(OP, "rows of all tiles", total, last)?;
    let mut targets = targets(tiles, &first_rows, rule, rounding);
    let len = place_sums(&mut targets, rows);
    extent::check(OP, "sums", len, sums.len())?;
    let (row_bits, payload_bits) = (bits_below(total), bits_below(len));
    extent::within(OP, "bits of a pair", 64, (row_bits + payload_bits) as usize)?;
    let Scratch { pairs, long, partials, .. } = scratch;
    pairs.clear();
    let mut at = 0u64;
    for target in &targets {
        let end = rows.partition_point(|&row| row < target.end_row() as u64);
        for &row in &rows[target.sums.first_row..end] {
            pairs.push(row << payload_bits | at);
            at += target.dim as u64;
        }
    }
    let batch = UpdateBatch { gradient: sums, pairs, sources: &[], payload_bits };
    Ok(update_rows::run(cpu, &batch, &targets, rule, form, long, partials))
}

/// Sets the places of the sums of each tile. Returns the number of values of all sums.
fn place_sums(targets: &mut [UpdateTarget<'_>], rows: &[u64]) -> usize {
    let mut place = TileSums::default();
    for target in targets {
        target.sums = place;
        let end = rows.partition_point(|&row| row < target.end_row() as u64);
        place.first_value += (end - place.first_row) * target.dim;
        place.first_row = end;
    }
    place.first_value
}
