//! Row-wise Adagrad on one row: `m += mean(g²); w −= η g / (√m + ε)`, one state value per row.
//!
//! The state is updated before it is used; ε stands outside the root; there is no weight decay. The
//! mean is over the columns passed: a column tile averages its own columns only.
#![expect(unsafe_code, reason = "vector instructions")]

use super::Rule;
use crate::cpu::vector::Vector;
use crate::real::Real;

/// Partial sums of the mean: column `d` goes to number `d mod 16`, so every vector width adds in
/// the same order.
const PARTS: usize = 16;

/// The scalar form. `weights` and `gradient` `[dim]`.
#[inline]
pub fn update_row<R: Real>(rule: &Rule<R>, weights: &mut [R], gradient: &[R], state: &mut R) {
    let dim = R::from_f64(gradient.len() as f64);
    *state += sum_of_squares(gradient) / dim;
    let factor = rule.learning_rate / (state.sqrt() + rule.epsilon);
    for (weight, &gradient) in weights.iter_mut().zip(gradient) {
        *weight -= factor * gradient;
    }
}

/// `Σ_d g_d²`: 16 partial sums in column order, then added by halving.
fn sum_of_squares<R: Real>(gradient: &[R]) -> R {
    let mut parts = [R::ZERO; PARTS];
    for (column, &gradient) in gradient.iter().enumerate() {
        parts[column % PARTS] += gradient * gradient;
    }
    let mut half = PARTS / 2;
    while half > 0 {
        for part in 0..half {
            let other = parts[part + half];
            parts[part] += other;
        }
        half /= 2;
    }
    parts[0]
}

/// The vector form. `weights` and `gradient` `[dim]`.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn update_row_vector<V: Vector>(
    rule: &Rule,
    weights: &mut [f32],
    gradient: &[f32],
    state: &mut f32,
) {
    let dim = weights.len();
    assert!(gradient.len() == dim);
    // SAFETY: `at < dim` and at most `dim − at` floats are touched in two slices of `dim` floats.
    unsafe {
        *state += sum_of_squares_vector::<V>(gradient) / dim as f32;
        let factor = V::splat(rule.learning_rate / (state.sqrt() + rule.epsilon));
        let mut at = 0;
        while at < dim {
            let (left, weight) = (dim - at, weights.as_mut_ptr().add(at));
            let step = factor.mul(V::load_up_to(gradient.as_ptr().add(at), left));
            V::load_up_to(weight, left).sub(step).store_up_to(weight, left);
            at += V::LANES;
        }
    }
}

/// `Σ_d g_d²` in the order of [`sum_of_squares`]; lanes past the end add an exact 0.
#[inline(always)]
unsafe fn sum_of_squares_vector<V: Vector>(gradient: &[f32]) -> f32 {
    let (dim, start) = (gradient.len(), gradient.as_ptr());
    // SAFETY: `at < dim` at each load, which reads at most `dim − at` floats.
    unsafe {
        let mut parts = [V::splat(0.0); 2];
        let mut at = 0;
        while at < dim {
            let part = at / V::LANES % (PARTS / V::LANES);
            let lanes = V::load_up_to(start.add(at), dim - at);
            parts[part] = parts[part].add(lanes.mul(lanes));
            at += V::LANES;
        }
        V::sum_of_16(parts[0], parts[1])
    }
}
