//! The bags of some samples of one slot: the ids that are summed and the output vector of each
//! sum.

use std::ops::Range;

use schema::JaggedTensor;

use super::scalar;
use crate::cpu::DisjointMut;
use crate::ops::slot::{KeyPlace, first_bad};
use crate::weights::{StoredWeight, WeightsView};

/// One tile of an embedding table, for reading only.
#[derive(Clone, Copy, Debug)]
pub struct TileView<'a> {
    /// Weights of the tile, `[rows, dim]`.
    pub weights: WeightsView<'a>,
    /// Number of rows of the tile.
    pub rows: usize,
    /// Number of columns of the tile, above 0.
    pub dim: usize,
    /// Name of the tile's table, for error messages.
    pub name: &'a str,
}

impl TileView<'_> {
    /// Returns the position of the first out-of-range id in `ids`.
    pub(super) fn first_bad(&self, ids: &[i64]) -> Option<usize> {
        first_bad(ids, self.rows)
    }
}

/// The bags of some samples of one slot, whose contents [`run`] has checked.
pub(super) struct BagBlock<'a> {
    pub(super) tile: &'a TileView<'a>,
    pub(super) jagged: &'a JaggedTensor,
    pub(super) bag_scales: Option<&'a [f32]>,
    pub(super) feature: usize,
    pub(super) samples: Range<usize>,
    pub(super) out: &'a DisjointMut<'a, f32>,
    pub(super) place: KeyPlace,
    /// Whether the output vectors are whole cache lines and are stored past the caches.
    pub(super) past_caches: bool,
}

impl<'a> BagBlock<'a> {
    /// Returns the positions in `values` of all ids of the block.
    pub(super) fn positions(&self) -> Range<usize> {
        let first = self.feature * self.jagged.batch_size;
        let offsets = &self.jagged.offsets;
        offsets[first + self.samples.start]..offsets[first + self.samples.end]
    }

    /// Returns the scale factor of one bag.
    #[inline(always)]
    pub(super) fn scale(&self, sample: usize) -> f32 {
        self.bag_scales.map_or(1.0, |scales| scales[self.feature * self.jagged.batch_size + sample])
    }

    /// Returns the next positions to sum, starting at `at`: the whole bag, or one id of a sequence.
    #[inline(always)]
    pub(super) fn summed(&self, bag: &Range<usize>, at: usize) -> Range<usize> {
        match self.place {
            KeyPlace::Pooled { .. } => bag.clone(),
            KeyPlace::Sequence { .. } => at..at + 1,
        }
    }

    /// Returns whether a bag produces no output vector, as an empty bag of a sequence does.
    #[inline(always)]
    pub(super) fn gives_nothing(&self, bag: &Range<usize>) -> bool {
        bag.is_empty() && matches!(self.place, KeyPlace::Sequence { .. })
    }

    /// Returns the output vector of a bag, or of the id at `position` in the bag.
    #[expect(unsafe_code, reason = "each chunk writes its own part of a shared output")]
    #[inline(always)]
    pub(super) fn out(&self, sample: usize, position: usize) -> &'a mut [f32] {
        let start = self.place.start(sample, position);
        // SAFETY: `Lookup::check` verified that the vectors lie in the output without overlap.
        // Two chunks differ in slot or samples, one thread runs each chunk, and a chunk borrows
        // one vector at a time.
        unsafe { self.out.part(start..start + self.tile.dim) }
    }

    /// Pools every bag with scalar code, on any machine. The ids have already been checked.
    pub(super) fn pool_portable<E: StoredWeight>(&self, table: &[E]) {
        for sample in self.samples.clone() {
            let bag = self.jagged.bag(self.feature, sample);
            if self.gives_nothing(&bag) {
                continue;
            }
            let mut at = bag.start;
            loop {
                let summed = self.summed(&bag, at);
                at = summed.end;
                let out = self.out(sample, summed.start);
                let weights = self.jagged.weights.as_ref().map(|all| &all[summed.clone()]);
                let ids = &self.jagged.values[summed];
                scalar::pool_bag(table, ids, weights, self.scale(sample), out);
                if at >= bag.end {
                    break;
                }
            }
        }
    }
}
