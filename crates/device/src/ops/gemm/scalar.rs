//! The oracle of the linear layer's three products: plain loops with sums in index order, without
//! blocking or threads.

use crate::real::Real;

/// Computes `Y = X Wᵀ + bias`, where `x` is `[B, K]`, `weight` `[N, K]`, `bias` `[N]` and `y`
/// `[B, N]`.
pub fn forward<R: Real>(
    [x, weight]: [&[R]; 2],
    bias: Option<&[R]>,
    y: &mut [R],
    n: usize,
    k: usize,
) {
    for (sample, y_row) in y.chunks_exact_mut(n.max(1)).enumerate() {
        let x_row = &x[sample * k..(sample + 1) * k];
        for (out, y) in y_row.iter_mut().enumerate() {
            let mut sum = bias.map_or(R::ZERO, |bias| bias[out]);
            for (&x, &w) in x_row.iter().zip(&weight[out * k..(out + 1) * k]) {
                sum += x * w;
            }
            *y = sum;
        }
    }
}

/// Computes `dX += dY W`, where `d_y` is `[B, N]`, `weight` `[N, K]` and `d_x` `[B, K]`.
pub fn backward_input_accumulate<R: Real>(
    [d_y, weight]: [&[R]; 2],
    d_x: &mut [R],
    n: usize,
    k: usize,
) {
    for (sample, d_x_row) in d_x.chunks_exact_mut(k.max(1)).enumerate() {
        for (out, &d_y) in d_y[sample * n..(sample + 1) * n].iter().enumerate() {
            for (d_x, &w) in d_x_row.iter_mut().zip(&weight[out * k..(out + 1) * k]) {
                *d_x += d_y * w;
            }
        }
    }
}

/// Computes `dW = dYᵀ X`, where `d_y` is `[B, N]`, `x` `[B, K]` and `d_weight` `[N, K]`.
pub fn backward_weight<R: Real>([x, d_y]: [&[R]; 2], d_weight: &mut [R], n: usize, k: usize) {
    d_weight.fill(R::ZERO);
    for (d_y_row, x_row) in d_y.chunks_exact(n.max(1)).zip(x.chunks_exact(k.max(1))) {
        for (out, &d_y) in d_y_row.iter().enumerate() {
            for (d_w, &x) in d_weight[out * k..(out + 1) * k].iter_mut().zip(x_row) {
                *d_w += d_y * x;
            }
        }
    }
}

/// Computes the gradient of the bias, `d_bias[n] = Σ_b dY[b, n]`.
pub fn backward_bias<R: Real>(d_y: &[R], d_bias: &mut [R]) {
    d_bias.fill(R::ZERO);
    for d_y_row in d_y.chunks_exact(d_bias.len().max(1)) {
        for (sum, &d_y) in d_bias.iter_mut().zip(d_y_row) {
            *sum += d_y;
        }
    }
}
