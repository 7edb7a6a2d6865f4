//! The oracle of the cross layer's element-wise part, on row-major matrices. The fast version
//! runs the same loops on chunks of rows.

use crate::real::Real;

/// Computes `out = x0 ⊙ (u + bias) + x`. All matrices are `[B, N]`, and `bias` is `[N]`.
pub fn forward<R: Real>([x0, u, x]: [&[R]; 3], bias: &[R], out: &mut [R]) {
    let n = bias.len().max(1);
    let rows = x0.chunks_exact(n).zip(u.chunks_exact(n)).zip(x.chunks_exact(n));
    for (((x0, u), x), out) in rows.zip(out.chunks_exact_mut(n)) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = x0[i] * (u[i] + bias[i]) + x[i];
        }
    }
}

/// Computes the gradients `d_u = d_out ⊙ x0`, `d_x0 += d_out ⊙ (u + bias)` and `d_x = d_out`.
pub fn backward<R: Real>([d_out, x0, u]: [&[R]; 3], bias: &[R], [d_u, d_x0, d_x]: [&mut [R]; 3]) {
    let n = bias.len().max(1);
    d_x.copy_from_slice(d_out);
    let inputs = d_out.chunks_exact(n).zip(x0.chunks_exact(n)).zip(u.chunks_exact(n));
    let outputs = d_u.chunks_exact_mut(n).zip(d_x0.chunks_exact_mut(n));
    for (((d_out, x0), u), (d_u, d_x0)) in inputs.zip(outputs) {
        for (i, d_u) in d_u.iter_mut().enumerate() {
            *d_u = d_out[i] * x0[i];
            d_x0[i] += d_out[i] * (u[i] + bias[i]);
        }
    }
}
