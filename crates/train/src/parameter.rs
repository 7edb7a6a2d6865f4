//! The trained values as they are saved, with optimizer state: dense parameters and tiles of
//! embedding tables.
//! Knows nothing of how they are computed, placed or saved.

use std::sync::atomic::{AtomicBool, Ordering};

use device::buffer::Array;
use device::{Cpu, Weights};
use schema::{Interaction, ModelConfig, Optimizer, Tile};

/// One dense parameter with its optimizer state, as it is saved; at work it is in [`crate::dense`].
#[derive(Clone, Debug, PartialEq)]
pub struct DenseParameter {
    /// `bottom.{i}.{weight,bias}`, `cross.{i}.{v,w,bias}` or `top.{i}.{weight,bias}`.
    pub name: String,
    /// `[out, in]` for a weight, `[out]` for a bias.
    pub shape: Vec<usize>,
    /// The values, row-major.
    pub weight: Vec<f32>,
    /// Empty for SGD, one value per weight for Adagrad, one per row for row-wise Adagrad; for Adam
    /// and LAMB all means, then all mean squares.
    pub state: Vec<f32>,
}

impl DenseParameter {
    /// A parameter of zeros, with the state `optimizer` needs.
    #[must_use]
    pub fn zeros(name: &str, shape: &[usize], optimizer: Optimizer) -> Self {
        let values = shape.iter().product();
        let rows = shape.first().copied().unwrap_or(1);
        let dim = shape.get(1..).unwrap_or_default().iter().product();
        let state = rows * optimizer.state_per_row(dim);
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            weight: vec![0.0; values],
            state: vec![0.0; state],
        }
    }
}

/// One tile of one table with its optimizer state.
#[derive(Clone, Debug, PartialEq)]
pub struct TileState {
    /// Which rectangle of which table.
    pub tile: Tile,
    /// `[rows, dim]`, in the table's data type.
    pub weight: Weights,
    /// `[rows, optimizer.state_per_row(dim)]`; a row of Adam or LAMB holds its means, then its mean
    /// squares.
    pub state: Array<f32>,
}

/// Weights looked at by one chunk.
const WEIGHTS_PER_CHUNK: usize = 1 << 20;

/// Whether all weights of a tile are finite numbers.
#[must_use]
pub fn is_finite(cpu: &Cpu, tile: &TileState) -> bool {
    let (weights, len) = (tile.weight.view(), tile.weight.len());
    let good = AtomicBool::new(true);
    cpu.pool.run(len.div_ceil(WEIGHTS_PER_CHUNK), |chunk| {
        let first = chunk * WEIGHTS_PER_CHUNK;
        if !weights.are_finite(first..len.min(first + WEIGHTS_PER_CHUNK)) {
            good.store(false, Ordering::Relaxed);
        }
    });
    good.into_inner()
}

/// Names and shapes of a model's dense parameters: bottom MLP, cross layers, top MLP, each in
/// order.
#[must_use]
pub fn dense_shapes(model: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let mut shapes = mlp("bottom", model.dense_features, &model.bottom);
    let width = model.interaction_width();
    if let Interaction::DcnV2 { layers, rank } = model.interaction {
        for i in 0..layers {
            shapes.push((format!("cross.{i}.v"), vec![rank, width]));
            shapes.push((format!("cross.{i}.w"), vec![width, rank]));
            shapes.push((format!("cross.{i}.bias"), vec![width]));
        }
    }
    shapes.extend(mlp("top", width, &model.top));
    shapes
}

fn mlp(name: &str, input: usize, widths: &[usize]) -> Vec<(String, Vec<usize>)> {
    let inputs = std::iter::once(input).chain(widths.iter().copied());
    let layer = |(i, (&out, input)): (usize, (&usize, usize))| {
        let weight = (format!("{name}.{i}.weight"), vec![out, input]);
        [weight, (format!("{name}.{i}.bias"), vec![out])]
    };
    widths.iter().zip(inputs).enumerate().flat_map(layer).collect()
}
