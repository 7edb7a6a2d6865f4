//! Numbers the rows of all tiles consecutively, and packs row numbers and gradient positions into
//! the pairs that the second phase sorts.

use schema::JaggedTensor;

use super::sort;
use super::tile::TileMut;
use crate::error::Error;
use crate::ops::slot::{KeyPlaces, Lookup, Slot};

/// The layout of a pair. The upper bits hold the row number, counted over all tiles, and the
/// lower bits hold the position of the row's gradient.
pub(super) struct Numbering {
    /// First row number of each tile, followed by the total number of rows, `[T + 1]`.
    pub(super) first_rows: Vec<usize>,
    pub(super) row_bits: u32,
    pub(super) payload_bits: u32,
    /// Whether ids or bags have factors. With factors, a pair holds the position of the id
    /// instead of the position of its gradient.
    pub(super) factors: bool,
}

impl Numbering {
    pub(super) fn new<Shape>(
        tiles: &[TileMut<'_>],
        lookup: &Lookup<'_, Shape>,
        places: &KeyPlaces,
    ) -> Result<Self, Error> {
        let first_rows = first_rows_of(tiles);
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

    /// Returns the positions of each tile's ids, with the tile's first row and the bits of its
    /// row numbers. The list is empty if the slots are not in the order of their tiles.
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

    /// Returns the range of bits of a pair that hold its row number.
    pub(super) fn key_bits(&self) -> std::ops::Range<u32> {
        self.payload_bits..self.payload_bits + self.row_bits
    }
}

/// Returns the first row number of each tile, followed by the total number of rows, `[T + 1]`.
pub(super) fn first_rows_of(tiles: &[TileMut<'_>]) -> Vec<usize> {
    let mut first_rows = vec![0];
    first_rows.extend(tiles.iter().scan(0usize, |rows, tile| {
        *rows += tile.rows;
        Some(*rows)
    }));
    first_rows
}

/// Returns the number of bits that represent every number below `count`.
pub(super) fn bits_below(count: usize) -> u32 {
    usize::BITS - count.saturating_sub(1).leading_zeros()
}
