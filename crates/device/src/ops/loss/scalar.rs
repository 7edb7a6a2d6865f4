//! The oracle of the losses, one sample at a time. `loss` itself uses it, in f64.

use schema::Loss;

use crate::ops::activation::scalar::sigmoid;
use crate::real::Real;

/// Loss and gradient of one sample.
#[derive(Clone, Copy, Debug)]
pub struct SampleLoss<R> {
    /// The loss, not yet divided by the number of samples.
    pub loss: R,
    /// d loss / d logit.
    pub gradient: R,
    pub probability: R,
}

/// Loss, gradient and probability of one logit `z` under label `y`.
///
/// `bce = max(z, 0) − z·y + ln(1 + e^−|z|)`, `mse = (σ(z) − y)²`.
#[inline]
pub fn sample<R: Real>(kind: Loss, logit: R, label: R) -> SampleLoss<R> {
    let probability = sigmoid(logit);
    let difference = probability - label;
    match kind {
        Loss::BceWithLogits => SampleLoss {
            loss: logit.max(R::ZERO) - logit * label + (-logit.abs()).exp().ln_1p(),
            gradient: difference,
            probability,
        },
        Loss::Mse => SampleLoss {
            loss: difference * difference,
            gradient: (difference + difference) * probability * (R::ONE - probability),
            probability,
        },
    }
}
