//! An update rule with the constants of a step, computed from the configuration of an optimizer.

use schema::{Optimizer, OptimizerConfig, WeightDecayMode};

use crate::real::Real;

/// An update rule with the constants of one step, which the scalar and the vector form both use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateRule<R = f32> {
    pub kind: Optimizer,
    /// Learning rate η of this step, schedule included.
    pub learning_rate: R,
    /// Constant ε, which is added outside the root. SGD does not use it.
    pub epsilon: R,
    /// Decay that is added to the gradient, or 0 unless the decay mode is L2.
    pub l2: R,
    /// Decay that is applied to the weight, or 0 unless the decay mode is decoupled.
    pub decoupled: R,
    /// The running mean of gradients, used by Adam, SparseAdam and LAMB.
    pub mean: RunningMean<R>,
    /// The running mean of squared gradients, used by Adam, SparseAdam and LAMB.
    pub square: RunningMean<R>,
}

/// A running mean `old + take · (new − old)`, and the factor with which the step uses it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunningMean<R = f32> {
    pub take: R,
    /// Correction of the mean's start at 0: `1 / (1 − βᵗ)` at step t = 1, 2, …. For SparseAdam it
    /// is `√(1 − β₂ᵗ) / (1 − β₁ᵗ)` for the mean of gradients and 1 for the mean of squares.
    pub correction: R,
}

/// Creates the running means of gradients and of their squares at `step` steps after the first.
fn moments<R: Real>(config: &OptimizerConfig, step: u64) -> [RunningMean<R>; 2] {
    let betas = [config.beta1, config.beta2];
    // `mean` and `square` are the total weight of all gradients so far in each mean. The
    // remaining weight belongs to the start value 0.
    let [mean, square] = betas.map(|beta| 1.0 - beta.powf((step + 1) as f64));
    let corrections = match config.kind {
        Optimizer::SparseAdam => [square.sqrt() / mean, 1.0],
        _ => [1.0 / mean, 1.0 / square],
    };
    let moment = |i: usize| RunningMean {
        take: R::from_f64(1.0 - betas[i]),
        correction: R::from_f64(corrections[i]),
    };
    [moment(0), moment(1)]
}

impl<R: Real> UpdateRule<R> {
    /// Creates the rule of `config` with `factor` times its learning rate, at `step` steps after
    /// the first step.
    #[must_use]
    pub fn new(config: &OptimizerConfig, factor: f64, step: u64) -> Self {
        let decay = |mode| {
            let wanted = config.weight_decay_mode == mode;
            if wanted { R::from_f64(config.weight_decay) } else { R::ZERO }
        };
        let [mean, square] = moments(config, step);
        Self {
            kind: config.kind,
            learning_rate: R::from_f64(config.learning_rate * factor),
            epsilon: R::from_f64(config.epsilon),
            l2: decay(WeightDecayMode::L2),
            decoupled: decay(WeightDecayMode::Decoupled),
            mean,
            square,
        }
    }

    /// Returns the factor by which decoupled decay multiplies a weight, `1 − η λ`.
    #[inline(always)]
    pub(super) fn shrink(&self) -> R {
        R::ONE - self.learning_rate * self.decoupled
    }
}
