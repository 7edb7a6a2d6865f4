//! Row-wise Adagrad on one row. With `g' = g + λ₂ w` (L2 decay), it computes `m += mean(g'²)`, `k
//! = η / (√m + ε)` and `w = (1 − η λ − k λ₂) w − k g`, where λ is the decoupled decay, as in
//! FBGEMM.
//!
//! The state `m` is one value per row and is updated before it is used, and ε is added outside
//! the root. The mean is computed over the columns that are passed, unless the terms of column
//! tiles are added up between the two halves of an update.
#![expect(unsafe_code, reason = "calls vector instructions")]

use super::parts::{ScalarSum, VectorParts};
use super::rule::UpdateRule;
use crate::cpu::vector::Vector;
use crate::real::Real;

/// Updates a row in scalar code. `weights` and `gradient` are `[dim]`.
#[inline]
pub fn update_row<R: Real>(rule: &UpdateRule<R>, weights: &mut [R], gradient: &[R], state: &mut R) {
    finish(rule, terms(rule, weights, gradient), weights, gradient, state);
}

/// Returns what the rule needs of a row: the sum of `g'²` and the number of columns. The terms of
/// column tiles add up to those of the row.
pub(super) fn terms<R: Real>(rule: &UpdateRule<R>, weights: &[R], gradient: &[R]) -> [R; 2] {
    let mut squares = ScalarSum::new();
    for (column, (&weight, &gradient)) in weights.iter().zip(gradient).enumerate() {
        let gradient = gradient + rule.l2 * weight;
        squares.add(column, gradient * gradient);
    }
    [squares.total(), R::from_f64(gradient.len() as f64)]
}

/// Updates a row, of which `weights` and `gradient` may be a part, with the terms of the whole row.
pub(super) fn finish<R: Real>(
    rule: &UpdateRule<R>,
    [squares, columns]: [R; 2],
    weights: &mut [R],
    gradient: &[R],
    state: &mut R,
) {
    *state += squares / columns;
    let (factor, shrink) = factors(rule, *state);
    for (weight, &gradient) in weights.iter_mut().zip(gradient) {
        *weight = shrink * *weight - factor * gradient;
    }
}

/// Returns the factor of the gradient and the factor of the weights, computed from the new state.
#[inline(always)]
fn factors<R: Real>(rule: &UpdateRule<R>, state: R) -> (R, R) {
    let factor = rule.learning_rate / (state.sqrt() + rule.epsilon);
    (factor, rule.shrink() - factor * rule.l2)
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
    state: &mut f32,
) {
    // SAFETY: the caller guarantees the instruction set of `V`.
    unsafe {
        let terms = terms_vector::<V>(rule, weights, gradient);
        finish_vector::<V>(rule, terms, weights, gradient, state);
    }
}

/// Computes the terms of a row in vector code, like [`terms`].
///
/// # Safety
/// The caller guarantees that the machine has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn terms_vector<V: Vector>(
    rule: &UpdateRule,
    weights: &[f32],
    gradient: &[f32],
) -> [f32; 2] {
    let dim = weights.len();
    assert!(gradient.len() == dim);
    // SAFETY: `at < dim`, and at most `dim − at` floats are accessed in two slices of `dim`
    // floats. The caller guarantees the instruction set of `V`.
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
        [squares.total(), dim as f32]
    }
}

/// Updates a row in vector code, like [`finish`].
///
/// # Safety
/// The caller guarantees that the machine has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn finish_vector<V: Vector>(
    rule: &UpdateRule,
    [squares, columns]: [f32; 2],
    weights: &mut [f32],
    gradient: &[f32],
    state: &mut f32,
) {
    let dim = weights.len();
    assert!(gradient.len() == dim);
    *state += squares / columns;
    let (factor, shrink) = factors(rule, *state);
    // SAFETY: `at < dim`, and at most `dim − at` floats are accessed in two slices of `dim`
    // floats. The caller guarantees the instruction set of `V`.
    unsafe {
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
