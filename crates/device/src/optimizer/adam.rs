//! Adam on one row. With `g' = g + λ₂ w` (L2 decay), it computes `m = m + (1 − β₁) (g' − m)`, `v
//! = v + (1 − β₂) (g'² − v)` and `w = (1 − η λ) w − η m̂ / (√v̂ + ε)`, where λ is the decoupled
//! decay of AdamW.
//!
//! SparseAdam adds ε at another place: `w = (1 − η λ) w − η √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v +
//! ε)`. In exact arithmetic this is Adam with an ε of `ε / √(1 − β₂ᵗ)`. The code computes both
//! rules in the same way, with different factors of `m` and `v`, which [`UpdateRule::new`] sets.
//! `torch.optim.SparseAdam` has no decay.
//! decay.
//!
//! The means are not computed as `β m + (1 − β) g'`, because the two factors do not add up to 1
//! in f32. For β₂ = 0.999, that would make every `v` too large by a factor of up to 1 + 1.3 ·
//! 10⁻⁵.
//!
//! `m` and `v` start at 0, which `m̂` and `v̂` correct by the step number of the whole run, as in
//! FBGEMM. `torch.optim.SparseAdam` counts the steps in which a table was looked up. Both numbers
//! are equal here, because every step looks up every table. Rows that a batch does not look up
//! keep `m`, `v` and their weights ("lazy" Adam).
//! # Source
//! Adam is described in arXiv:1412.6980, whose section 2 ends with SparseAdam's form, and
//! decoupled decay in arXiv:1711.05101. The implementations are in PyTorch 2.14.1,
//! `torch/optim/_functional.py`, and FBGEMM, `optimizers.py`.
#![expect(unsafe_code, reason = "calls vector instructions")]

use super::rule::UpdateRule;
use crate::cpu::vector::Vector;
use crate::real::Real;

/// Updates a row in scalar code. `weights`, `gradient` and both states are `[dim]`.
#[inline]
pub fn update_row<R: Real>(
    rule: &UpdateRule<R>,
    weights: &mut [R],
    gradient: &[R],
    [mean, square]: [&mut [R]; 2],
) {
    let shrink = rule.shrink();
    for (d, (weight, &gradient)) in weights.iter_mut().zip(gradient).enumerate() {
        let gradient = gradient + rule.l2 * *weight;
        let direction = direction(rule, gradient, &mut mean[d], &mut square[d]);
        *weight = shrink * *weight - rule.learning_rate * direction;
    }
}

/// Updates the two moments of a weight and returns `m̂ / (√v̂ + ε)`.
#[inline(always)]
pub(super) fn direction<R: Real>(
    rule: &UpdateRule<R>,
    gradient: R,
    mean: &mut R,
    square: &mut R,
) -> R {
    *mean = *mean + rule.mean.take * (gradient - *mean);
    *square = *square + rule.square.take * (gradient * gradient - *square);
    corrected(rule, *mean, *square)
}

/// Computes the direction `m̂ / (√v̂ + ε)` from both moments.
#[inline(always)]
pub(super) fn corrected<R: Real>(rule: &UpdateRule<R>, mean: R, square: R) -> R {
    let root = (rule.square.correction * square).sqrt();
    rule.mean.correction * mean / (root + rule.epsilon)
}

/// The constants of [`direction`] in every lane of a register.
#[derive(Clone, Copy)]
pub(super) struct AdamConstants<V> {
    mean: [V; 2],
    square: [V; 2],
    epsilon: V,
    l2: V,
}

impl<V: Vector> AdamConstants<V> {
    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`, here and in all
    /// other functions.
    #[inline(always)]
    pub unsafe fn new(rule: &UpdateRule) -> Self {
        // SAFETY: the caller guarantees the instruction set of `V`.
        unsafe {
            let moment = |m: super::rule::RunningMean| [V::splat(m.take), V::splat(m.correction)];
            Self {
                mean: moment(rule.mean),
                square: moment(rule.square),
                epsilon: V::splat(rule.epsilon),
                l2: V::splat(rule.l2),
            }
        }
    }

    /// Returns both moments of some weights after they are updated with a gradient.
    ///
    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`.
    #[inline(always)]
    pub unsafe fn moments(&self, weight: V, gradient: V, [mean, square]: [V; 2]) -> [V; 2] {
        let (take, take_square) = (self.mean[0], self.square[0]);
        // SAFETY: the caller guarantees the instruction set of `V`.
        unsafe {
            let gradient = gradient.add(self.l2.mul(weight));
            let squares = gradient.mul(gradient);
            [
                mean.add(take.mul(gradient.sub(mean))),
                square.add(take_square.mul(squares.sub(square))),
            ]
        }
    }

    /// Computes the direction `m̂ / (√v̂ + ε)` in vector code, like [`corrected`].
    ///
    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`.
    #[inline(always)]
    pub unsafe fn corrected(&self, [mean, square]: [V; 2]) -> V {
        // SAFETY: the caller guarantees the instruction set of `V`.
        unsafe {
            let root = self.square[1].mul(square).sqrt();
            self.mean[1].mul(mean).div(root.add(self.epsilon))
        }
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
    let dim = weights.len();
    assert!(gradient.len() == dim && mean.len() == dim && square.len() == dim);
    // SAFETY: `at < dim`, and at most `dim − at` floats are accessed in four slices of `dim`
    // floats. The caller guarantees the instruction set of `V`. Lanes beyond `left` hold 0 / ε
    // and are never stored.
    unsafe {
        let (constants, rate) = (AdamConstants::<V>::new(rule), V::splat(rule.learning_rate));
        let shrink = V::splat(rule.shrink());
        let mut at = 0;
        while at < dim {
            let (left, place) = (dim - at, weights.as_mut_ptr().add(at));
            let (mean, square) = (mean.as_mut_ptr().add(at), square.as_mut_ptr().add(at));
            let weight = V::load_up_to(place, left);
            let gradient = V::load_up_to(gradient.as_ptr().add(at), left);
            let old = [V::load_up_to(mean, left), V::load_up_to(square, left)];
            let new = constants.moments(weight, gradient, old);
            new[0].store_up_to(mean, left);
            new[1].store_up_to(square, left);
            let step = rate.mul(constants.corrected(new));
            shrink.mul(weight).sub(step).store_up_to(place, left);
            at += V::LANES;
        }
    }
}
