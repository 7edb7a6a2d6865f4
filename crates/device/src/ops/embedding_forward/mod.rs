//! Lookup of all tables in one call (TBE forward), pooled or not. This file has the contract, the
//! checks and the choice of a kernel.
//!
//! The operation does not depend on the model's features or on sharding. The inputs of the
//! operation are tiles, slots, and ids that are relative to a tile.

mod block;
pub mod cuda;
pub mod scalar;
mod simd;

use block::BagBlock;
pub use block::TileView;

use std::sync::atomic::{AtomicUsize, Ordering};

use schema::JaggedTensor;

use super::slot::{Lookup, Slot, SlotOutput, TileShape};
use crate::cpu::vector::streamed;
use crate::cpu::{Cpu, DisjointMut, Isa};
use crate::error::Error;
use crate::weights::WeightsView;

/// Number of bags per chunk: the bags of this many consecutive samples of one slot, or of several
/// slots if the batch has fewer samples. A thread stays with one table, whose pages are then in
/// its TLB.
const BAGS_PER_CHUNK: usize = 128;
/// Outputs of at least this many bytes are stored past the caches. Cached stores would fetch
/// lines only to overwrite them, and the lines would be evicted before they are read.
const STREAMED_BYTES: usize = 1 << 20;
/// Number of floats in a cache line.
const LINE: usize = 16;

/// Arguments of [`run`]: the batch, the tiles in which its ids are looked up, and the output.
#[derive(Debug)]
pub struct ForwardArguments<'a> {
    /// The tables, or the tiles of them that this rank holds.
    pub tiles: &'a [TileView<'a>],
    /// Slots of the keys, one per key of `jagged`.
    pub slots: &'a [Slot],
    /// Ids of the batch, relative to their tile's first row.
    pub jagged: &'a JaggedTensor,
    /// One scale factor per bag, `[F·B]`, feature-major. A factor of `1/L` makes the sum a mean.
    pub bag_scales: Option<&'a [f32]>,
    pub output: SlotOutput,
    /// Output, `[B, Σ D]`, or the rows of [`SlotOutput::Sequence`], overwritten.
    pub out: &'a mut [f32],
}

/// Pools embedding rows: one weighted sum per (sample, slot), all tables in one call.
///
/// `out[b, column_k + d] = scale_{k,b} · Σ_{j ∈ bag(k,b)} weight_j · table_{tile_k}[values_j, d]`
///
/// With [`SlotOutput::Sequence`], each id forms its own bag: the output has one row per id,
/// multiplied by the id's weight and the bag's scale.
///
/// # Shapes
/// `jagged.values` `[nnz]`; `jagged.offsets` `[F·B + 1]`, feature-major; `out` `[B, Σ D]`,
/// overwritten.
/// # Cost
/// Bandwidth-bound. Reads `nnz·(e·D + 8)` bytes, where `e` is the size of a weight, and writes
/// `4·B·Σ D`, for at most `2·nnz·D` FLOPs.
/// # Numerics
/// Sums are computed in f32, whatever the table's format, in the order of `values`.
/// Multiplications and additions round separately. The result is bit-identical to that of
/// [`scalar`] for every instruction set and number of threads.
/// # Errors
/// Fails with [`Error::Shape`] or [`Error::Jagged`] before any work. [`Error::RowOutOfRange`]
/// names the first out-of-range id in the order of `values`, and `out` is then unspecified.
/// # Source
/// DLRM is described in arXiv:1906.00091, and table batching in arXiv:2104.05158.
pub fn run(cpu: &Cpu, arguments: ForwardArguments<'_>) -> Result<(), Error> {
    let ForwardArguments { tiles, slots, jagged, bag_scales, output, out } = arguments;
    let op = "embedding_forward";
    let shape = |tile: usize| {
        let TileView { rows, dim, name, .. } = tiles[tile];
        TileShape { rows, dim, name }
    };
    let lookup = Lookup { op, slots, jagged, bag_scales, output, shape };
    for tile in tiles {
        lookup.check_extent(
            "weights [rows, D]",
            tile.rows.saturating_mul(tile.dim),
            tile.weights.len(),
        )?;
    }
    let places = lookup.check(tiles.len())?;
    lookup.check_extent("out", places.len, out.len())?;

    let batch_size = jagged.batch_size;
    let blocks = batch_size.div_ceil(BAGS_PER_CHUNK);
    let slots_per_chunk = BAGS_PER_CHUNK / batch_size.clamp(1, BAGS_PER_CHUNK);
    // Streamed vectors must begin on a cache line, so the output must begin on one too.
    let is_large = size_of_val(out) >= STREAMED_BYTES && out.as_ptr().addr().is_multiple_of(64);
    let out = DisjointMut::new(out);
    let first_bad = AtomicUsize::new(usize::MAX);
    cpu.pool.run(slots.len().div_ceil(slots_per_chunk) * blocks, |chunk| {
        let (features, first) = (chunk / blocks * slots_per_chunk, chunk % blocks * BAGS_PER_CHUNK);
        for feature in features..slots.len().min(features + slots_per_chunk) {
            let (tile, place) = (&tiles[slots[feature].tile], places.place(feature));
            let whole_lines = tile.dim.is_multiple_of(LINE) && place.is_multiple_of(LINE);
            let block = BagBlock {
                tile,
                jagged,
                bag_scales,
                feature,
                samples: first..batch_size.min(first + BAGS_PER_CHUNK),
                out: &out,
                place,
                past_caches: is_large && whole_lines,
            };
            let ids = block.positions();
            match block.tile.first_bad(&jagged.values[ids.clone()]) {
                Some(bad) => _ = first_bad.fetch_min(ids.start + bad, Ordering::Relaxed),
                None => pool(cpu.isa, &block),
            }
        }
        // The fence orders the streamed stores before this thread signals the end of the chunk,
        // so that any reader sees them.
        streamed();
    });
    match first_bad.into_inner() {
        usize::MAX => Ok(()),
        position => Err(lookup.row_out_of_range(position)),
    }
}

/// Pools every bag of a block, whose ids have already been checked.
fn pool(isa: Isa, block: &BagBlock<'_>) {
    match block.tile.weights {
        WeightsView::F32(weights) => simd::pool(isa, block, weights),
        WeightsView::F16(weights) => simd::pool(isa, block, weights),
        WeightsView::Bf16(weights) => simd::pool(isa, block, weights),
    }
}
