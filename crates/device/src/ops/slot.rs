//! Where a key's bags go: its table and its columns of the pooled matrix; and the checks that both
//! embedding operations share. Knows nothing of pooling or of optimizers.

use schema::KeyedJaggedTensor;

use crate::error::Error;

/// Key `k` of the jagged tensor is slot `k`. Several slots may name the same tile (a shared table).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index of the tile that holds the rows.
    pub tile: usize,
    /// First column of this key's vectors in the pooled matrix.
    pub column: usize,
}

/// The shape of a tile, without its numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileShape<'a> {
    pub rows: usize,
    pub dim: usize,
    pub name: &'a str,
}

/// One embedding call's jagged side: what the checks need, and the error they end in.
pub(crate) struct Lookup<'a, Shape> {
    pub op: &'static str,
    pub slots: &'a [Slot],
    pub jagged: &'a KeyedJaggedTensor,
    pub bag_scales: Option<&'a [f32]>,
    /// Shape of tile `t`.
    pub shape: Shape,
}

impl<'a, Shape: Fn(usize) -> TileShape<'a>> Lookup<'a, Shape> {
    /// Checks the layout of the jagged tensor, the slots and the scales; gives the width Σ D of the
    /// pooled matrix, which the slots' columns tile without gap or overlap.
    pub fn check(&self, tiles: usize) -> Result<usize, Error> {
        self.jagged.check().map_err(|cause| Error::Jagged { op: self.op, cause })?;
        self.check_extent("slots: one per key", self.jagged.features, self.slots.len())?;
        if let Some(scales) = self.bag_scales {
            let bags = self.jagged.features * self.jagged.batch_size;
            self.check_extent("bag_scales [F·B]", bags, scales.len())?;
        }
        if let Some(slot) = self.slots.iter().find(|slot| slot.tile >= tiles) {
            let (op, what) = (self.op, "tile index of a slot, below");
            return Err(Error::Shape { op, what, expected: tiles, got: slot.tile });
        }
        for tile in 0..tiles {
            let dim = (self.shape)(tile).dim;
            self.check_extent("D of a tile, at least", dim.max(1), dim)?;
        }
        let mut columns: Vec<(usize, usize)> =
            self.slots.iter().map(|s| (s.column, s.tile)).collect();
        columns.sort_unstable();
        columns.into_iter().try_fold(0, |next, (column, tile)| {
            self.check_extent("first column of a slot, in column order", next, column)?;
            Ok(next + (self.shape)(tile).dim)
        })
    }

    /// Whether `what` has the extent the contract asks for.
    pub fn check_extent(
        &self,
        what: &'static str,
        expected: usize,
        got: usize,
    ) -> Result<(), Error> {
        let op = self.op;
        if expected == got { Ok(()) } else { Err(Error::Shape { op, what, expected, got }) }
    }

    /// The error for the id at `position` of `values`.
    pub fn row_out_of_range(&self, position: usize) -> Error {
        let bag = self.jagged.offsets.partition_point(|&offset| offset <= position) - 1;
        let (feature, sample) = (bag / self.jagged.batch_size, bag % self.jagged.batch_size);
        let tile = (self.shape)(self.slots[feature].tile);
        Error::RowOutOfRange {
            table: tile.name.to_owned(),
            sample,
            feature,
            id: self.jagged.values[position],
            rows: tile.rows,
        }
    }
}

/// Position in `ids` of the first id that names no row, if any.
#[inline]
pub(crate) fn first_bad(ids: &[i64], rows: usize) -> Option<usize> {
    // A negative id is a huge one when read as unsigned.
    let rows = rows as u64;
    if ids.iter().fold(true, |good, &id| good & ((id as u64) < rows)) {
        return None;
    }
    ids.iter().position(|&id| id as u64 >= rows)
}
