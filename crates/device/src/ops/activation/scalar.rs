//! The oracle of the activations, which computes one element at a time.

use crate::real::Real;

/// Computes `max(x, 0)`. NaN stays NaN, so that a diverging run is detected.
#[inline(always)]
pub fn relu<R: Real>(x: R) -> R {
    if x < R::ZERO { R::ZERO } else { x }
}

/// Computes the gradient of ReLU's input from the output `y` and the gradient of the output. The
/// result is 0 where `y ≤ 0`.
#[inline(always)]
pub fn relu_gradient<R: Real>(y: R, d_y: R) -> R {
    if y <= R::ZERO { R::ZERO } else { d_y }
}

/// Computes `1 / (1 + e^−x)` without overflow for large `|x|`.
#[inline(always)]
pub fn sigmoid<R: Real>(x: R) -> R {
    let e = (-x.abs()).exp();
    if x < R::ZERO { e / (R::ONE + e) } else { R::ONE / (R::ONE + e) }
}
