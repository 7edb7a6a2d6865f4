//! Gradients of pooled lookups, summed per row and applied in place (TBE backward with a fused
//! optimizer): contract, checks and phases.
//!
//! Knows nothing of the model's features or of sharding. No dense gradient of a table ever exists.

mod gather;
pub mod scalar;
mod simd;
mod sort;
mod update;

use schema::KeyedJaggedTensor;

use super::slot::{Lookup, Slot, TileShape};
use crate::cpu::{Cpu, DisjointMut};
use crate::error::Error;
use crate::optimizer::Rule;

/// A row's gradients are summed in parts of so many ids, and the parts in order, so that a row
/// which fills half the batch does not keep one thread busy while the others wait.
pub const IDS_PER_PART: usize = 512;

const OP: &str = "embedding_backward";

/// One tile of a table with its optimizer state.
#[derive(Debug)]
pub struct TileMut<'a> {
    /// `[rows, dim]`, updated in place.
    pub weights: &'a mut [f32],
    /// `[rows, Optimizer::state_per_row(dim)]`, updated in place.
    pub state: &'a mut [f32],
    /// Rows of the tile.
    pub rows: usize,
    /// Columns of the tile, above 0.
    pub dim: usize,
    /// Name of the table, for messages.
    pub name: &'a str,
}

/// What [`run`] works on.
#[derive(Debug)]
pub struct Arguments<'a, 'tile> {
    /// The tables, or the tiles of them that live here.
    pub tiles: &'a mut [TileMut<'tile>],
    /// One per key of `jagged`.
    pub slots: &'a [Slot],
    /// Ids local to their tile; those of the forward pass.
    pub jagged: &'a KeyedJaggedTensor,
    /// A factor per bag, `[F·B]`, feature-major; those of the forward pass.
    pub bag_scales: Option<&'a [f32]>,
    /// Gradient of the pooled matrix, `[B, Σ D]`.
    pub gradient: &'a [f32],
    /// The row update.
    pub rule: Rule,
}

/// Buffers that grow to the largest batch seen and are used again by the next call.
#[derive(Debug, Default)]
pub struct Scratch {
    /// One entry per id: its row, counted over all tiles, above its bag (or its position, if
    /// weighted).
    pairs: Vec<u64>,
    /// The sort's other buffer, `[nnz]`.
    spare: Vec<u64>,
    /// Digit counts of the sort, `[chunks, digits]`.
    counts: Vec<usize>,
    /// Bag of each position, `[nnz]`; only for weighted lookups.
    bags: Vec<usize>,
    /// Rows whose gradients are summed in parts.
    long: Vec<update::LongSegment>,
    /// The sums of those parts.
    partials: Vec<f32>,
}

/// What one call changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updated {
    /// Distinct rows, over all tiles.
    pub unique_rows: usize,
    /// Σ of D over those rows.
    pub unique_elements: usize,
}

