//! Stochastic gradient descent on one row: `w −= η g`. No momentum, no weight decay.
#![expect(unsafe_code, reason = "vector instructions")]

use super::Rule;
use crate::cpu::vector::Vector;
use crate::real::Real;

/// The scalar form. `weights` and `gradient` `[dim]`.
#[inline]
pub fn update_row<R: Real>(rule: &Rule<R>, weights: &mut [R], gradient: &[R]) {
    for (weight, &gradient) in weights.iter_mut().zip(gradient) {
        *weight -= rule.learning_rate * gradient;
    }
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
) {
    let dim = weights.len();
    assert!(gradient.len() == dim);
    // SAFETY: `at < dim` and at most `dim − at` floats are touched in two slices of `dim` floats.
    unsafe {
        let rate = V::splat(rule.learning_rate);
        let mut at = 0;
        while at < dim {
            let (left, weight) = (dim - at, weights.as_mut_ptr().add(at));
            let step = rate.mul(V::load_up_to(gradient.as_ptr().add(at), left));
            V::load_up_to(weight, left).sub(step).store_up_to(weight, left);
            at += V::LANES;
        }
    }
}
