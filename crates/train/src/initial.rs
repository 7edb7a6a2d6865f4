//! Initial weights: a function of seed, parameter and position alone, so that every plan starts
//! alike.

use device::weights::Element;
use device::{Cpu, Weights};
use schema::model::DenseInit;
use schema::random::CounterRng;
use schema::{ModelConfig, Tile};

/// Independent uses of the model's seed.
const TABLE_STREAM: u64 = 1;
const DENSE_STREAM: u64 = 2;
const ROUNDING_STREAM: u64 = 3;

/// Rows initialised by one chunk.
const ROWS_PER_CHUNK: usize = 4096;

/// The random bits with which writes to 16-bit tables are rounded at step `step`.
#[must_use]
pub fn rounding(seed: u64, step: u64) -> CounterRng {
    CounterRng::new(seed, ROUNDING_STREAM).child(step)
}

/// Weights of one tile, `[rows, dim]`: U(±1/√R) with R the rows of the whole table, or the nearest
/// that its data type has.
#[must_use]
pub fn tile_weights(cpu: &Cpu, model: &ModelConfig, tile: &Tile) -> Weights {
    let table = &model.tables[tile.table.index()];
    let mut weights = Weights::zeroed(table.data_type, tile.row_count() * tile.dim());
    match &mut weights {
        Weights::F32(weights) => fill(cpu, (model, tile), weights),
        Weights::F16(weights) => fill(cpu, (model, tile), weights),
        Weights::Bf16(weights) => fill(cpu, (model, tile), weights),
    }
    weights
}

fn fill<E: Element>(cpu: &Cpu, (model, tile): (&ModelConfig, &Tile), weights: &mut [E]) {
    let table = &model.tables[tile.table.index()];
    let bound = 1.0 / (table.rows as f64).sqrt();
    let rng = CounterRng::new(model.seed, TABLE_STREAM).child(u64::from(tile.table.0));
    let dim = tile.dim();
    cpu.pool.run_slices(weights, ROWS_PER_CHUNK * dim, |chunk, part| {
        let first = tile.rows.start + (chunk * ROWS_PER_CHUNK) as u64;
        for (row, values) in (first..).zip(part.chunks_exact_mut(dim)) {
            let row = rng.child(row);
            for (column, value) in (tile.columns.start as u64..).zip(values) {
                *value = E::nearest(((2.0 * row.unit(column) - 1.0) * bound) as f32);
            }
        }
    });
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
