//! Row-wise Adagrad on one row: with `g' = g + λ₂ w` (L2 decay), `m += mean(g'²)`, `k = η / (√m +
//! ε)` and `w = (1 − η λ − k λ₂) w − k g` (decoupled decay λ), as in FBGEMM.
//!
//! One state value per row, updated before it is used; ε is added outside the root. The mean is
//! over the columns passed: a column tile averages its own columns only.
#![expect(unsafe_code, reason = "vector instructions")]

use super::parts::{ScalarSum, VectorParts};
use super::rule::UpdateRule;
use crate::cpu::vector::Vector;
use crate::real::Real;

/// The scalar form. `weights` and `gradient` `[dim]`.
#[inline]
pub fn update_row<R: Real>(rule: &UpdateRule<R>, weights: &mut [R], gradient: &[R], state: &mut R) {
    let mut squares = ScalarSum::new();
    for (column, (&weight, &gradient)) in weights.iter().zip(gradient).enumerate() {
        let gradient = gradient + rule.l2 * weight;
        squares.add(column, gradient * gradient);
    }
    *state += squares.total() / R::from_f64(gradient.len() as f64);
    let (factor, shrink) = factors(rule, *state);
    for (weight, &gradient) in weights.iter_mut().zip(gradient) {
        *weight = shrink * *weight - factor * gradient;
    }
}

/// Returns the factors of the gradient and of the weights, computed from the new state.
#[inline(always)]
fn factors<R: Real>(rule: &UpdateRule<R>, state: R) -> (R, R) {
    let factor = rule.learning_rate / (state.sqrt() + rule.epsilon);
    (factor, rule.shrink() - factor * rule.l2)
}

/// The vector form. `weights` and `gradient` `[dim]`.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn update_row_vector<V: Vector>(
    rule: &UpdateRule,
    weights: &mut [f32],
    gradient: &[f32],
    state: &mut f32,
) {
    let dim = weights.len();
    assert!(gradient.len() == dim);
    // SAFETY: `at < dim`, and at most `dim − at` floats are accessed in two slices of `dim` floats.
    // The caller guarantees the instruction set.
    unsafe {
        let (l2, mut squares) = (V::splat(rule.l2), VectorParts::<V>::new());
        let mut at = 0;
        while at < dim {
            let (left, weight) = (dim - at, weights.as_ptr().add(at));
            let gradient = V::load_up_to(gradient.as_ptr().add(at), left)
                .add(l2.mul(V::load_up_to(weight, left)));
            squares.add(at, gradient.mul(gradient));
            at += V::LANES;
        }
        *state += squares.total() / dim as f32;
        let (factor, shrink) = factors(rule, *state);
        let (factor, shrink) = (V::splat(factor), V::splat(shrink));
        let mut at = 0;
        while at < dim {
            let (left, weight) = (dim - at, weights.as_mut_ptr().add(at));
            let step = factor.mul(V::load_up_to(gradient.as_ptr().add(at), left));
            shrink.mul(V::load_up_to(weight, left)).sub(step).store_up_to(weight, left);
            at += V::LANES;
        }
    }
}
