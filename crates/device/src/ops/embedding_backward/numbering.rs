//! Numbers for the rows of all tiles, packed with places of gradients into what is sorted.

use schema::JaggedTensor;

use super::sort;
use super::tile::TileMut;
use crate::error::Error;
use crate::ops::slot::{KeyPlaces, Lookup, Slot};

/// How a pair packs a row, counted over all tiles, above where its gradient is found.
pub(super) struct Numbering {
    /// First row number of each tile, and after the last tile the number of all rows, `[T + 1]`.
    pub(super) first_rows: Vec<usize>,
    pub(super) row_bits: u32,
    pub(super) payload_bits: u32,
    /// Whether ids or bags have factors: then a pair holds a position, else a place.
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

    /// The positions of each tile's ids with its first row and the bits its rows need; none where
    /// the slots do not come in the order of their tiles.
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

    /// The bits of a pair that hold its row.
    pub(super) fn key_bits(&self) -> std::ops::Range<u32> {
        self.payload_bits..self.payload_bits + self.row_bits
    }
}

/// Bits that hold every number below `count`.
pub(super) fn bits_below(count: usize) -> u32 {
    usize::BITS - count.saturating_sub(1).leading_zeros()
}
