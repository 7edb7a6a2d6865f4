//! Adagrad on one row. With `g' = g + λ₂ w` (L2 decay), it computes `h += g'²` and `w = (1 − η λ)
//! w − η g' / (√h + ε)`, where λ is the decoupled decay. The state `h` is one value per weight
//! and is updated before it is used, and ε is added outside the root. Under L2 decay this equals
//! `torch.optim.Adagrad`.
#![expect(unsafe_code, reason = "calls vector instructions")]

use super::rule::UpdateRule;
use crate::cpu::vector::Vector;
use crate::real::Real;

/// Updates a row in scalar code. `weights`, `gradient` and `state` are `[dim]`.
#[inline]
pub fn update_row<R: Real>(
    rule: &UpdateRule<R>,
    weights: &mut [R],
    gradient: &[R],
    state: &mut [R],
) {
    let shrink = rule.shrink();
    for ((weight, &gradient), sum) in weights.iter_mut().zip(gradient).zip(state) {
        let gradient = gradient + rule.l2 * *weight;
        *sum += gradient * gradient;
        let step = rule.learning_rate * gradient / (sum.sqrt() + rule.epsilon);
        *weight = shrink * *weight - step;
    }
}

/// Updates a row in vector code. `weights`, `gradient` and `state` are `[dim]`.
///
/// # Safety
/// The caller guarantees that the machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn update_row_vector<V: Vector>(
    rule: &UpdateRule,
    weights: &mut [f32],
    gradient: &[f32],
    state: &mut [f32],
) {
    let dim = weights.len();
    assert!(gradient.len() == dim && state.len() == dim);
    // SAFETY: `at < dim`, and at most `dim − at` floats are accessed in three slices of `dim`
    // floats. The caller guarantees the instruction set of `V`. Lanes beyond `left` may hold 0 /
    // ε or 0 / 0, but they are never stored.
    unsafe {
        let (rate, epsilon) = (V::splat(rule.learning_rate), V::splat(rule.epsilon));
        let (shrink, l2) = (V::splat(rule.shrink()), V::splat(rule.l2));
        let mut at = 0;
        while at < dim {
            let (left, place) = (dim - at, weights.as_mut_ptr().add(at));
            let sum = state.as_mut_ptr().add(at);
            let weight = V::load_up_to(place, left);
            let gradient = V::load_up_to(gradient.as_ptr().add(at), left).add(l2.mul(weight));
            let squares = V::load_up_to(sum, left).add(gradient.mul(gradient));
            squares.store_up_to(sum, left);
            let step = rate.mul(gradient).div(squares.sqrt().add(epsilon));
            shrink.mul(weight).sub(step).store_up_to(place, left);
            at += V::LANES;
        }
    }
}
