//! Initial weights: a function of seed, parameter and position alone, so that every plan starts
//! alike.

use device::{Cpu, buffer};
use schema::model::DenseInit;
use schema::random::CounterRng;
use schema::{ModelConfig, Tile};

/// Independent uses of the model's seed.
const TABLE_STREAM: u64 = 1;
const DENSE_STREAM: u64 = 2;

/// Rows initialised by one chunk.
const ROWS_PER_CHUNK: usize = 4096;

/// Weights of one tile, `[rows, dim]`: U(±1/√R) with R the rows of the whole table.
#[must_use]
pub fn tile_weights(cpu: &Cpu, model: &ModelConfig, tile: &Tile) -> Vec<f32> {
    let table = &model.tables[tile.table.index()];
    let bound = 1.0 / (table.rows as f64).sqrt();
    let rng = CounterRng::new(model.seed, TABLE_STREAM).child(u64::from(tile.table.0));
    let dim = tile.dim();
    let mut weights = buffer::zeroed(tile.row_count() * dim);
    cpu.pool.run_slices(&mut weights, ROWS_PER_CHUNK * dim, |chunk, part| {
        let first = tile.rows.start + (chunk * ROWS_PER_CHUNK) as u64;
        for (row, values) in (first..).zip(part.chunks_exact_mut(dim)) {
            let row = rng.child(row);
            for (column, value) in (tile.columns.start as u64..).zip(values) {
                *value = ((2.0 * row.unit(column) - 1.0) * bound) as f32;
            }
        }
    });
    weights
}

/// Weight `[output, input]` and bias `[output]` of the dense parameter number `index`.
#[must_use]
pub fn linear(
    model: &ModelConfig,
    index: u64,
    (output, input): (usize, usize),
) -> (Vec<f32>, Vec<f32>) {
    let rng = CounterRng::new(model.seed, DENSE_STREAM).child(index);
    let (fan_in, fan_out) = (input as f64, output as f64);
    let draw = |rng: CounterRng, count: usize, scale: f64| match model.init {
        DenseInit::Dlrm => (0..count as u64).map(|i| (rng.normal(i) * scale) as f32).collect(),
        DenseInit::Torchrec => {
            (0..count as u64).map(|i| ((2.0 * rng.unit(i) - 1.0) * scale) as f32).collect()
        }
    };
    let (weight_scale, bias_scale) = match model.init {
        DenseInit::Dlrm => ((2.0 / (fan_in + fan_out)).sqrt(), (1.0 / fan_out).sqrt()),
        DenseInit::Torchrec => (1.0 / fan_in.sqrt(), 1.0 / fan_in.sqrt()),
    };
    (draw(rng.child(0), output * input, weight_scale), draw(rng.child(1), output, bias_scale))
}

/// A low-rank factor of a cross layer, `[output, input]`, Xavier-normal as in TorchRec.
#[must_use]
pub fn cross_factor(model: &ModelConfig, index: u64, (output, input): (usize, usize)) -> Vec<f32> {
    let rng = CounterRng::new(model.seed, DENSE_STREAM).child(index);
    let scale = (2.0 / (input + output) as f64).sqrt();
    (0..(output * input) as u64).map(|i| (rng.normal(i) * scale) as f32).collect()
}
