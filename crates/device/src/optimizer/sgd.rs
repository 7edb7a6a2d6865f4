//! Stochastic gradient descent on one row: `w = (1 − η λ) w − η (g + λ₂ w)`, where λ is the
//! decoupled decay and λ₂ the L2 decay. This rule has no momentum.
#![expect(unsafe_code, reason = "calls vector instructions")]

use super::rule::UpdateRule;
use crate::cpu::vector::Vector;
use crate::real::Real;

/// Updates a row in scalar code. `weights` and `gradient` are `[dim]`.
#[inline]
pub fn update_row<R: Real>(rule: &UpdateRule<R>, weights: &mut [R], gradient: &[R]) {
    let shrink = rule.shrink();
    for (weight, &gradient) in weights.iter_mut().zip(gradient) {
        let gradient = gradient + rule.l2 * *weight;
        *weight = shrink * *weight - rule.learning_rate * gradient;
    }
}

/// Updates a row in vector code. `weights` and `gradient` are `[dim]`.
///
/// # Safety
/// The caller guarantees that the machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn update_row_vector<V: Vector>(
    rule: &UpdateRule,
    weights: &mut [f32],
    gradient: &[f32],
) {
    let dim = weights.len();
    assert!(gradient.len() == dim);
    // SAFETY: `at < dim`, and at most `dim − at` floats are accessed in two slices of `dim`
    // floats. The caller guarantees the instruction set of `V`.
    unsafe {
        let (rate, shrink) = (V::splat(rule.learning_rate), V::splat(rule.shrink()));
        let l2 = V::splat(rule.l2);
        let mut at = 0;
        while at < dim {
            let (left, place) = (dim - at, weights.as_mut_ptr().add(at));
            let weight = V::load_up_to(place, left);
            let gradient = V::load_up_to(gradient.as_ptr().add(at), left).add(l2.mul(weight));
            shrink.mul(weight).sub(rate.mul(gradient)).store_up_to(place, left);
            at += V::LANES;
        }
    }
}
