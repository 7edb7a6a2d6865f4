//! Maps columns of pooled vectors to their source ranks and destinations. `exchange` moves the
//! values.

/// Columns of a pooled vector that one rank looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PooledColumns {
    pub rank: usize,
    /// First of these columns in the matrix that the rank sends.
    pub from: usize,
    /// First of these columns in the pooled vector.
    pub to: usize,
    pub len: usize,
    /// Whether this is the first partial sum of these columns. The first partial sum is written,
    /// and later ones are added to it.
    pub first: bool,
}

/// Columns of a gradient that belong to the tiles of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedColumns {
    /// First of these columns in the gradient.
    pub from: usize,
    /// First of these columns in the matrix that the rank receives.
    pub to: usize,
    pub len: usize,
}

impl OwnedColumns {
    /// Describes these columns as the source of a gather from a single matrix.
    #[must_use]
    pub fn as_source(&self) -> PooledColumns {
        let Self { from, to, len } = *self;
        PooledColumns { rank: 0, from, to, len, first: true }
    }
}

/// The matrices that the ranks send, each `[B, width]`.
#[derive(Clone, Copy, Debug)]
pub struct GivenMatrices<'a> {
    /// Index of this rank, and its own matrix.
    pub own: (usize, &'a [f32]),
    /// Matrices of all ranks, by rank. The entry of this rank is unused.
    pub others: &'a [Vec<f32>],
    /// Number of columns of each rank's matrix.
    pub widths: &'a [usize],
}

impl<'a> GivenMatrices<'a> {
    /// Returns the matrix that `rank` sent.
    #[inline]
    #[must_use]
    pub fn from_rank(&self, rank: usize) -> &'a [f32] {
        if rank == self.own.0 { self.own.1 } else { &self.others[rank] }
    }
}