/// Updates every row that the batch looked up, once, with the sum of its gradients.
///
/// `g_row = Σ_{(k,b,j): row} weight_j · scale_{k,b} · gradient[b, column_k ..]`, then the row's
/// rule. Slots that share a tile are summed before the update.
///
/// # Shapes
/// `gradient` `[B, Σ D]`; the others as in [`super::embedding_forward::run`].
/// # Cost
/// Reads `8·nnz` bytes of ids and `4·nnz·D` of gradients (mostly cached), sorts `nnz` 8-byte pairs
/// on the bits a row number needs, reads and writes `4·D` bytes per distinct row plus its state.
/// # Numerics
/// Sums in f32 in (slot, sample, j) order, in parts of [`IDS_PER_PART`]; multiplies and adds round
/// separately. Same bytes as [`scalar`] on every instruction set and thread count.
/// # Errors
/// [`Error::Shape`], [`Error::Jagged`] and [`Error::RowOutOfRange`] (the first id, in `values`
/// order) before any weight or state changes.
/// # Source
/// Sort, dedup and fused update: arXiv:2104.05158.
pub fn run(
    cpu: &Cpu,
    arguments: Arguments<'_, '_>,
    scratch: &mut Scratch,
) -> Result<Updated, Error> {
    let Arguments { tiles, slots, jagged, bag_scales, gradient, rule } = arguments;
    let numbering = {
        let shape = |tile: usize| {
            let TileMut { rows, dim, name, .. } = &tiles[tile];
            TileShape { rows: *rows, dim: *dim, name }
        };
        let lookup = Lookup { op: OP, slots, jagged, bag_scales, shape };
        check(&lookup, tiles, gradient, rule)?;
        let numbering = Numbering::new(tiles, jagged)?;
        gather::run(cpu, &lookup, &numbering, scratch)?;
        numbering
    };
    sort::run(&cpu.pool, numbering.key_bits(), scratch);
    let Scratch { pairs, bags, long, partials, .. } = scratch;
    let width = gradient.len().checked_div(jagged.batch_size).unwrap_or(0);
    let batch = update::Batch {
        slots,
        jagged,
        bag_scales,
        gradient,
        width,
        pairs,
        bags,
        payload_bits: numbering.payload_bits,
    };
    let targets: Vec<update::Target<'_>> = tiles
        .iter_mut()
        .zip(&numbering.first_rows)
        .map(|(tile, &first_row)| update::Target {
            weights: DisjointMut::new(tile.weights),
            state: DisjointMut::new(tile.state),
            state_per_row: rule.kind.state_per_row(tile.dim),
            rows: first_row..first_row + tile.rows,
            dim: tile.dim,
        })
        .collect();
    Ok(update::run(cpu, &batch, (&targets, rule), (long, partials)))
}

/// Every shape of the call.
fn check<'a, Shape: Fn(usize) -> TileShape<'a>>(
    lookup: &Lookup<'a, Shape>,
    tiles: &[TileMut<'_>],
    gradient: &[f32],
    rule: Rule,
) -> Result<(), Error> {
    for tile in tiles {
        let elements = tile.rows.saturating_mul(tile.dim);
        let state = tile.rows.saturating_mul(rule.kind.state_per_row(tile.dim));
        lookup.check_extent("weights [rows, D]", elements, tile.weights.len())?;
        lookup.check_extent("state [rows, state per row]", state, tile.state.len())?;
    }
    let width = lookup.check(tiles.len())?;
    lookup.check_extent("gradient [B, Σ D]", lookup.jagged.batch_size * width, gradient.len())
}

/// How a pair packs a row, counted over all tiles, above the number of its bag or position.
struct Numbering {
    /// First row number of each tile, and after the last tile the number of all rows, `[T + 1]`.
    first_rows: Vec<usize>,
    row_bits: u32,
    payload_bits: u32,
}

impl Numbering {
    fn new(tiles: &[TileMut<'_>], jagged: &KeyedJaggedTensor) -> Result<Self, Error> {
        let mut first_rows = vec![0];
        first_rows.extend(tiles.iter().scan(0usize, |rows, tile| {
            *rows += tile.rows;
            Some(*rows)
        }));
        let payloads = match jagged.weights {
            None => jagged.features * jagged.batch_size,
            Some(_) => jagged.values.len(),
        };
        let row_bits = bits_below(first_rows[tiles.len()]);
        let payload_bits = bits_below(payloads);
        let bits = (row_bits + payload_bits) as usize;
        if bits > 64 {
            let what = "bits of a row number and a bag number, at most";
            return Err(Error::Shape { op: OP, what, expected: 64, got: bits });
        }
        Ok(Self { first_rows, row_bits, payload_bits })
    }

    /// The bits of a pair that hold its row.
    fn key_bits(&self) -> std::ops::Range<u32> {
        self.payload_bits..self.payload_bits + self.row_bits
    }
}

/// Bits that hold every number below `count`.
fn bits_below(count: usize) -> u32 {
    usize::BITS - count.saturating_sub(1).leading_zeros()
}
