//! The oracle of the dot interaction: one sample, one pair at a time, in the order of the output.

use super::Shape;
use crate::real::Real;

/// Vector `i` of a sample: 0 is the dense one, the others are pooled.
fn vector<'a, R>(dense: &'a [R], pooled: &'a [R], i: usize, dim: usize) -> &'a [R] {
    if i == 0 { dense } else { &pooled[(i - 1) * dim..i * dim] }
}

/// `out = [dense ‖ z]`, `z` the kept pairwise dot products, for all samples.
pub fn forward<R: Real>(shape: &Shape, dense: &[R], pooled: &[R], out: &mut [R]) {
    let dim = shape.dim;
    let pooled_width = shape.pooled_width();
    for b in 0..shape.b {
        let dense = &dense[b * dim..(b + 1) * dim];
        let pooled = &pooled[b * pooled_width..(b + 1) * pooled_width];
        let out = &mut out[b * shape.width()..(b + 1) * shape.width()];
        out[..dim].copy_from_slice(dense);
        for (z, (i, j)) in out[dim..].iter_mut().zip(shape.pairs()) {
            let (left, right) = (vector(dense, pooled, i, dim), vector(dense, pooled, j, dim));
            *z = left.iter().zip(right).fold(R::ZERO, |sum, (&l, &r)| sum + l * r);
        }
    }
}

/// Overwrites `d_dense` and `d_pooled` with the gradients of both inputs.
pub fn backward<R: Real>(
    shape: &Shape,
    [dense, pooled, d_out]: [&[R]; 3],
    [d_dense, d_pooled]: [&mut [R]; 2],
) {
    let dim = shape.dim;
    let pooled_width = shape.pooled_width();
    for b in 0..shape.b {
        let dense = &dense[b * dim..(b + 1) * dim];
        let pooled = &pooled[b * pooled_width..(b + 1) * pooled_width];
        let d_out = &d_out[b * shape.width()..(b + 1) * shape.width()];
        let d_dense = &mut d_dense[b * dim..(b + 1) * dim];
        let d_pooled = &mut d_pooled[b * pooled_width..(b + 1) * pooled_width];
        d_dense.copy_from_slice(&d_out[..dim]);
        d_pooled.fill(R::ZERO);
        for (&d_z, (i, j)) in d_out[dim..].iter().zip(shape.pairs()) {
            for (to, from) in [(i, j), (j, i)] {
                let from = vector(dense, pooled, from, dim);
                let to = if to == 0 { &mut *d_dense } else { &mut d_pooled[(to - 1) * dim..] };
                for (gradient, &value) in to.iter_mut().zip(from) {
                    *gradient += d_z * value;
                }
            }
        }
    }
}
