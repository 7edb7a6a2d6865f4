//! The trained values with their optimizer state, in the form in which checkpoints store them.
//!
//! The values are dense parameters and tiles of embedding tables. This file does not depend on how
//! they are computed, placed or saved.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use device::buffer::Array;
use device::weights::WeightsView;
use device::{Pool, Weights};
use schema::{DataType, Interaction, ModelConfig, Optimizer, Tile};

/// One dense parameter with its optimizer state, in the row-major form of checkpoints. During
/// training the parameter is in [`crate::dense`].
#[derive(Clone, Debug, PartialEq)]
pub struct DenseParameter {
    /// `bottom.{i}.{weight,bias}`, `cross.{i}.{v,w,bias}` or `top.{i}.{weight,bias}`.
    pub name: String,
    /// `[out, in]` for a weight, `[out]` for a bias.
    pub shape: Vec<usize>,
    pub weight: Vec<f32>,
    /// The layout depends on the optimizer:
    /// - SGD: empty
    /// - Adagrad: one value per weight
    /// - row-wise Adagrad: one value per row
    /// - Adam and LAMB: all means, then all mean squares
    pub state: Vec<f32>,
}

impl DenseParameter {
    /// Creates a parameter of zeros without optimizer state, for inference.
    #[must_use]
    pub fn without_state(name: &str, shape: &[usize]) -> Self {
        let weight = vec![0.0; shape.iter().product()];
        Self { name: name.to_owned(), shape: shape.to_vec(), weight, state: Vec::new() }
    }

    /// Returns the number of state values that `optimizer` keeps for a parameter of this shape.
    #[must_use]
    pub fn state_len(shape: &[usize], optimizer: Optimizer) -> usize {
        let rows = shape.first().copied().unwrap_or(1);
        let dim = shape.get(1..).unwrap_or_default().iter().product();
        rows * optimizer.state_per_row(dim)
    }

    /// Creates a parameter of zeros, with the state that `optimizer` needs.
    #[must_use]
    pub fn zeros(name: &str, shape: &[usize], optimizer: Optimizer) -> Self {
        let values = shape.iter().product();
        let state = Self::state_len(shape, optimizer);
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            weight: vec![0.0; values],
            state: vec![0.0; state],
        }
    }
}

/// The weights and optimizer state of one tile, owned by the host.
#[derive(Clone, Debug, PartialEq)]
pub struct TileState {
    pub tile: Tile,
    /// `[rows, dim]`, in the table's data type.
    pub weight: Weights,
    /// `[rows, optimizer.state_per_row(dim)]`. A row of Adam or LAMB holds its means, then its mean
    /// squares.
    pub state: Array<f32>,
}

/// Borrowed weights and optimizer state of some rows of a tile.
#[derive(Clone, Debug)]
pub struct TileView<'a> {
    pub tile: Tile,
    /// Weights with the shape `[rows, dim]`.
    pub weight: WeightsView<'a>,
    /// State with the shape `[rows, optimizer.state_per_row(dim)]`.
    pub state: &'a [f32],
}

impl TileState {
    /// Borrows the whole tile.
    #[must_use]
    pub fn view(&self) -> TileView<'_> {
        TileView { tile: self.tile.clone(), weight: self.weight.view(), state: &self.state }
    }
}

/// The position of an invalid value in a table or parameter, for error messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Spot {
    /// Text such as `table "a"`, or the name of a parameter or tensor.
    pub tensor: String,
    /// Row number, counted over the whole table.
    pub row: u64,
    /// Column number, counted over the whole table.
    pub column: usize,
    /// The word `weight`, or the name of a part of the optimizer's state.
    pub part: &'static str,
    pub value: f32,
}

impl fmt::Display for Spot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, row, column, part, value } = self;
        write!(out, "{tensor}, row {row}, column {column}: {part} is ")?;
        // The format `{}` would print up to 39 digits, although an f32 has only 8 significant ones.
        if value.is_finite() && value.abs() >= 1e7 {
            write!(out, "{value:e}")
        } else {
            write!(out, "{value}")
        }
    }
}

/// Number of values that one chunk of work checks.
const VALUES_PER_CHUNK: usize = 1 << 20;

/// Finds the first value of a tile of `table` that is not finite, among its weights and then among
/// its states under `optimizer`.
#[must_use]
pub fn not_finite(
    host: &Pool,
    view: &TileView<'_>,
    table: &str,
    optimizer: Optimizer,
) -> Option<Spot> {
    let TileView { tile, weight, state } = view;
    if let Some((at, value)) = first_not_finite(host, *weight) {
        return Some(locate_weight(tile, table, at, value));
    }
    let (at, value) = first_not_finite(host, WeightsView::F32(state))?;
    let names = optimizer.state_names();
    let per_row = optimizer.state_per_row(tile.dim()).max(1);
    // A row of state holds its parts one after another, each with one value per column or per row.
    let width = per_row / names.len().max(1);
    let (row, within) = (at / per_row, at % per_row);
    Some(Spot {
        tensor: format!("table {table:?}"),
        row: tile.rows.start + row as u64,
        column: tile.columns.start + within % width,
        part: names.get(within / width).copied().unwrap_or("state"),
        value,
    })
}

