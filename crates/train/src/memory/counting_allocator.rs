//! Allocates the buffers of a model, or only counts their size. One constructor serves both
//! purposes, so that the count cannot differ from the allocation.

use std::collections::BTreeMap;

use device::Backend;
use device::MatrixShape;
use device::backend::{ExchangeLayout, TableValues, WeightShape};
use device::ops::interaction;
use device::ops::jagged::IdLayout;
use schema::Precision;

use super::MemoryUse;

/// Allocates zeroed buffers on a device and counts their bytes by purpose. Without a device it only
/// counts, and the buffers are empty.
pub struct CountingAllocator<'a, B> {
    /// The device, or `None` to count bytes without allocating them.
    device: Option<&'a B>,
    counts: BTreeMap<MemoryUse, u64>,
    /// The first error of the device. Buffers that are requested after the error are empty.
    refused: Option<device::Error>,
}

impl<'a, B: Backend> CountingAllocator<'a, B> {
    /// Creates an allocator that allocates its buffers on `device`.
    #[must_use]
    pub fn new(device: &'a B) -> Self {
        Self { device: Some(device), counts: BTreeMap::new(), refused: None }
    }

    /// Creates an allocator that only counts and returns empty buffers.
    #[must_use]
    pub fn counting() -> Self {
        Self { device: None, counts: BTreeMap::new(), refused: None }
    }

    /// Adds bytes that are allocated elsewhere to the count.
    pub fn count(&mut self, of: MemoryUse, bytes: usize) {
        let count = self.counts.entry(of).or_default();
        *count = count.saturating_add(bytes as u64);
    }

    /// Returns the bytes counted for each purpose.
    #[must_use]
    pub fn counts(self) -> BTreeMap<MemoryUse, u64> {
        self.counts
    }

    /// Reports whether every allocation succeeded.
    ///
    /// # Errors
    /// Returns the first error of the device.
    pub fn finish(self) -> Result<(), device::Error> {
        self.refused.map_or(Ok(()), Err)
    }

    /// Allocates a vector of `len` zeros.
    pub fn vector(&mut self, of: MemoryUse, len: usize) -> B::Vector {
        self.count(of, B::vector_bytes(len));
        self.made(|device| device.vector(len))
    }

    /// Allocates a matrix of the given shape.
    pub fn matrix(&mut self, of: MemoryUse, precision: Precision, shape: MatrixShape) -> B::Matrix {
        let MatrixShape { rows, columns } = shape;
        self.count(of, B::matrix_bytes(precision, rows, columns));
        self.made(|device| device.matrix(precision, rows, columns))
    }

    /// Allocates a weight of zeros with gradient and optimizer state.
    pub fn weight(&mut self, shape: WeightShape) -> B::Weight {
        self.count(MemoryUse::DenseParameters, B::weight_bytes(shape));
        self.made(|device| device.weight(shape))
    }

    /// Moves the tiles of a rank to the device. The bytes of the tiles are counted separately.
    pub fn tables(&mut self, values: TableValues) -> B::Tables {
        self.made(|device| device.tables(values))
    }

    /// Creates the buffers of an exchange of ids, which grow with the batches.
    pub fn ids(&mut self, layout: IdLayout) -> B::Ids {
        self.made(|device| device.ids(layout))
    }

    /// Creates the device's part of the exchange of pooled vectors with other ranks.
    pub fn exchange(&mut self, layout: ExchangeLayout) -> B::Exchange {
        self.made(|device| device.exchange(layout))
    }

    /// Records an error if the device cannot run a dot interaction of this shape.
    pub fn check_interaction(&mut self, shape: &interaction::Shape) {
        self.made(|device| device.check_interaction(shape));
    }

    /// Allocates the scalars of a step, such as learning rates.
    pub fn scalars(&mut self) -> B::Scalars {
        self.made(B::scalars)
    }

    fn made<T: Default>(&mut self, make: impl FnOnce(&B) -> Result<T, device::Error>) -> T {
        let Some(device) = self.device else { return T::default() };
        make(device).unwrap_or_else(|error| {
            // Continue with an empty buffer, so that constructors cannot fail. `finish` returns the
            // error.
            self.refused.get_or_insert(error);
            T::default()
        })
    }
}
