//! Pooled lookup of all tables in one call (TBE forward): contract, checks and dispatch.
//!
//! Knows nothing of the model's features or of sharding: it sees tiles, slots and ids local to a
//! tile.

pub mod scalar;
mod simd;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use schema::KeyedJaggedTensor;

use super::slot::{Lookup, Slot, TileShape};
use crate::cpu::{Cpu, DisjointMut, Isa};
use crate::error::Error;

/// Samples per chunk; a chunk is one slot's bags of so many consecutive samples.
const SAMPLES_PER_CHUNK: usize = 64;

/// One tile of a table, read only.
#[derive(Clone, Copy, Debug)]
pub struct TileView<'a> {
    /// `[rows, dim]`.
    pub weights: &'a [f32],
    /// Rows of the tile.
    pub rows: usize,
    /// Columns of the tile, above 0.
    pub dim: usize,
    /// Name of the table, for messages.
    pub name: &'a str,
}

/// What [`run`] works on.
#[derive(Debug)]
pub struct Arguments<'a> {
    /// The tables, or the tiles of them that live here.
    pub tiles: &'a [TileView<'a>],
    /// One per key of `jagged`.
    pub slots: &'a [Slot],
    /// Ids local to their tile.
    pub jagged: &'a KeyedJaggedTensor,
    /// A factor per bag, `[F·B]`, feature-major; `1/L` makes the sum a mean.
    pub bag_scales: Option<&'a [f32]>,
    /// `[B, Σ D]`, overwritten.
    pub out: &'a mut [f32],
}

/// Pools embedding rows: one weighted sum per (sample, slot), all tables in one call.
///
/// `out[b, column_k + d] = scale_{k,b} · Σ_{j ∈ bag(k,b)} weight_j · table_{tile_k}[values_j, d]`
///
/// # Shapes
/// `jagged.values` `[nnz]`; `jagged.offsets` `[F·B + 1]`, feature-major; `out` `[B, Σ D]`,
/// overwritten.
/// # Cost
/// Reads `nnz·(4·D + 8)` bytes and writes `4·B·Σ D`; at most `2·nnz·D` FLOPs, so bandwidth-bound.
/// # Numerics
/// Accumulates in f32 in `values` order; multiplies and adds round separately. Same bytes as
/// [`scalar`] on every instruction set and thread count.
/// # Errors
/// [`Error::Shape`] and [`Error::Jagged`] before any work. [`Error::RowOutOfRange`] names the first
/// id, in `values` order, that is no row; `out` is then unspecified.
/// # Source
/// DLRM, arXiv:1906.00091; table batching, arXiv:2104.05158.
pub fn run(cpu: &Cpu, arguments: Arguments<'_>) -> Result<(), Error> {
    let Arguments { tiles, slots, jagged, bag_scales, out } = arguments;
    let op = "embedding_forward";
    let shape = |tile: usize| {
        let TileView { rows, dim, name, .. } = tiles[tile];
        TileShape { rows, dim, name }
    };
    let lookup = Lookup { op, slots, jagged, bag_scales, shape };
    for tile in tiles {
        lookup.check_extent(
            "weights [rows, D]",
            tile.rows.saturating_mul(tile.dim),
            tile.weights.len(),
        )?;
    }
    let width = lookup.check(tiles.len())?;
    lookup.check_extent("out [B, Σ D]", jagged.batch_size * width, out.len())?;

    let blocks = jagged.batch_size.div_ceil(SAMPLES_PER_CHUNK);
    let out = DisjointMut::new(out);
    let first_bad = AtomicUsize::new(usize::MAX);
    cpu.pool.run(slots.len() * blocks, |chunk| {
        let (feature, first) = (chunk / blocks, chunk % blocks * SAMPLES_PER_CHUNK);
        let samples = first..jagged.batch_size.min(first + SAMPLES_PER_CHUNK);
        let Slot { tile, column } = slots[feature];
        let block = Block {
            tile: &tiles[tile],
            jagged,
            bag_scales,
            feature,
            samples,
            out: &out,
            width,
            column,
        };
        let ids = block.positions();
        match block.tile.first_bad(&jagged.values[ids.clone()]) {
            Some(bad) => _ = first_bad.fetch_min(ids.start + bad, Ordering::Relaxed),
            None => block.pool(cpu.isa),
        }
    });
    match first_bad.into_inner() {
        usize::MAX => Ok(()),
        position => Err(lookup.row_out_of_range(position)),
    }
}

impl TileView<'_> {
    fn first_bad(&self, ids: &[i64]) -> Option<usize> {
        super::slot::first_bad(ids, self.rows)
    }
}

/// One chunk: some samples' bags of one slot. Holds only what [`run`] has checked.
struct Block<'a> {
    tile: &'a TileView<'a>,
    jagged: &'a KeyedJaggedTensor,
    bag_scales: Option<&'a [f32]>,
    feature: usize,
    samples: Range<usize>,
    out: &'a DisjointMut<'a, f32>,
    width: usize,
    column: usize,
}

impl<'a> Block<'a> {
    /// Positions in `values` of all ids of the chunk.
    fn positions(&self) -> Range<usize> {
        let first = self.feature * self.jagged.batch_size;
        let offsets = &self.jagged.offsets;
        offsets[first + self.samples.start]..offsets[first + self.samples.end]
    }

    /// The factor of one bag.
    #[inline(always)]
    fn scale(&self, sample: usize) -> f32 {
        self.bag_scales.map_or(1.0, |scales| scales[self.feature * self.jagged.batch_size + sample])
    }

    /// The output vector of one bag.
    #[expect(unsafe_code, reason = "chunks write different columns of one matrix")]
    #[inline(always)]
    fn out(&self, sample: usize) -> &'a mut [f32] {
        let start = sample * self.width + self.column;
        // SAFETY: `Lookup::check` found that slots' columns do not overlap and end at `width`;
        // chunks differ in slot or samples, each is run by one thread, and a chunk takes one bag at
        // a time.
        unsafe { self.out.part(start..start + self.tile.dim) }
    }

    /// Pools every bag of the chunk, whose ids have been checked.
    fn pool(&self, isa: Isa) {
        match isa {
            Isa::Portable => {
                for sample in self.samples.clone() {
                    let bag = self.jagged.bag(self.feature, sample);
                    let weights = self.jagged.weights.as_ref().map(|all| &all[bag.clone()]);
                    let ids = &self.jagged.values[bag];
                    let scale = self.scale(sample);
                    scalar::pool_bag(self.tile.weights, (ids, weights), scale, self.out(sample));
                }
            }
            Isa::Avx2(token) => simd::pool_avx2(token, self),
            Isa::Avx512(token) => simd::pool_avx512(token, self),
        }
    }
}
