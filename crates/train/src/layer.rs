//! Layers with explicit forward and backward. Each owns its buffers, sized once for the largest
//! batch; parameters live in [`crate::dense`]. What passes between layers is in panels
//! (`device::ops::gemm::panels`), between the linear layers of an MLP in the products' precision;
//! embeddings and the batch are row-major.

pub mod cross;
pub mod interaction;
pub mod linear;
pub mod logit;
pub mod mlp;
mod rounded;

use schema::{Optimizer, Precision};

use crate::dense::{Dense, VectorId, WeightId};
use crate::initial::Initial;

/// Collects the dense parameters while layers are built; their order is part of the checkpoint.
pub struct ParameterList {
    precision: Precision,
    dense: Dense,
    initial: Vec<Initial>,
}

impl ParameterList {
    /// An empty list for a model trained with `optimizer`, whose products are in `precision`.
    #[must_use]
    pub fn new(optimizer: Optimizer, precision: Precision) -> Self {
        Self { precision, dense: Dense::new(optimizer), initial: Vec::new() }
    }

    /// Of the products of the layers that are built.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// All parameters, zero as yet, and how they start, in the order they were added.
    #[must_use]
    pub fn finish(self) -> (Dense, Vec<Initial>) {
        (self.dense, self.initial)
    }

    /// Adds `{name}.weight [output, input]` and `{name}.bias [output]`.
    pub fn add_linear(&mut self, name: &str, shape: (usize, usize)) -> (WeightId, VectorId) {
        self.start_linear(shape);
        let weight = self.dense.add_weight(format!("{name}.weight"), shape, self.precision);
        (weight, self.dense.add_vector(&format!("{name}.bias"), &[shape.0]))
    }

    /// The same for a layer of one output, `{name}.weight [1, input]`, which no matrix product
    /// reads.
    pub fn add_logit(&mut self, name: &str, input: usize) -> (VectorId, VectorId) {
        self.start_linear((1, input));
        let weight = self.dense.add_vector(&format!("{name}.weight"), &[1, input]);
        (weight, self.dense.add_vector(&format!("{name}.bias"), &[1]))
    }

    /// Adds a cross layer's factor `name [output, input]`.
    pub fn add_factor(&mut self, name: String, shape: (usize, usize)) -> WeightId {
        let index = self.initial.len() as u64;
        self.initial.push(Initial::Factor(index, shape));
        self.dense.add_weight(name, shape, self.precision)
    }

    /// Adds a parameter `[length]` that starts at zero.
    pub fn add_zeros(&mut self, name: &str, length: usize) -> VectorId {
        self.initial.push(Initial::Zeros(length));
        self.dense.add_vector(name, &[length])
    }

    /// How the next two parameters start: weight and bias of a linear layer.
    fn start_linear(&mut self, shape: (usize, usize)) {
        let index = self.initial.len() as u64;
        self.initial.push(Initial::Weight(index, shape));
        self.initial.push(Initial::Bias(index, shape));
    }
}
