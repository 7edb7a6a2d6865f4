//! The oracle of the embedding backward, which the fast version is tested against. It consists of
//! plain loops for f32 and f64, without threads, vector instructions or sorting.

use std::collections::BTreeMap;

use schema::random::CounterRng;
use schema::{DataType, JaggedTensor};

use super::tile::{IDS_PER_PART, TileOrigin};
use crate::ops::{Slot, SlotOutput};
use crate::optimizer::{UpdateRule, split_state};
use crate::real::Real;
use crate::rounding::{self, RowNoise};

/// Adds a scaled gradient to a sum: `sum[d] += factor · gradient[d]`.
#[inline]
pub fn add_scaled<R: Real>(factor: R, gradient: &[R], sum: &mut [R]) {
    for (sum, &gradient) in sum.iter_mut().zip(gradient) {
        *sum += factor * gradient;
    }
}

/// One tile of the oracle, with its optimizer state.
#[derive(Clone, Debug, PartialEq)]
pub struct OracleTile<R> {
    /// Weights of the tile, `[rows, dim]`.
    pub weights: Vec<R>,
    /// Optimizer state of the tile, `[rows, Optimizer::state_per_row(dim)]`.
    pub state: Vec<R>,
    pub dim: usize,
}

impl<R: Real> OracleTile<R> {
    /// Rounds a row to the values that a table of `data_type` at `origin` stores.
    pub fn round_row(
        &mut self,
        row: usize,
        data_type: DataType,
        origin: TileOrigin,
        rounding: CounterRng,
    ) {
        let table = rounding.child(u64::from(origin.table));
        let noise = RowNoise::new(table, origin.row + row as u64, origin.column);
        let weights = &mut self.weights[row * self.dim..][..self.dim];
        for (column, weight) in weights.iter_mut().enumerate() {
            let (value, noise) = (weight.to_f64() as f32, noise.at(column));
            let rounded = match data_type {
                DataType::F32 => value,
                DataType::F16 => rounding::to_f16(value, noise).to_f32(),
                DataType::Bf16 => rounding::to_bf16(value, noise).to_f32(),
            };
            *weight = R::from_f64(f64::from(rounded));
        }
    }
}

/// The gradients of each row. For each (tile, row), it lists the start of each gradient and its
/// factor, in the order (slot, sample, j).
type Sources<R> = BTreeMap<(usize, usize), Vec<(usize, R)>>;

/// Runs the whole backward pass and updates f32 or f64 tables. `gradient` is the gradient of the
/// forward pass's output. Returns the updated rows as pairs (tile, row). The arguments are not
/// checked.
pub fn run<R: Real>(
    tiles: &mut [OracleTile<R>],
    slots: &[Slot],
    jagged: &JaggedTensor,
    bag_scales: Option<&[R]>,
    output: SlotOutput,
    gradient: &[R],
    rule: UpdateRule<R>,
) -> Vec<(usize, usize)> {
    let width: usize = slots.iter().map(|slot| tiles[slot.tile].dim).sum();
    let (mut rows, mut written) = (Sources::new(), 0);
    for (feature, slot) in slots.iter().enumerate() {
        for sample in 0..jagged.batch_size {
            let scale = bag_scales.map_or(R::ONE, |s| s[feature * jagged.batch_size + sample]);
            for position in jagged.bag(feature, sample) {
                let weight = jagged.weights.as_ref().map_or(1.0, |weights| weights[position]);
                let factor = R::from_f64(f64::from(weight)) * scale;
                let start = match output {
                    SlotOutput::Pooled => sample * width + slot.column,
                    SlotOutput::Columns(row) => sample * row + slot.column,
                    SlotOutput::Sequence => written,
                };
                written += tiles[slot.tile].dim;
                let row = (slot.tile, jagged.values[position] as usize);
                rows.entry(row).or_default().push((start, factor));
            }
        }
    }
    for (&(tile, row), gradients) in &rows {
        let OracleTile { weights, state, dim } = &mut tiles[tile];
        let mut sum = vec![R::ZERO; *dim];
        for part in gradients.chunks(IDS_PER_PART) {
            let mut part_sum = vec![R::ZERO; *dim];
            for &(start, factor) in part {
                add_scaled(factor, &gradient[start..start + *dim], &mut part_sum);
            }
            add_scaled(R::ONE, &part_sum, &mut sum);
        }
        let state_per_row = rule.kind.state_per_row(*dim);
        let state = &mut state[row * state_per_row..][..state_per_row];
        let state = split_state(rule.kind, state);
        rule.update_row(&mut weights[row * *dim..][..*dim], &sum, state);
    }
    rows.into_keys().collect()
}
