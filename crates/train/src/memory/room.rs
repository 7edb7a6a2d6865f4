//! Where the buffers of a model come from: the allocator, or nowhere, to count what they would
//! take. One constructor serves both, so that a count cannot differ from what is built.

use std::collections::BTreeMap;

use device::buffer::Array;
use device::ops::gemm::{LinearWeight, Matrix};
use schema::Precision;

use super::MemoryUse;

/// Hands out buffers of zeros and counts them.
#[derive(Debug)]
pub struct Room {
    source: Source,
    counts: BTreeMap<MemoryUse, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Allocator,
    Nowhere,
}

impl Room {
    /// Buffers to work with.
    #[must_use]
    pub fn allocating() -> Self {
        Self { source: Source::Allocator, counts: BTreeMap::new() }
    }

    /// Buffers of no length, to be counted only.
    #[must_use]
    pub fn counting() -> Self {
        Self { source: Source::Nowhere, counts: BTreeMap::new() }
    }

    /// Counts bytes that are allocated elsewhere.
    pub fn count(&mut self, of: MemoryUse, bytes: usize) {
        let count = self.counts.entry(of).or_default();
        *count = count.saturating_add(bytes as u64);
    }

    /// Bytes of each use.
    #[must_use]
    pub fn finish(self) -> BTreeMap<MemoryUse, u64> {
        self.counts
    }

    /// An array of `len` zeros.
    pub fn array(&mut self, of: MemoryUse, len: usize) -> Array<f32> {
        self.count(of, Array::<f32>::bytes(len));
        Array::zeroed(self.real(len))
    }

    /// A vector of `len` zeros.
    pub fn values(&mut self, of: MemoryUse, len: usize) -> Vec<f32> {
        self.count(of, len * size_of::<f32>());
        vec![0.0; self.real(len)]
    }

    /// Room for a matrix `[rows, columns]`.
    pub fn matrix(
        &mut self,
        of: MemoryUse,
        precision: Precision,
        (rows, columns): (usize, usize),
    ) -> Matrix {
        self.count(of, Matrix::bytes(precision, rows, columns));
        Matrix::new(precision, self.real(rows), columns)
    }

    /// A weight `[n, k]` of zeros.
    pub fn weight(&mut self, shape: (usize, usize), precision: Precision) -> LinearWeight {
        self.count(MemoryUse::DenseParameters, LinearWeight::bytes(shape, precision));
        LinearWeight::new((self.real(shape.0), self.real(shape.1)), precision)
    }

    fn real(&self, len: usize) -> usize {
        if self.source == Source::Allocator { len } else { 0 }
    }
}
