//! Numbers the rows of all tiles consecutively, and packs row numbers and gradient positions into
//! the pairs that are sorted.

use schema::JaggedTensor;

use super::sort;
use super::tile::TileMut;
use crate::error::Error;
use crate::ops::slot::{KeyPlaces, Lookup, Slot};

/// The layout of a pair: the row number, counted over all tiles, in the upper bits, and the
/// position of its gradient in the lower ones.
pub(super) struct Numbering {
    /// First row number of each tile, followed by the total number of rows, `[T + 1]`.
    pub(super) first_rows: Vec<usize>,
    pub(super) row_bits: u32,
    pub(super) payload_bits: u32,
    /// Whether ids or bags have factors. If so, a pair holds the id's position instead of its
    /// gradient's.
    pub(super) factors: bool,
}

impl Numbering {
    pub(super) fn new<Shape>(
        tiles: &[TileMut<'_>],
        lookup: &Lookup<'_, Shape>,
        places: &KeyPlaces,
    ) -> Result<Self, Error> {
        let mut first_rows = vec![0];
        first_rows.extend(tiles.iter().scan(0usize, |rows, tile| {
            *rows += tile.rows;
            Some(*rows)
        }));
        let factors = lookup.jagged.weights.is_some() || lookup.bag_scales.is_some();
        let payloads = if factors { lookup.jagged.values.len() } else { places.len };
        let row_bits = bits_below(first_rows[tiles.len()]);
        let payload_bits = bits_below(payloads);
        let bits = (row_bits + payload_bits) as usize;
        if bits > 64 {
            let what = "bits of a row number and a place in the gradient, at most";
            return Err(Error::Shape { op: lookup.op, what, expected: 64, got: bits });
        }
        Ok(Self { first_rows, row_bits, payload_bits, factors })
    }

    /// Returns the positions of each tile's ids, with its first row and the bits of its row
    /// numbers. Empty if the slots are not in the order of their tiles.
    pub(super) fn groups(&self, slots: &[Slot], jagged: &JaggedTensor) -> Vec<sort::TilePairs> {
        if !slots.is_sorted_by_key(|slot| slot.tile) {
            return Vec::new();
        }
        let mut groups: Vec<sort::TilePairs> = Vec::new();
        let mut last = None;
        for (key, slot) in slots.iter().enumerate() {
            let positions = jagged.feature(key);
            match groups.last_mut() {
                Some(group) if last == Some(slot.tile) => group.pairs.end = positions.end,
                _ => {
                    let rows = self.first_rows[slot.tile]..self.first_rows[slot.tile + 1];
                    let bits = bits_below(rows.len());
                    groups.push(sort::TilePairs {
                        pairs: positions,
                        first_row: rows.start as u64,
                        bits,
                    });
                }
            }
            last = Some(slot.tile);
        }
        groups
    }

    /// The bits of a pair that hold its row number.
    pub(super) fn key_bits(&self) -> std::ops::Range<u32> {
        self.payload_bits..self.payload_bits + self.row_bits
    }
}

/// Number of bits that represent every number below `count`.
pub(super) fn bits_below(count: usize) -> u32 {
    usize::BITS - count.saturating_sub(1).leading_zeros()
}
