//! LAMB on one row. With Adam's moments, it computes `r = m̂ / (√v̂ + ε) + λ w` and then `w −= η
//! (‖w‖ / ‖r‖) r`, where λ is the decoupled decay. L2 decay is added to the gradient as in
//! `adam`.
//!
//! If `‖w‖` or `‖r‖` is 0, the ratio is 1, so that a row of zeros can change and a row without a
//! gradient does not become NaN. The norms are computed over the row that is passed. This is an
//! embedding row, a part of it in a column tile, or a whole dense parameter. Like
//! apex's FusedLAMB, a dense parameter has one ratio. Long rows are processed in blocks, so that
//! several threads can work on one row.
//! # Source
//! LAMB is described in arXiv:1904.00962.
#![expect(unsafe_code, reason = "calls vector instructions")]

use super::adam;
use super::parts::{ScalarSum, VectorParts};
use super::rule::UpdateRule;
use crate::cpu::vector::Vector;
use crate::real::Real;

/// Number of weights in a block, whose squares are summed together. The sums of the blocks are
/// added in order.
pub(crate) const BLOCK: usize = 16_384;

/// Updates a row in scalar code. `weights`, `gradient` and both states are `[dim]`.
#[inline]
pub fn update_row<R: Real>(
    rule: &UpdateRule<R>,
    weights: &mut [R],
    gradient: &[R],
    [mean, square]: [&mut [R]; 2],
) {
    let terms = terms(rule, weights, gradient, [&mut *mean, &mut *square]);
    apply(rule, ratio(terms), weights, [mean, square]);
}

/// Updates the moments of a row, and returns `Σ w²` and `Σ r²`. The terms of column tiles add up to
/// those of the row.
pub(super) fn terms<R: Real>(
    rule: &UpdateRule<R>,
    weights: &[R],
    gradient: &[R],
    [mean, square]: [&mut [R]; 2],
) -> [R; 2] {
    let mut squares = [R::ZERO; 2];
    for start in (0..weights.len()).step_by(BLOCK) {
        let block = start..weights.len().min(start + BLOCK);
        let state = [&mut mean[block.clone()], &mut square[block.clone()]];
        let sums = moments(rule, &weights[block.clone()], &gradient[block], state);
        squares = [squares[0] + sums[0], squares[1] + sums[1]];
    }
    squares
}

/// Returns `‖w‖ / ‖r‖` from the two sums of squares, or 1 if either sum is 0.
pub(crate) fn ratio<R: Real>([weights, directions]: [R; 2]) -> R {
    if weights > R::ZERO && directions > R::ZERO {
        weights.sqrt() / directions.sqrt()
    } else {
        R::ONE
    }
}

/// Updates the moments of one block, and returns its sums of squares `Σ w²` and `Σ r²`.
pub(crate) fn moments<R: Real>(
    rule: &UpdateRule<R>,
    weights: &[R],
    gradient: &[R],
    [mean, square]: [&mut [R]; 2],
) -> [R; 2] {
    let (mut weight_squares, mut squares) = (ScalarSum::new(), ScalarSum::new());
    for (d, (&weight, &gradient)) in weights.iter().zip(gradient).enumerate() {
        let gradient = gradient + rule.l2 * weight;
        let direction = adam::direction(rule, gradient, &mut mean[d], &mut square[d]);
        let direction = direction + rule.decoupled * weight;
        weight_squares.add(d, weight * weight);
        squares.add(d, direction * direction);
    }
    [weight_squares.total(), squares.total()]
}

/// Moves the weights against their directions `r` by `ratio` times the learning rate.
pub(crate) fn apply<R: Real>(
    rule: &UpdateRule<R>,
    ratio: R,
    weights: &mut [R],
    [mean, square]: [&mut [R]; 2],
) {
    let rate = rule.learning_rate * ratio;
    for (d, weight) in weights.iter_mut().enumerate() {
        let direction = adam::corrected(rule, mean[d], square[d]) + rule.decoupled * *weight;
        *weight -= rate * direction;
    }
}

