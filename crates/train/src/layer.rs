//! Layers with explicit forward and backward. Each owns its buffers, sized once for the largest
//! batch; parameters live in one list that the optimizer, the collectives and the checkpoint all
//! walk. What passes between layers is in panels (`device::ops::gemm::panels`), between the linear
//! layers of an MLP in the products' precision; embeddings and the batch are row-major.

pub mod cross;
pub mod interaction;
pub mod linear;
pub mod logit;
pub mod mlp;
mod rounded;

use schema::{ModelConfig, Precision};

use crate::initial;
use crate::parameter::DenseParameter;

/// Collects the dense parameters while layers are built; their order is part of the checkpoint.
pub struct ParameterList<'a> {
    model: &'a ModelConfig,
    precision: Precision,
    list: Vec<DenseParameter>,
}

impl<'a> ParameterList<'a> {
    /// An empty list for `model`, whose products are in `precision`.
    #[must_use]
    pub fn new(model: &'a ModelConfig, precision: Precision) -> Self {
        Self { model, precision, list: Vec::new() }
    }

    /// Of the products of the layers that are built.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// All parameters, in the order they were added.
    #[must_use]
    pub fn finish(self) -> Vec<DenseParameter> {
        self.list
    }

    /// Adds `{name}.weight [output, input]` and `{name}.bias [output]`; returns their positions.
    pub fn add_linear(&mut self, name: &str, shape: (usize, usize)) -> (usize, usize) {
        let (weight, bias) = initial::linear(self.model, self.list.len() as u64, shape);
        let weight = self.add(format!("{name}.weight"), vec![shape.0, shape.1], weight);
        let bias = self.add(format!("{name}.bias"), vec![shape.0], bias);
        (weight, bias)
    }

    /// Adds a cross layer's factor `name [output, input]`; returns its position.
    pub fn add_factor(&mut self, name: String, shape: (usize, usize)) -> usize {
        let weight = initial::cross_factor(self.model, self.list.len() as u64, shape);
        self.add(name, vec![shape.0, shape.1], weight)
    }

    /// Adds a parameter `[length]` of zeros; returns its position.
    pub fn add_zeros(&mut self, name: String, length: usize) -> usize {
        self.add(name, vec![length], vec![0.0; length])
    }

    fn add(&mut self, name: String, shape: Vec<usize>, weight: Vec<f32>) -> usize {
        let gradient = vec![0.0; weight.len()];
        self.list.push(DenseParameter { name, shape, weight, gradient, state: Vec::new() });
        self.list.len() - 1
    }
}