/// Counts the weights of a tile that equal the largest value of a 16-bit format. Larger values are
/// clamped to this value, so such weights may have been clamped.
#[must_use]
pub fn count_at_limit(host: &Pool, view: WeightsView<'_>) -> usize {
    if view.data_type() == DataType::F32 {
        return 0;
    }
    let count = AtomicUsize::new(0);
    in_chunks(host, view, |_, range| {
        count.fetch_add(view.count_at_limit(range), Ordering::Relaxed);
    });
    count.into_inner()
}

/// Finds the first weight of a tile of `table` that equals the largest value of its 16-bit format.
#[must_use]
pub fn first_at_limit(view: &TileView<'_>, table: &str) -> Option<Spot> {
    let (at, value) = view.weight.first_at_limit(0..view.weight.len())?;
    Some(locate_weight(&view.tile, table, at, value))
}

/// Converts a weight's index in a tile to its row and column in the table.
fn locate_weight(tile: &Tile, table: &str, at: usize, value: f32) -> Spot {
    Spot {
        tensor: format!("table {table:?}"),
        row: tile.rows.start + (at / tile.dim()) as u64,
        column: tile.columns.start + at % tile.dim(),
        part: "weight",
        value,
    }
}

/// Finds the first non-finite value and its position.
fn first_not_finite(host: &Pool, values: WeightsView<'_>) -> Option<(usize, f32)> {
    let first = AtomicUsize::new(usize::MAX);
    in_chunks(host, values, |chunk, range| {
        if !values.are_finite(range) {
            // Keep the first chunk, so that the reported position does not depend on the order of
            // threads.
            first.fetch_min(chunk, Ordering::Relaxed);
        }
    });
    let start = first.into_inner().checked_mul(VALUES_PER_CHUNK)?;
    values.first_not_finite(start..values.len().min(start + VALUES_PER_CHUNK))
}

/// Calls `visit` with the number and the range of each chunk, on all threads.
fn in_chunks(host: &Pool, values: WeightsView<'_>, visit: impl Fn(usize, Range<usize>) + Sync) {
    let len = values.len();
    host.run(len.div_ceil(VALUES_PER_CHUNK), |chunk| {
        let start = chunk * VALUES_PER_CHUNK;
        visit(chunk, start..len.min(start + VALUES_PER_CHUNK));
    });
}

impl DenseParameter {
    /// Finds the first value that is not finite, among the weights and then among the states under
    /// `optimizer`.
    #[must_use]
    pub fn not_finite(&self, optimizer: Optimizer) -> Option<Spot> {
        let dim = self.shape.get(1..).unwrap_or_default().iter().product::<usize>().max(1);
        let find = |values: &[f32], width: usize, part| {
            let (at, value) = WeightsView::F32(values).first_not_finite(0..values.len())?;
            let (tensor, row) = (self.name.clone(), (at / width) as u64);
            Some(Spot { tensor, row, column: at % width, part, value })
        };
        let names = optimizer.state_names();
        let len = self.state.len() / names.len().max(1);
        // A state without one value per weight has one value per row.
        let width = if len == self.weight.len() { dim } else { 1 };
        let mut states = names.iter().zip(self.state.chunks(len.max(1)));
        find(&self.weight, dim, "weight")
            .or_else(|| states.find_map(|(name, values)| find(values, width, name)))
    }
}

/// Lists the names and shapes of a model's dense parameters: bottom MLP, cross layers, top MLP,
/// wide term.
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
    if model.wide {
        shapes.push(("wide.weight".to_owned(), vec![1, width]));
    }
    shapes
}

/// Computes the bytes of all dense parameters including the state of `optimizer`, and the bytes of
/// their weights alone.
#[must_use]
pub fn dense_bytes(model: &ModelConfig, optimizer: Optimizer) -> (u64, u64) {
    let bytes = |(_, shape): (String, Vec<usize>)| {
        let values: usize = shape.iter().product();
        let rows = shape.first().copied().unwrap_or(1);
        let state = rows * optimizer.state_per_row(values / rows.max(1));
        let bytes = |count: usize| (count * size_of::<f32>()) as u64;
        (bytes(values + state), bytes(values))
    };
    let add = |a: (u64, u64), b: (u64, u64)| (a.0 + b.0, a.1 + b.1);
    dense_shapes(model).into_iter().map(bytes).fold((0, 0), add)
}

fn mlp(name: &str, input: usize, widths: &[usize]) -> Vec<(String, Vec<usize>)> {
    let inputs = std::iter::once(input).chain(widths.iter().copied());
    let layer = |(i, (&out, input)): (usize, (&usize, usize))| {
        let weight = (format!("{name}.{i}.weight"), vec![out, input]);
        [weight, (format!("{name}.{i}.bias"), vec![out])]
    };
    widths.iter().zip(inputs).enumerate().flat_map(layer).collect()
}
