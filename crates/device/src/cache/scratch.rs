//! Scratch slots: rows that their set does not take, because all its ways are locked or hold rows
//! that are used more often. A row stays in its scratch slot until another row needs the slot.

use std::collections::HashMap;

use super::set::{LostRow, RowAccess};

/// The rows in scratch slots, which are numbered after the ways of all sets.
#[derive(Clone, Debug)]
pub(super) struct ScratchSlots {
    /// Number of the first scratch slot.
    first: usize,
    places: Vec<ScratchSlot>,
    /// The place of each row. It is only looked up, never iterated, so its order does not matter.
    by_row: HashMap<u64, u32>,
    /// Place after the one that was taken last. Slots are taken in turn, so rows that came first
    /// leave first.
    next: usize,
    /// Number of locked slots.
    locked: usize,
}

/// One slot and its row.
#[derive(Clone, Copy, Debug, Default)]
struct ScratchSlot {
    row: Option<u64>,
    locks: u8,
    is_changed: bool,
}

impl ScratchSlots {
    /// Creates `count` empty slots.
    pub fn new(first: usize, count: usize) -> Self {
        let places = vec![ScratchSlot::default(); count];
        Self { first, places, by_row: HashMap::with_capacity(count), next: 0, locked: 0 }
    }

    /// Returns the approximate bytes of `count` slots.
    pub fn bytes(count: usize) -> usize {
        // A hash table keeps up to an eighth of its entries free, and a byte of control for each.
        let entry = (size_of::<(u64, u32)>() + 1) * 2;
        count * (size_of::<ScratchSlot>() + entry)
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether a slot of the cache is a scratch slot.
    pub fn contains_slot(&self, slot: u32) -> bool {
        slot as usize >= self.first
    }

    /// Returns the slot of a row, if it has one.
    pub fn find(&self, row: u64) -> Option<u32> {
        self.by_row.get(&row).map(|&place| (self.first + place as usize) as u32)
    }

    /// Locks a slot for one more batch.
    pub fn lock(&mut self, slot: u32) {
        let place = &mut self.places[slot as usize - self.first];
        self.locked += usize::from(place.locks == 0);
        place.locks += 1;
    }

    /// Puts a row into the next unlocked slot and locks it. Returns the slot and the row that lost
    /// it, or `None` if all slots are locked.
    pub fn insert(&mut self, row: u64) -> Option<(u32, Option<LostRow>)> {
        if self.locked == self.places.len() {
            return None;
        }
        while self.places[self.next].locks > 0 {
            self.next = (self.next + 1) % self.places.len();
        }
        let place = &mut self.places[self.next];
        let is_changed = place.is_changed;
        let lost = place.row.map(|row| LostRow { row, is_changed, rank: 0 });
        *place = ScratchSlot { row: Some(row), locks: 1, is_changed: false };
        self.locked += 1;
        if let Some(lost) = lost {
            self.by_row.remove(&lost.row);
        }
        self.by_row.insert(row, self.next as u32);
        let slot = (self.first + self.next) as u32;
        self.next = (self.next + 1) % self.places.len();
        Some((slot, lost))
    }

    /// Empties and unlocks a slot.
    pub fn clear(&mut self, slot: u32) {
        let place = std::mem::take(&mut self.places[slot as usize - self.first]);
        self.locked -= usize::from(place.locks > 0);
        place.row.and_then(|row| self.by_row.remove(&row));
    }

    /// Puts a row back into the empty slot that it had lost.
    pub fn put_back(&mut self, slot: u32, lost: LostRow) {
        let place = slot as usize - self.first;
        self.places[place] =
            ScratchSlot { row: Some(lost.row), locks: 0, is_changed: lost.is_changed };
        self.by_row.insert(lost.row, place as u32);
    }

    /// Unlocks a slot for one batch.
    pub fn release(&mut self, slot: u32, access: RowAccess) {
        let place = &mut self.places[slot as usize - self.first];
        assert!(place.locks > 0, "a batch releases slots that it has locked");
        place.locks -= 1;
        place.is_changed |= access == RowAccess::Updated;
        self.locked -= usize::from(place.locks == 0);
    }
}
