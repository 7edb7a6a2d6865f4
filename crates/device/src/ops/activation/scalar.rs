//! The oracle of the activations: one element at a time.

use crate::real::Real;

/// `max(x, 0)`; NaN stays NaN, so that a diverging run is noticed.
#[inline(always)]
pub fn relu<R: Real>(x: R) -> R {
    if x < R::ZERO { R::ZERO } else { x }
}

/// The gradient before ReLU, from the output `y` and the gradient after it: 0 where `y ≤ 0`.
#[inline(always)]
pub fn relu_gradient<R: Real>(y: R, d_y: R) -> R {
    if y <= R::ZERO { R::ZERO } else { d_y }
}

/// `1 / (1 + e^−x)`, without overflow for large `|x|`.
#[inline(always)]
pub fn sigmoid<R: Real>(x: R) -> R {
    let e = (-x.abs()).exp();
    if x < R::ZERO { e / (R::ONE + e) } else { R::ONE / (R::ONE + e) }
}
