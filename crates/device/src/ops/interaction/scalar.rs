//! The oracle of the dot interaction, which computes one sample and one pair at a time, in the
//! order of the output.

use super::Shape;
use crate::real::Real;

/// Computes `out = [dense ‖ z]` for all samples, where `z` are the kept pairwise dot products.
pub fn forward<R: Real>(shape: &Shape, dense: &[R], pooled: &[R], out: &mut [R]) {
    for b in 0..shape.b {
        let vector = |i| shape.vector(b, [dense, pooled], i);
        let out = &mut out[b * shape.width()..(b + 1) * shape.width()];
        let (direct, products) = out.split_at_mut(shape.dense_width());
        direct.copy_from_slice(&dense[b * direct.len()..][..direct.len()]);
        for (z, (i, j)) in products.iter_mut().zip(shape.pairs()) {
            *z = vector(i).iter().zip(vector(j)).fold(R::ZERO, |sum, (&l, &r)| sum + l * r);
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
        let d_out = &d_out[b * shape.width()..(b + 1) * shape.width()];
        let direct = shape.dense_width();
        let d_dense = &mut d_dense[b * direct..(b + 1) * direct];
        let d_pooled = &mut d_pooled[b * pooled_width..(b + 1) * pooled_width];
        d_dense.copy_from_slice(&d_out[..direct]);
        d_pooled.fill(R::ZERO);
        for (&d_z, (i, j)) in d_out[direct..].iter().zip(shape.pairs()) {
            for (to, from) in [(i, j), (j, i)] {
                let from = shape.vector(b, [dense, pooled], from);
                let to = match to.checked_sub(usize::from(shape.dense)) {
                    None => &mut *d_dense,
                    Some(to) => &mut d_pooled[to * dim..],
                };
                for (gradient, &value) in to.iter_mut().zip(from) {
                    *gradient += d_z * value;
                }
            }
        }
    }
}
