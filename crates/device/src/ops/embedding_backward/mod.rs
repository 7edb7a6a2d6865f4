//! Gradients of lookups, pooled or not, summed per row and applied in place (TBE backward with a
//! fused optimizer): contract, checks and phases.
//!
//! Independent of the model's features or of sharding. No dense gradient of a table ever exists.

pub mod cuda;
mod gather;
mod numbering;
mod pack;
pub mod scalar;
mod scratch;
mod simd;
mod sort;
mod tile;
mod update;
mod update_rows;

use numbering::Numbering;
pub use scratch::Scratch;
pub use tile::{IDS_PER_PART, TileMut, TileOrigin, Updated};

use schema::JaggedTensor;
use schema::random::CounterRng;

use super::slot::{KeyPlaces, Lookup, Slot, SlotOutput, TileShape};
use crate::cpu::Cpu;
use crate::error::Error;
use crate::optimizer::UpdateRule;

const OP: &str = "embedding_backward";

/// Arguments of [`run`]: the batch, the gradient of its output, and the tiles to update.
#[derive(Debug)]
pub struct BackwardArguments<'a, 'tile> {
    /// The tables, or the tiles of them that this rank holds.
    pub tiles: &'a mut [TileMut<'tile>],
    /// One per key of `jagged`.
    pub slots: &'a [Slot],
    /// The ids of the forward pass, local to their tile.
    pub jagged: &'a JaggedTensor,
    /// The scales of the forward pass: one per bag, `[F·B]`, feature-major.
    pub bag_scales: Option<&'a [f32]>,
    /// Layout of the forward pass's output.
    pub output: SlotOutput,
    /// Gradient of that output.
    pub gradient: &'a [f32],
    pub rule: UpdateRule,
    /// Random bits of this step, for writing to 16-bit tables.
    pub rounding: CounterRng,
}

/// The sizes that determine the memory of a [`Scratch`].
#[derive(Clone, Copy, Debug)]
pub struct ScratchShape {
    /// Ids of a batch.
    pub ids: usize,
    /// Bags of a batch, over all slots.
    pub bags: usize,
    pub slots: usize,
    /// Values of the gradient.
    pub gradient: usize,
    /// Whether ids or bags have factors.
    pub factors: Factors,
}

/// Whether any id or bag has a factor other than 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    Absent,
    /// Ids have weights, or bags have scales.
    Present,
}

impl Scratch {
    /// Bytes of scratch for a batch of this shape, if few ids share a row.
    #[must_use]
    pub fn bytes(shape: ScratchShape) -> usize {
        let packed = pack::pays(shape.slots, shape.ids, shape.bags);
        let gradient = if packed { shape.gradient * size_of::<f32>() } else { 0 };
        let sources = match shape.factors {
            Factors::Absent => 0,
            Factors::Present => shape.ids * size_of::<(usize, f32)>(),
        };
        2 * shape.ids * size_of::<u64>() + sources + gradient + sort::count_bytes(shape.ids)
    }
}

/// Updates every row that the batch looked up, once, with the sum of its gradients.
///
/// `g_row = Σ_{(k,b,j): row} weight_j · scale_{k,b} · gradient[b, column_k ..]`, then the row's
/// rule. Slots that share a tile are summed before the update.
///
/// # Shapes
/// As in [`super::embedding_forward::run`].
/// # Cost
/// Reads `8·nnz` bytes of ids and `4·nnz·D` of gradients (mostly cached), sorts `nnz` 8-byte pairs
/// on the bits of a row number, and reads and writes `e·D` bytes per distinct row plus its state,
/// where `e` is the size of a weight.
/// # Numerics
/// Sums in f32 in (slot, sample, j) order, in parts of [`IDS_PER_PART`]; multiplies and adds round
/// separately. Same bytes as [`scalar`] on every instruction set and thread count. Rows of 16-bit
/// tables are updated in f32 and rounded stochastically when they are written.
/// # Errors
/// [`Error::Shape`], [`Error::Jagged`] and [`Error::RowOutOfRange`] (the first id, in `values`
/// order) before any weight or state changes.
/// # Source
/// Sort, dedup and fused update: arXiv:2104.05158.
pub fn run(
    cpu: &Cpu,
    arguments: BackwardArguments<'_, '_>,
    scratch: &mut Scratch,
) -> Result<Updated, Error> {
    let BackwardArguments { tiles, slots, jagged, bag_scales, output, gradient, rule, rounding } =
        arguments;
    let is_packed;
    let numbering = {
        let shape = |tile: usize| {
            let TileMut { rows, dim, name, .. } = &tiles[tile];
            TileShape { rows: *rows, dim: *dim, name }
        };
        let lookup = Lookup { op: OP, slots, jagged, bag_scales, output, shape };
        let places = check(&lookup, tiles, gradient, rule)?;
        let dims: Vec<usize> = slots.iter().map(|slot| tiles[slot.tile].dim).collect();
        let packed = pack::run(&cpu.pool, jagged, &dims, gradient, &places, &mut scratch.gradient);
        is_packed = packed.is_some();
        let places = packed.unwrap_or(places);
        let numbering = Numbering::new(tiles, &lookup, &places)?;
        gather::run(cpu, &lookup, &numbering, &places, scratch)?;
        numbering
    };
    let groups = numbering.groups(slots, jagged);
    sort::run(&cpu.pool, numbering.key_bits(), &groups, scratch);
    let Scratch { pairs, sources, long, partials, .. } = scratch;
    let gradient = if is_packed { &scratch.gradient[..] } else { gradient };
    let batch =
        update::UpdateBatch { gradient, pairs, sources, payload_bits: numbering.payload_bits };
    let targets: Vec<update::UpdateTarget<'_>> = tiles
        .iter_mut()
        .zip(&numbering.first_rows)
        .map(|(tile, &first_row)| update::UpdateTarget::new(tile, first_row, rule.kind, rounding))
        .collect();
    Ok(update_rows::run(cpu, &batch, &targets, rule, long, partials))
}

/// Checks all shapes of the call.
fn check<'a, Shape: Fn(usize) -> TileShape<'a>>(
    lookup: &Lookup<'a, Shape>,
    tiles: &[TileMut<'_>],
    gradient: &[f32],
    rule: UpdateRule,
) -> Result<KeyPlaces, Error> {
    for tile in tiles {
        let elements = tile.rows.saturating_mul(tile.dim);
        let state = tile.rows.saturating_mul(rule.kind.state_per_row(tile.dim));
        lookup.check_extent("weights [rows, D]", elements, tile.weights.len())?;
        lookup.check_extent("state [rows, state per row]", state, tile.state.len())?;
    }
    let places = lookup.check(tiles.len())?;
    lookup.check_extent("gradient", places.len, gradient.len())?;
    Ok(places)
}
