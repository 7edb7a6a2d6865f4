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

use schema::{ModelConfig, Optimizer, Precision};

use crate::dense::{Dense, VectorId, WeightId};
use crate::initial;

/// Collects the dense parameters while layers are built; their order is part of the checkpoint.
pub struct ParameterList<'a> {
    model: &'a ModelConfig,
    precision: Precision,
    dense: Dense,
    initial: Vec<Vec<f32>>,
}

impl<'a> ParameterList<'a> {
    /// An empty list for `model`, trained with `optimizer`, whose products are in `precision`.
    #[must_use]
    pub fn new(model: &'a ModelConfig, optimizer: Optimizer, precision: Precision) -> Self {
        Self { model, precision, dense: Dense::new(optimizer), initial: Vec::new() }
    }

    /// Of the products of the layers that are built.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// All parameters, zero as yet, and their initial values, in the order they were added.
    #[must_use]
    pub fn finish(self) -> (Dense, Vec<Vec<f32>>) {
        (self.dense, self.initial)
    }

    /// Adds `{name}.weight [output, input]` and `{name}.bias [output]`.
    pub fn add_linear(&mut self, name: &str, shape: (usize, usize)) -> (WeightId, VectorId) {
        let bias = self.draw_linear(shape);
        let weight = self.dense.add_weight(format!("{name}.weight"), shape, self.precision);
        (weight, self.add_bias(name, bias))
    }

    /// The same for a layer of one output, `{name}.weight [1, input]`, which no matrix product
    /// reads.
    pub fn add_logit(&mut self, name: &str, input: usize) -> (VectorId, VectorId) {
        let bias = self.draw_linear((1, input));
        let weight = self.dense.add_vector(&format!("{name}.weight"), &[1, input]);
        (weight, self.add_bias(name, bias))
    }

    /// Adds a cross layer's factor `name [output, input]`.
    pub fn add_factor(&mut self, name: String, shape: (usize, usize)) -> WeightId {
        let index = self.initial.len() as u64;
        self.initial.push(initial::cross_factor(self.model, index, shape));
        self.dense.add_weight(name, shape, self.precision)
    }

    /// Adds a parameter `[length]` that starts at zero.
    pub fn add_zeros(&mut self, name: &str, length: usize) -> VectorId {
        self.initial.push(vec![0.0; length]);
        self.dense.add_vector(name, &[length])
    }

    /// Draws the initial weight of the next parameter, and returns that of the bias after it.
    fn draw_linear(&mut self, shape: (usize, usize)) -> Vec<f32> {
        let (weight, bias) = initial::linear(self.model, self.initial.len() as u64, shape);
        self.initial.push(weight);
        bias
    }

    fn add_bias(&mut self, name: &str, initial: Vec<f32>) -> VectorId {
        let bias = self.dense.add_vector(&format!("{name}.bias"), &[initial.len()]);
        self.initial.push(initial);
        bias
    }
}
