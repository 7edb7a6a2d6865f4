//! The oracle of the losses, which computes one sample at a time. The fast version calls it too,
//! in f64.

use schema::Loss;

use crate::ops::activation::scalar::sigmoid;
use crate::real::Real;

/// Loss, gradient and probability of one sample.
#[derive(Clone, Copy, Debug)]
pub struct SampleLoss<R> {
    /// Loss of the sample, not yet divided by the number of samples.
    pub loss: R,
    /// Derivative of the loss with respect to the logit.
    pub gradient: R,
    pub probability: R,
}

/// Computes loss, gradient and probability of one logit `z` with label `y`.
///
/// The losses are `bce = max(z, 0) − z·y + ln(1 + e^−|z|)` and `mse = (σ(z) − y)²`.
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
