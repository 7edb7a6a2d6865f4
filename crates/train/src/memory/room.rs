//! Allocates the buffers of a model, or only counts their size. One constructor serves both, so
//! that the count cannot differ from the allocation.

use std::collections::BTreeMap;

use device::Backend;
use device::backend::{ExchangeLayout, TileValues, WeightShape};
use device::ops::{Slot, interaction};
use schema::Precision;

use super::MemoryUse;

/// Hands out buffers of zeros and counts them.
pub struct ZeroBuffers<'a, B> {
    /// Where they come from; from nowhere if there is none.
    device: Option<&'a B>,
    counts: BTreeMap<MemoryUse, u64>,
    /// The first refusal of the device; what is handed out from then on has no length.
    refused: Option<device::Error>,
}

impl<'a, B: Backend> ZeroBuffers<'a, B> {
    /// Buffers of `device` to work with.
    #[must_use]
    pub fn new(device: &'a B) -> Self {
        Self { device: Some(device), counts: BTreeMap::new(), refused: None }
    }

    /// Buffers of no length, to be counted only.
    #[must_use]
    pub fn counting() -> Self {
        Self { device: None, counts: BTreeMap::new(), refused: None }
    }

    /// Counts bytes that are allocated elsewhere.
    pub fn count(&mut self, of: MemoryUse, bytes: usize) {
        let count = self.counts.entry(of).or_default();
        *count = count.saturating_add(bytes as u64);
    }

    /// Bytes of each use.
    #[must_use]
    pub fn counts(self) -> BTreeMap<MemoryUse, u64> {
        self.counts
    }

    /// Whether all of it could be made.
    ///
    /// # Errors
    /// The first refusal of the device.
    pub fn finish(self) -> Result<(), device::Error> {
        self.refused.map_or(Ok(()), Err)
    }

    /// A vector of `len` zeros.
    pub fn vector(&mut self, of: MemoryUse, len: usize) -> B::Vector {
        self.count(of, B::vector_bytes(len));
        self.made(|device| device.vector(len))
    }

    /// Room for a matrix `[rows, columns]`.
    pub fn matrix(
        &mut self,
        of: MemoryUse,
        precision: Precision,
        (rows, columns): (usize, usize),
    ) -> B::Matrix {
        self.count(of, B::matrix_bytes(precision, rows, columns));
        self.made(|device| device.matrix(precision, rows, columns))
    }

    /// A weight of zeros with gradient and state.
    pub fn weight(&mut self, shape: WeightShape) -> B::Weight {
        self.count(MemoryUse::DenseParameters, B::weight_bytes(shape));
        self.made(|device| device.weight(shape))
    }

    /// The tiles of a rank, which are counted apart.
    pub fn tables(&mut self, tiles: Vec<TileValues>, slots: Vec<Slot>) -> B::Tables {
        self.made(|device| device.tables(tiles, slots))
    }

    /// The exchange of pooled vectors with other ranks.
    pub fn exchange(&mut self, layout: ExchangeLayout) -> B::Exchange {
        self.made(|device| device.exchange(layout))
    }

    /// Has the device refuse a dot interaction that it cannot run.
    pub fn check_interaction(&mut self, shape: &interaction::Shape) {
        self.made(|device| device.check_interaction(shape));
    }

    /// The numbers of a step.
    pub fn scalars(&mut self) -> B::Scalars {
        self.made(B::scalars)
    }

    fn made<T: Default>(&mut self, make: impl FnOnce(&B) -> Result<T, device::Error>) -> T {
        let Some(device) = self.device else { return T::default() };
        make(device).unwrap_or_else(|error| {
            self.refused.get_or_insert(error);
            T::default()
        })
    }
}
