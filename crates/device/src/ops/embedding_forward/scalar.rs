//! The oracle of the pooled lookup, which the fast version is tested against. It consists of plain
//! loops for f32 and f64, without threads or vector instructions.

use schema::JaggedTensor;

use crate::ops::Slot;
use crate::real::{Real, Widen};

/// Computes `out[d] = scale · Σ_j weight_j · table[ids_j, d]` for one bag. D is `out.len()`.
///
/// # Panics
/// Panics if an id is out of range of `table` `[rows, D]`.
pub fn pool_bag<R: Real, E: Widen<R>>(
    table: &[E],
    ids: &[i64],
    weights: Option<&[R]>,
    scale: R,
    out: &mut [R],
) {
    let dim = out.len();
    out.fill(R::ZERO);
    for (j, &id) in ids.iter().enumerate() {
        let row = &table[id as usize * dim..][..dim];
        let weight = weights.map_or(R::ONE, |weights| weights[j]);
        for (sum, &value) in out.iter_mut().zip(row) {
            *sum += weight * value.widen();
        }
    }
    for sum in out {
        *sum = scale * *sum;
    }
}

/// Computes the whole pooled lookup. `tables[t]` is `[rows, dims[t]]`, and `out` is `[B, width]`.
/// The arguments are not checked.
pub fn run<R: Real>(
    tables: &[Vec<R>],
    dims: &[usize],
    slots: &[Slot],
    jagged: &JaggedTensor,
    bag_scales: Option<&[R]>,
    out: &mut [R],
) {
    let width: usize = slots.iter().map(|slot| dims[slot.tile]).sum();
    let convert = |weights: &Vec<f32>| weights.iter().map(|&w| R::from_f64(f64::from(w))).collect();
    let weights: Option<Vec<R>> = jagged.weights.as_ref().map(convert);
    for (feature, slot) in slots.iter().enumerate() {
        for sample in 0..jagged.batch_size {
            let bag = jagged.bag(feature, sample);
            let scale = bag_scales.map_or(R::ONE, |s| s[feature * jagged.batch_size + sample]);
            let weights = weights.as_ref().map(|weights| &weights[bag.clone()]);
            let start = sample * width + slot.column;
            let out = &mut out[start..start + dims[slot.tile]];
            pool_bag(&tables[slot.tile], &jagged.values[bag], weights, scale, out);
        }
    }
}

/// Computes the lookup without pooling: the row of every id, key by key. The arguments are not
/// checked.
pub fn sequence<R: Real>(
    tables: &[Vec<R>],
    dims: &[usize],
    slots: &[Slot],
    jagged: &JaggedTensor,
    bag_scales: Option<&[R]>,
) -> Vec<R> {
    let mut out = Vec::new();
    for (feature, slot) in slots.iter().enumerate() {
        for sample in 0..jagged.batch_size {
            let scale = bag_scales.map_or(R::ONE, |s| s[feature * jagged.batch_size + sample]);
            for position in jagged.bag(feature, sample) {
                let weight = jagged.weights.as_ref().map(|all| R::from_f64(all[position].into()));
                let mut row = vec![R::ZERO; dims[slot.tile]];
                let ids = &jagged.values[position..=position];
                let weights = weight.as_ref().map(std::slice::from_ref);
                pool_bag(&tables[slot.tile], ids, weights, scale, &mut row);
                out.extend(row);
            }
        }
    }
    out
}
