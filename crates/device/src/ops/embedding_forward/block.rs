//! Some samples' bags of one slot: which ids are summed, and where the sums go.

use std::ops::Range;

use schema::JaggedTensor;

use super::scalar;
use crate::cpu::DisjointMut;
use crate::ops::slot::{KeyPlace, first_bad};
use crate::weights::{StoredWeight, WeightsView};

/// One tile of a table, read only.
#[derive(Clone, Copy, Debug)]
pub struct TileView<'a> {
    /// `[rows, dim]`.
    pub weights: WeightsView<'a>,
    /// Rows of the tile.
    pub rows: usize,
    /// Columns of the tile, above 0.
    pub dim: usize,
    /// Name of the table, for messages.
    pub name: &'a str,
}

impl TileView<'_> {
    /// The first of `ids` that no row has.
    pub(super) fn first_bad(&self, ids: &[i64]) -> Option<usize> {
        first_bad(ids, self.rows)
    }
}

/// Some samples' bags of one slot. Holds only what [`run`] has checked.
pub(super) struct BagBlock<'a> {
    pub(super) tile: &'a TileView<'a>,
    pub(super) jagged: &'a JaggedTensor,
    pub(super) bag_scales: Option<&'a [f32]>,
    pub(super) feature: usize,
    pub(super) samples: Range<usize>,
    pub(super) out: &'a DisjointMut<'a, f32>,
    pub(super) place: KeyPlace,
    /// Whether its vectors are whole cache lines and go past the caches.
    pub(super) past_caches: bool,
}

impl<'a> BagBlock<'a> {
    /// Positions in `values` of all ids of the block.
    pub(super) fn positions(&self) -> Range<usize> {
        let first = self.feature * self.jagged.batch_size;
        let offsets = &self.jagged.offsets;
        offsets[first + self.samples.start]..offsets[first + self.samples.end]
    }

    /// The factor of one bag.
    #[inline(always)]
    pub(super) fn scale(&self, sample: usize) -> f32 {
        self.bag_scales.map_or(1.0, |scales| scales[self.feature * self.jagged.batch_size + sample])
    }

    /// The positions that are summed after those before `at` have been: all of a bag, or one.
    #[inline(always)]
    pub(super) fn summed(&self, bag: &Range<usize>, at: usize) -> Range<usize> {
        match self.place {
            KeyPlace::Pooled { .. } => bag.clone(),
            KeyPlace::Sequence { .. } => at..at + 1,
        }
    }

    /// Whether a bag gives no vector at all.
    #[inline(always)]
    pub(super) fn gives_nothing(&self, bag: &Range<usize>) -> bool {
        bag.is_empty() && matches!(self.place, KeyPlace::Sequence { .. })
    }

    /// The output vector of a bag, or of the id at `position` in it.
    #[expect(unsafe_code, reason = "chunks write different parts of one output")]
    #[inline(always)]
    pub(super) fn out(&self, sample: usize, position: usize) -> &'a mut [f32] {
        let start = self.place.start(sample, position);
        // SAFETY: `Lookup::check` found that the vectors do not overlap and lie in the output;
        // chunks differ in slot or samples, each is run by one thread, and a chunk takes one vector
        // at a time.
        unsafe { self.out.part(start..start + self.tile.dim) }
    }

    /// Pools every bag, whose ids have been checked, on any machine.
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
