//! Which ids of a batch each rank looks up. `message` holds the ids themselves.

use std::ops::Range;

use schema::JaggedTensor;

/// A feature, or a position of a sequence feature, whose ids are looked up in one tile. Each slot
/// becomes a key of the ids that the tile's rank looks up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdSlot {
    /// Number of the feature in the batch.
    pub feature: usize,
    /// Position of the single id that is looked up, for a feature that is a sequence.
    pub position: Option<usize>,
    /// Rows of the tile. The ids of a slot are counted from the first of them.
    pub rows: Range<i64>,
    /// Whether the tile holds all rows, so that no id has to be filtered.
    pub all_rows: bool,
    /// Whether a bag of L ids is scaled by 1/L, whichever of its ids the tile holds.
    pub mean: bool,
}

impl IdSlot {
    /// Returns the part of a sample's bag that the slot looks up: the whole bag, or the one id at
    /// the slot's position, or nothing if the sequence is shorter.
    #[inline]
    #[must_use]
    pub fn positions(&self, sparse: &JaggedTensor, sample: usize) -> Range<usize> {
        let bag = sparse.bag(self.feature, sample);
        match self.position {
            None => bag,
            Some(position) => {
                let at = bag.start + position;
                at.min(bag.end)..(at + 1).min(bag.end)
            }
        }
    }

    /// Returns the factor of the sum of a bag with `length` ids.
    #[inline]
    #[must_use]
    pub fn bag_scale(&self, length: usize) -> f32 {
        if self.mean && length > 0 { 1.0 / length as f32 } else { 1.0 }
    }

    /// Counts the ids of a batch that the slot looks up.
    #[must_use]
    pub fn count(&self, sparse: &JaggedTensor) -> usize {
        if self.all_rows && self.position.is_none() {
            return sparse.feature(self.feature).len();
        }
        let is_own = |position: &usize| self.rows.contains(&sparse.values[*position]);
        let own = |sample| self.positions(sparse, sample).filter(is_own).count();
        (0..sparse.batch_size).map(own).sum()
    }
}

/// The slots of all ranks, which are the same on every rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdLayout {
    /// `slots[r]` are the slots of the tiles of rank `r`.
    pub slots: Vec<Vec<IdSlot>>,
    /// Index of this rank.
    pub own: usize,
    /// Whether bags have scales, because a slot of any rank has means.
    pub has_scales: bool,
}

impl IdLayout {
    /// Returns the number of slots of all ranks.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.slots.iter().map(Vec::len).sum()
    }

    /// Returns how many slots look up an id of each of `features` features, at most. The slots of
    /// an id are those of the column tiles of its row.
    #[must_use]
    pub fn copies(&self, features: usize) -> Vec<usize> {
        // A feature may have slots of whole bags beside those of positions, and each position has
        // other ids.
        let mut copies = vec![[0, 0]; features];
        let slots = || self.slots.iter().flatten();
        for slot in slots() {
            let looks_up = |other: &&IdSlot| {
                (other.feature, other.position) == (slot.feature, slot.position)
                    && other.rows.contains(&slot.rows.start)
            };
            let most = &mut copies[slot.feature][usize::from(slot.position.is_some())];
            *most = slots().filter(looks_up).count().max(*most);
        }
        copies.into_iter().map(|[bags, positions]| bags + positions).collect()
    }
}
