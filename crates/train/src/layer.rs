//! Layers with explicit forward and backward passes.
//!
//! Each layer owns its buffers, which are allocated once for the largest batch. Parameters are in
//! [`crate::dense`]. Layers exchange device matrices of f32, or in the precision of the products
//! within an MLP. Embeddings and the batch are row-major.

pub mod cross;
pub mod interaction;
pub mod linear;
pub mod logit;
pub mod mlp;
mod rounded;
pub mod wide;

use device::Backend;
use device::MatrixShape;
use schema::{Optimizer, Precision};

use crate::dense::{Dense, VectorId, WeightId};
use crate::initial::Initial;
use crate::memory::CountingAllocator;

/// Collects the dense parameters while layers are built, and allocates the layers' buffers. The
/// order of the parameters is part of the checkpoint format.
pub struct ParameterList<'a, B: Backend> {
    /// The allocator of the layers' buffers.
    pub room: CountingAllocator<'a, B>,
    precision: Precision,
    dense: Dense<B>,
    initial: Vec<Initial>,
}

impl<'a, B: Backend> ParameterList<'a, B> {
    /// Creates an empty list for a model trained with `optimizer`, whose matrix products use
    /// `precision`.
    #[must_use]
    pub fn new(room: CountingAllocator<'a, B>, optimizer: Optimizer, precision: Precision) -> Self {
        Self { room, precision, dense: Dense::new(optimizer), initial: Vec::new() }
    }

    /// Returns the precision of the matrix products of all layers.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Returns all parameters with values of zero, the distributions of their initial values in the
    /// same order, and the allocator.
    #[must_use]
    pub fn finish(self) -> (Dense<B>, Vec<Initial>, CountingAllocator<'a, B>) {
        (self.dense, self.initial, self.room)
    }

    /// Adds `{name}.weight [output, input]` and `{name}.bias [output]` for a linear layer.
    pub fn add_linear(&mut self, name: &str, shape: MatrixShape) -> (WeightId, VectorId) {
        self.start_linear(shape);
        let weight = self.add_weight(format!("{name}.weight"), shape);
        (weight, self.add_vector(&format!("{name}.bias"), &[shape.rows]))
    }

    /// Adds `{name}.weight [1, input]` and `{name}.bias [1]` for a layer with one output. Matrix
    /// products do not read this weight, so it is a vector.
    pub fn add_logit(&mut self, name: &str, input: usize) -> (VectorId, VectorId) {
        self.start_linear(MatrixShape::new(1, input));
        let weight = self.add_vector(&format!("{name}.weight"), &[1, input]);
        (weight, self.add_vector(&format!("{name}.bias"), &[1]))
    }

    /// Adds `{name}.weight [1, input]` for a layer with one output and without a bias.
    pub fn add_column(&mut self, name: &str, input: usize) -> VectorId {
        let index = self.initial.len() as u64;
        self.initial.push(Initial::Weight(index, MatrixShape::new(1, input)));
        self.add_vector(&format!("{name}.weight"), &[1, input])
    }

    /// Adds `name [output, input]`, one of the two factors of a cross layer's weight.
    pub fn add_factor(&mut self, name: String, shape: MatrixShape) -> WeightId {
        let index = self.initial.len() as u64;
        self.initial.push(Initial::Factor(index, shape));
        self.add_weight(name, shape)
    }

    /// Adds a parameter of shape `[length]` whose initial values are zero.
    pub fn add_zeros(&mut self, name: &str, length: usize) -> VectorId {
        self.initial.push(Initial::Zeros(length));
        self.add_vector(name, &[length])
    }

    fn add_weight(&mut self, name: String, shape: MatrixShape) -> WeightId {
        self.dense.add_weight(&mut self.room, name, shape, self.precision)
    }

    fn add_vector(&mut self, name: &str, shape: &[usize]) -> VectorId {
        self.dense.add_vector(&mut self.room, name, shape)
    }

    /// Registers the initial distributions of a linear layer's weight and bias, which are added
    /// next.
    fn start_linear(&mut self, shape: MatrixShape) {
        let index = self.initial.len() as u64;
        self.initial.push(Initial::Weight(index, shape));
        self.initial.push(Initial::Bias(index, shape));
    }
}
