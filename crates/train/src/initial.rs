//! Initial weights, which depend only on seed, parameter and position. Therefore a model starts the
//! same under every sharding plan.

use device::MatrixShape;
use device::weights::StoredWeight;
use device::{Pool, Weights};
use schema::model::DenseInit;
use schema::random::CounterRng;
use schema::{ModelConfig, Tile};

/// Streams of random numbers, one for each independent use of the model's seed.
const TABLE_STREAM: u64 = 1;
const DENSE_STREAM: u64 = 2;
const ROUNDING_STREAM: u64 = 3;
const AVERAGE_STREAM: u64 = 4;

/// Number of rows of a table that one chunk of work initializes.
const ROWS_PER_CHUNK: usize = 4096;
/// Number of values of a dense parameter that one chunk of work draws.
const VALUES_PER_CHUNK: usize = 1 << 14;

/// Returns the generator of the random bits with which step `step` rounds writes to 16-bit tables.
#[must_use]
pub fn rounding(seed: u64, step: u64) -> CounterRng {
    CounterRng::new(seed, ROUNDING_STREAM).child(step)
}

/// Returns the generator of the random bits with which the average of replica groups after `steps`
/// steps rounds weights of 16-bit tables.
#[must_use]
pub fn average_rounding(seed: u64, steps: u64) -> CounterRng {
    CounterRng::new(seed, AVERAGE_STREAM).child(steps)
}

/// Draws the weights of one tile, `[rows, dim]`, from U(±1/√R), where R is the number of rows of
/// the whole table. Each weight is rounded to the nearest value of the table's data type.
#[must_use]
pub fn tile_weights(host: &Pool, model: &ModelConfig, tile: &Tile) -> Weights {
    let table = &model.tables[tile.table.index()];
    let mut weights = Weights::zeroed(table.data_type, tile.row_count() * tile.dim());
    match &mut weights {
        Weights::F32(weights) => fill(host, model, tile, weights),
        Weights::F16(weights) => fill(host, model, tile, weights),
        Weights::Bf16(weights) => fill(host, model, tile, weights),
    }
    weights
}

fn fill<E: StoredWeight>(host: &Pool, model: &ModelConfig, tile: &Tile, weights: &mut [E]) {
    let (draw, dim) = (Draw::new(model, tile), tile.dim());
    host.run_slices(weights, ROWS_PER_CHUNK * dim, |chunk, part| {
        let first = tile.rows.start + (chunk * ROWS_PER_CHUNK) as u64;
        for (row, values) in (first..).zip(part.chunks_exact_mut(dim)) {
            for (value, drawn) in values.iter_mut().zip(draw.row(row)) {
                *value = E::nearest(drawn);
            }
        }
    });
}

/// Draws the initial weights of a tile row by row.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    rng: CounterRng,
    bound: f64,
    first_column: u64,
}

impl Draw {
    /// Creates the generator of the initial weights of `tile`.
    #[must_use]
    pub fn new(model: &ModelConfig, tile: &Tile) -> Self {
        let table = &model.tables[tile.table.index()];
        Self {
            rng: CounterRng::new(model.seed, TABLE_STREAM).child(u64::from(tile.table.0)),
            bound: 1.0 / (table.rows as f64).sqrt(),
            first_column: tile.columns.start as u64,
        }
    }

    /// Returns an endless iterator over the initial weights of a row. `row` counts over the whole
    /// table.
    fn row(self, row: u64) -> impl Iterator<Item = f32> {
        let rng = self.rng.child(row);
        let draw = move |column| ((2.0 * rng.unit(column) - 1.0) * self.bound) as f32;
        (self.first_column..).map(draw)
    }

    /// Writes the initial f32 weights of a row to `values`.
    pub fn fill(self, row: u64, values: &mut [f32]) {
        values.iter_mut().zip(self.row(row)).for_each(|(value, drawn)| *value = drawn);
    }

    /// Returns whether `values` equal the row's initial weights.
    #[must_use]
    pub fn is_row<E: StoredWeight>(self, row: u64, values: &[E]) -> bool {
        values.iter().zip(self.row(row)).all(|(value, drawn)| *value == E::nearest(drawn))
    }
}

/// The initial distribution of a dense parameter. The first field is the index of the layer's first
/// parameter, and the second is the layer's shape `[output, input]`.
#[derive(Clone, Copy, Debug)]
pub enum Initial {
    /// The weight `[output, input]` of a linear layer.
    Weight(u64, MatrixShape),
    /// The bias `[output]` of a linear layer.
    Bias(u64, MatrixShape),
    /// A low-rank factor of a cross layer, `[output, input]`, Xavier-normal as in TorchRec.
    Factor(u64, MatrixShape),
    Zeros(usize),
}

impl Initial {
    /// Draws the initial values of a parameter. Weights and factors are drawn row by row.
    #[must_use]
    pub fn values(self, host: &Pool, init: DenseInit, seed: u64) -> Vec<f32> {
        let dlrm = init == DenseInit::Dlrm;
        // facebookresearch/dlrm draws linear layers from a normal distribution, whereas PyTorch's
        // default distribution is uniform.
        let normal = dlrm || matches!(self, Self::Factor(..));
        let rng = |index| CounterRng::new(seed, DENSE_STREAM).child(index);
        let xavier = |output, input| (2.0 / (output + input) as f64).sqrt();
        let fan = |extent| 1.0 / (extent as f64).sqrt();
        let (rng, count, scale) = match self {
            Self::Weight(index, MatrixShape { rows: output, columns: input }) => {
                let scale = if dlrm { xavier(output, input) } else { fan(input) };
                (rng(index).child(0), output * input, scale)
            }
            Self::Bias(index, MatrixShape { rows: output, columns: input }) => {
                let scale = if dlrm { (1.0 / output as f64).sqrt() } else { fan(input) };
                (rng(index).child(1), output, scale)
            }
            Self::Factor(index, MatrixShape { rows: output, columns: input }) => {
                (rng(index), output * input, xavier(output, input))
            }
            Self::Zeros(length) => return vec![0.0; length],
        };
        let mut values = vec![0.0; count];
        host.run_slices(&mut values, VALUES_PER_CHUNK, |chunk, part| {
            for (i, value) in ((chunk * VALUES_PER_CHUNK) as u64..).zip(part) {
                let drawn = if normal { rng.normal(i) } else { 2.0 * rng.unit(i) - 1.0 };
                *value = (drawn * scale) as f32;
            }
        });
        values
    }
}
