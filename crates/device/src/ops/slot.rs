//! The slots of keys: the tile in which a key is looked up, and its columns in the pooled matrix.
//! The file also has the checks that both embedding operations share. The file does not depend on
//! pooling or optimizers.

use schema::JaggedTensor;

use crate::error::Error;

/// The tile and the output columns of one key. Key `k` of the jagged tensor has slot `k`. Several
/// slots may refer to the same tile, because keys may share a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index of the tile that holds the rows of the key.
    pub tile: usize,
    /// First column of this key's vectors in the pooled matrix.
    pub column: usize,
}

/// The form of a lookup's output for the ids of a bag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotOutput {
    /// The weighted sum of the bag's rows, in a matrix `[B, Σ D]` in which each slot has its own
    /// columns.
    #[default]
    Pooled,
    /// Like [`SlotOutput::Pooled`], in rows of this many elements. Columns without a slot belong to
    /// other calls, and are not written.
    Columns(usize),
    /// The row of each id, key after key `[nnz_k, D_k]`, in the order of `values`. The column of
    /// a slot is unused.
    Sequence,
}

impl SlotOutput {
    /// Returns the elements of a row of the output for slots with these dimensions. A sequence has
    /// no rows of its own, and counts like a pooled output.
    pub(crate) fn row_elements(self, dims: impl Iterator<Item = usize>) -> usize {
        match self {
            Self::Columns(row) => row,
            Self::Pooled | Self::Sequence => dims.sum(),
        }
    }
}

/// The positions at which the vectors of a lookup's output begin, for all keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyPlaces {
    keys: Vec<KeyPlace>,
    /// Number of elements of the whole output.
    pub len: usize,
}

/// The positions at which the vectors of one key begin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyPlace {
    /// The key has one vector per sample. The starts of the vectors are `stride` elements apart.
    Pooled { first: usize, stride: usize },
    /// The key has one vector per position in `values`. The first id of a key may have a position
    /// above 0, so `first` may be negative. The arithmetic on `first` wraps around.
    Sequence { first: usize, stride: usize },
}

impl KeyPlaces {
    /// Creates the positions for an output that has one vector per sample, key by key.
    pub fn by_key(dims: &[usize], samples: usize) -> Self {
        let mut len = 0;
        let place = |&stride: &usize| {
            let first = len;
            len += samples * stride;
            KeyPlace::Pooled { first, stride }
        };
        Self { keys: dims.iter().map(place).collect(), len }
    }

    /// Returns the positions of the first key's vectors.
    pub fn first(&self) -> Option<KeyPlace> {
        self.keys.first().copied()
    }

    /// Returns the positions of the vectors of key `key`.
    #[inline(always)]
    pub fn place(&self, key: usize) -> KeyPlace {
        self.keys[key]
    }
}

impl KeyPlace {
    /// Returns whether all vectors begin at a multiple of `elements`.
    pub fn is_multiple_of(self, elements: usize) -> bool {
        let (Self::Pooled { first, stride } | Self::Sequence { first, stride }) = self;
        first.is_multiple_of(elements) && stride.is_multiple_of(elements)
    }

    /// Returns the start of the vector of a sample, or in a sequence of the id at `position`.
    #[inline(always)]
    pub fn start(self, sample: usize, position: usize) -> usize {
        match self {
            Self::Pooled { first, stride } => first + sample * stride,
            Self::Sequence { first, stride } => first.wrapping_add(position.wrapping_mul(stride)),
        }
    }
}

/// The shape of a tile, without its weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileShape<'a> {
    pub rows: usize,
    pub dim: usize,
    pub name: &'a str,
}

/// The inputs of an embedding call that the checks and their errors need.
pub(crate) struct Lookup<'a, Shape> {
    pub op: &'static str,
    pub slots: &'a [Slot],
    pub jagged: &'a JaggedTensor,
    pub bag_scales: Option<&'a [f32]>,
    pub output: SlotOutput,
    /// Function that returns the shape of a tile, given by its index.
    pub shape: Shape,
}

impl<'a, Shape: Fn(usize) -> TileShape<'a>> Lookup<'a, Shape> {
    /// Checks the layout of the jagged tensor, the slots and the scales. Returns the positions of
    /// the output's vectors, which cover the output without gaps or overlaps.
    pub fn check(&self, tiles: usize) -> Result<KeyPlaces, Error> {
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
            self.check_extent("columns of a tile, at least", dim.max(1), dim)?;
        }
        match self.output {
            SlotOutput::Pooled => self.pooled_places(None),
            SlotOutput::Columns(row) => self.pooled_places(Some(row)),
            SlotOutput::Sequence => Ok(self.sequence_places()),
        }
    }

    fn dim(&self, slot: &Slot) -> usize {
        (self.shape)(slot.tile).dim
    }

    /// Returns the places of slots in rows of `row` elements. Without `row`, the slots must fill
    /// the rows.
    fn pooled_places(&self, row: Option<usize>) -> Result<KeyPlaces, Error> {
        let mut columns: Vec<(usize, usize)> =
            self.slots.iter().map(|slot| (slot.column, self.dim(slot))).collect();
        columns.sort_unstable();
        let width = columns.into_iter().try_fold(0, |next, (column, dim)| {
            if row.is_none() || column < next {
                self.check_extent("first column of a slot, in column order", next, column)?;
            }
            Ok::<_, Error>(column + dim)
        })?;
        let stride = row.unwrap_or(width);
        if width > stride {
            self.check_extent("columns of all slots, at most", stride, width)?;
        }
        let place = |slot: &Slot| KeyPlace::Pooled { first: slot.column, stride };
        let keys = self.slots.iter().map(place).collect();
        Ok(KeyPlaces { keys, len: self.jagged.batch_size * stride })
    }

    fn sequence_places(&self) -> KeyPlaces {
        let mut len = 0;
        let place = |(key, slot): (usize, &Slot)| {
            let (ids, stride) = (self.jagged.feature(key), self.dim(slot));
            let first = usize::wrapping_sub(len, ids.start * stride);
            len += ids.len() * stride;
            KeyPlace::Sequence { first, stride }
        };
        let keys = self.slots.iter().enumerate().map(place).collect();
        KeyPlaces { keys, len }
    }

    /// Returns an error unless `what` has the extent that the operation requires.
    pub fn check_extent(
        &self,
        what: &'static str,
        expected: usize,
        got: usize,
    ) -> Result<(), Error> {
        let op = self.op;
        if expected == got { Ok(()) } else { Err(Error::Shape { op, what, expected, got }) }
    }

    /// Returns the error for the out-of-range id at `position` of `values`.
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

/// Returns the position in `ids` of the first id that is out of range, if there is one.
#[inline]
pub(crate) fn first_bad(ids: &[i64], rows: usize) -> Option<usize> {
    // Negative ids, read as unsigned numbers, are larger than any number of rows.
    let rows = rows as u64;
    if ids.iter().fold(true, |good, &id| good & ((id as u64) < rows)) {
        return None;
    }
    ids.iter().position(|&id| id as u64 >= rows)
}
