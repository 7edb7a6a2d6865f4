//! Adagrad on one row: `h += g²; w −= η g / (√h + ε)`, one state value per weight.
//! The state is updated before it is used; ε stands outside the root; there is no weight decay.
#![expect(unsafe_code, reason = "vector instructions")]

use super::Rule;
use crate::cpu::vector::Vector;
use crate::real::Real;

/// The scalar form. `weights`, `gradient` and `state` `[dim]`.
#[inline]
pub fn update_row<R: Real>(rule: &Rule<R>, weights: &mut [R], gradient: &[R], state: &mut [R]) {
    for ((weight, &gradient), sum) in weights.iter_mut().zip(gradient).zip(state) {
        *sum += gradient * gradient;
        *weight -= rule.learning_rate * gradient / (sum.sqrt() + rule.epsilon);
    }
}

/// The vector form. `weights`, `gradient` and `state` `[dim]`.
///
/// # Safety
/// The machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn update_row_vector<V: Vector>(
    rule: &Rule,
    weights: &mut [f32],
    gradient: &[f32],
    state: &mut [f32],
) {
    let dim = weights.len();
    assert!(gradient.len() == dim && state.len() == dim);
    // SAFETY: `at < dim` and at most `dim − at` floats are touched in three slices of `dim` floats.
    // Lanes beyond `left` may hold 0 / ε or 0 / 0; they are never stored.
    unsafe {
        let (rate, epsilon) = (V::splat(rule.learning_rate), V::splat(rule.epsilon));
        let mut at = 0;
        while at < dim {
            let (left, weight) = (dim - at, weights.as_mut_ptr().add(at));
            let sum = state.as_mut_ptr().add(at);
            let gradient = V::load_up_to(gradient.as_ptr().add(at), left);
            let squares = V::load_up_to(sum, left).add(gradient.mul(gradient));
            squares.store_up_to(sum, left);
            let step = rate.mul(gradient).div(squares.sqrt().add(epsilon));
            V::load_up_to(weight, left).sub(step).store_up_to(weight, left);
            at += V::LANES;
        }
    }
}
