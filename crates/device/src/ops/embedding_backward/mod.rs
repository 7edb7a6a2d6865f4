//! The embedding backward with a fused optimizer (TBE): sums the gradients of lookups per row and
//! updates the rows in place. This file has the contract, the checks and the sequence of phases.
//!
//! The operation does not depend on the model's features or on sharding. A dense gradient of a
//! table never exists.

pub mod cuda;
mod gather;
mod numbering;
mod pack;
mod row_sums;
pub mod scalar;
mod scratch;
mod simd;
mod sort;
mod tile;
mod update;
mod update_rows;

use numbering::Numbering;
pub use row_sums::{RowArguments, RowSums, apply_rows, row_terms, sum_rows};
pub use scratch::Scratch;
pub use tile::{IDS_PER_PART, TileMut, TileOrigin, Updated, write_rows};
use update::{RowForm, UpdateTarget};

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
    /// Slots of the keys, one per key of `jagged`.
    pub slots: &'a [Slot],
    /// The ids of the forward pass, relative to their tile's first row.
    pub jagged: &'a JaggedTensor,
    /// Scales of the forward pass, one per bag, `[F·B]`, feature-major.
    pub bag_scales: Option<&'a [f32]>,
    /// Layout of the forward pass's output.
    pub output: SlotOutput,
    /// Gradient of the forward pass's output.
    pub gradient: &'a [f32],
    pub rule: UpdateRule,
    /// Random bits of this step for stochastic rounding when 16-bit tables are written.
    pub rounding: CounterRng,
}

/// The sizes that determine the memory that a [`Scratch`] uses.
#[derive(Clone, Copy, Debug)]
pub struct ScratchShape {
    /// Number of ids in a batch.
    pub ids: usize,
    /// Number of bags in a batch, over all slots.
    pub bags: usize,
    pub slots: usize,
    /// Number of values of the gradient.
    pub gradient: usize,
    /// Whether ids or bags have factors.
    pub factors: Factors,
}

/// Whether any id or bag has a factor other than 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    Absent,
    /// Ids have weights, or bags have scales, or both.
    Present,
}

impl Scratch {
    /// Returns the bytes of scratch for a batch of this shape, if few ids share a row.
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
/// The update rule is applied to `g_row = Σ_{(k,b,j): row} weight_j · scale_{k,b} · gradient[b,
/// column_k ..]`. If several slots share a tile, their gradients are summed before the update.
///
/// # Shapes
/// Shapes are those of [`super::embedding_forward::run`].
/// # Cost
/// Reads `8·nnz` bytes of ids and `4·nnz·D` of gradients (mostly cached), sorts `nnz` 8-byte pairs
/// on the bits of a row number, and reads and writes `e·D` bytes per distinct row plus its state,
/// where `e` is the size of a weight.
/// # Numerics
/// Sums are computed in f32 in the order (slot, sample, j), in parts of [`IDS_PER_PART`], and
/// multiplications and additions round separately. The results are bit-identical to those of
/// [`scalar`] for every instruction set and number of threads. Rows of 16-bit tables are updated
/// in f32 and rounded stochastically when they are written.
/// # Errors
/// Fails with [`Error::Shape`], [`Error::Jagged`] or [`Error::RowOutOfRange`] before any weight
/// or state changes. The last one reports the first such id in the order of `values`.
/// # Source
/// Sort, deduplication and fused update are described in arXiv:2104.05158.
pub fn run(
    cpu: &Cpu,
    arguments: BackwardArguments<'_, '_>,
    scratch: &mut Scratch,
) -> Result<Updated, Error> {
    let sorted = sort_ids(cpu, &arguments, scratch)?;
    let BackwardArguments { tiles, gradient, rule, rounding, .. } = arguments;
    let targets = targets(tiles, &sorted.numbering.first_rows, rule, rounding);
    let Scratch { pairs, sources, long, partials, .. } = scratch;
    let gradient = if sorted.is_packed { &scratch.gradient[..] } else { gradient };
    let payload_bits = sorted.numbering.payload_bits;
    let batch = update::UpdateBatch { gradient, pairs, sources, payload_bits };
    Ok(update_rows::run(cpu, &batch, &targets, rule, RowForm::Update, long, partials))
}

/// The pairs of a batch after their sort, which are in the scratch.
struct SortedIds {
    numbering: Numbering,
    /// Whether the scratch has a copy of the gradient, which the pairs refer to.
    is_packed: bool,
}

/// Checks the arguments, and sorts the ids by row.
fn sort_ids(
    cpu: &Cpu,
    arguments: &BackwardArguments<'_, '_>,
    scratch: &mut Scratch,
) -> Result<SortedIds, Error> {
    let BackwardArguments { tiles, slots, jagged, bag_scales, output, gradient, rule, .. } =
        arguments;
    let (slots, jagged, gradient) = (*slots, *jagged, *gradient);
    let shape = |tile: usize| {
        let TileMut { rows, dim, name, .. } = &tiles[tile];
        TileShape { rows: *rows, dim: *dim, name }
    };
    let lookup = Lookup { op: OP, slots, jagged, bag_scales: *bag_scales, output: *output, shape };
    let places = check(&lookup, tiles, gradient, *rule)?;
    let dims: Vec<usize> = slots.iter().map(|slot| tiles[slot.tile].dim).collect();
    let packed = pack::run(&cpu.pool, jagged, &dims, gradient, &places, &mut scratch.gradient);
    let is_packed = packed.is_some();
    let places = packed.unwrap_or(places);
    let numbering = Numbering::new(tiles, &lookup, &places)?;
    gather::run(cpu, &lookup, &numbering, &places, scratch)?;
    let groups = numbering.groups(slots, jagged);
    sort::run(&cpu.pool, numbering.key_bits(), &groups, scratch);
    Ok(SortedIds { numbering, is_packed })
}

/// Returns the tiles in the form in which the third phase takes them.
fn targets<'a>(
    tiles: &'a mut [TileMut<'_>],
    first_rows: &[usize],
    rule: UpdateRule,
    rounding: CounterRng,
) -> Vec<UpdateTarget<'a>> {
    let target = |(tile, &first_row)| UpdateTarget::new(tile, first_row, rule.kind, rounding);
    tiles.iter_mut().zip(first_rows).map(target).collect()
}

/// Checks the sizes of all arguments of the call.
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