/// Updates a row in vector code. `weights`, `gradient` and both states are `[dim]`.
///
/// # Safety
/// The caller guarantees that the machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn update_row_vector<V: Vector>(
    rule: &UpdateRule,
    weights: &mut [f32],
    gradient: &[f32],
    [mean, square]: [&mut [f32]; 2],
) {
    // SAFETY: the caller guarantees the instruction set of `V`.
    unsafe {
        let terms = terms_vector::<V>(rule, weights, gradient, [&mut *mean, &mut *square]);
        apply_vector::<V>(rule, ratio(terms), weights, [mean, square]);
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
    [mean, square]: [&mut [f32]; 2],
) -> [f32; 2] {
    let mut squares = [0.0; 2];
    for start in (0..weights.len()).step_by(BLOCK) {
        let block = start..weights.len().min(start + BLOCK);
        let state = [&mut mean[block.clone()], &mut square[block.clone()]];
        let (weights, gradient) = (&weights[block.clone()], &gradient[block]);
        // SAFETY: the caller guarantees the instruction set of `V`.
        let sums = unsafe { moments_vector::<V>(rule, weights, gradient, state) };
        squares = [squares[0] + sums[0], squares[1] + sums[1]];
    }
    squares
}

/// Updates the moments of one block in vector code, like [`moments`].
///
/// # Safety
/// The caller guarantees that the machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn moments_vector<V: Vector>(
    rule: &UpdateRule,
    weights: &[f32],
    gradient: &[f32],
    [mean, square]: [&mut [f32]; 2],
) -> [f32; 2] {
    let dim = weights.len();
    assert!(gradient.len() == dim && mean.len() == dim && square.len() == dim);
    // SAFETY: `at < dim`, and at most `dim − at` floats are accessed in four slices of `dim`
    // floats. The caller guarantees the instruction set of `V`. Lanes beyond `left` hold 0 / ε,
    // which is exactly 0, so they do not change the sums.
    unsafe {
        let (constants, decoupled) =
            (adam::AdamConstants::<V>::new(rule), V::splat(rule.decoupled));
        let (mut weight_squares, mut squares) = (VectorParts::<V>::new(), VectorParts::<V>::new());
        let mut at = 0;
        while at < dim {
            let left = dim - at;
            let (mean, square) = (mean.as_mut_ptr().add(at), square.as_mut_ptr().add(at));
            let weight = V::load_up_to(weights.as_ptr().add(at), left);
            let gradient = V::load_up_to(gradient.as_ptr().add(at), left);
            let old = [V::load_up_to(mean, left), V::load_up_to(square, left)];
            let new = constants.moments(weight, gradient, old);
            new[0].store_up_to(mean, left);
            new[1].store_up_to(square, left);
            let direction = constants.corrected(new).add(decoupled.mul(weight));
            weight_squares.add(at, weight.mul(weight));
            squares.add(at, direction.mul(direction));
            at += V::LANES;
        }
        [weight_squares.total(), squares.total()]
    }
}

/// Moves the weights along their directions in vector code, like [`apply`].
///
/// # Safety
/// The caller guarantees that the machine has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn apply_vector<V: Vector>(
    rule: &UpdateRule,
    ratio: f32,
    weights: &mut [f32],
    [mean, square]: [&mut [f32]; 2],
) {
    let dim = weights.len();
    assert!(mean.len() == dim && square.len() == dim);
    // SAFETY: `at < dim`, and at most `dim − at` floats are accessed in three slices of `dim`
    // floats. The caller guarantees the instruction set of `V`.
    unsafe {
        let (constants, decoupled) =
            (adam::AdamConstants::<V>::new(rule), V::splat(rule.decoupled));
        let rate = V::splat(rule.learning_rate * ratio);
        let mut at = 0;
        while at < dim {
            let (left, place) = (dim - at, weights.as_mut_ptr().add(at));
            let (mean, square) = (mean.as_ptr().add(at), square.as_ptr().add(at));
            let weight = V::load_up_to(place, left);
            let moments = [V::load_up_to(mean, left), V::load_up_to(square, left)];
            let direction = constants.corrected(moments).add(decoupled.mul(weight));
            weight.sub(rate.mul(direction)).store_up_to(place, left);
            at += V::LANES;
        }
    }
}
