//! The oracle of the embedding backward: plain loops, for f32 and f64.
//! Knows nothing of threads, vectors or radix sorts.

use std::collections::BTreeMap;

use schema::KeyedJaggedTensor;

use super::IDS_PER_PART;
use crate::ops::Slot;
use crate::optimizer::{Rule, split_state};
use crate::real::Real;

/// `sum[d] += factor · gradient[d]`.
#[inline]
pub fn add_scaled<R: Real>(factor: R, gradient: &[R], sum: &mut [R]) {
    for (sum, &gradient) in sum.iter_mut().zip(gradient) {
        *sum += factor * gradient;
    }
}

/// One tile of the oracle: `weights` `[rows, dim]`, `state` `[rows, state per row]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile<R> {
    /// `[rows, dim]`.
    pub weights: Vec<R>,
    /// `[rows, Optimizer::state_per_row(dim)]`.
    pub state: Vec<R>,
    /// Columns.
    pub dim: usize,
}

/// The whole backward and update; `gradient` is `[B, Σ D]`. Checks nothing.
pub fn run<R: Real>(
    tiles: &mut [Tile<R>],
    (slots, jagged): (&[Slot], &KeyedJaggedTensor),
    bag_scales: Option<&[R]>,
    gradient: &[R],
    rule: Rule<R>,
) {
    let width: usize = slots.iter().map(|slot| tiles[slot.tile].dim).sum();
    // Per (tile, row) the gradient vectors in (slot, sample, j) order: where each starts, its
    // factor.
    let mut rows: BTreeMap<(usize, usize), Vec<(usize, R)>> = BTreeMap::new();
    for (feature, slot) in slots.iter().enumerate() {
        for sample in 0..jagged.batch_size {
            let scale = bag_scales.map_or(R::ONE, |s| s[feature * jagged.batch_size + sample]);
            for position in jagged.bag(feature, sample) {
                let weight = jagged.weights.as_ref().map_or(1.0, |weights| weights[position]);
                let factor = R::from_f64(f64::from(weight)) * scale;
                let row = (slot.tile, jagged.values[position] as usize);
                rows.entry(row).or_default().push((sample * width + slot.column, factor));
            }
        }
    }
    for ((tile, row), gradients) in rows {
        let Tile { weights, state, dim } = &mut tiles[tile];
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
}
