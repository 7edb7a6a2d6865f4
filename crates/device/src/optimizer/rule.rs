//! A rule with the constants of a step, from an optimizer's configuration.

use schema::{Optimizer, OptimizerConfig, WeightDecayMode};

use crate::real::Real;

/// A rule with this step's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateRule<R = f32> {
    pub kind: Optimizer,
    /// η of this step, schedule included.
    pub learning_rate: R,
    /// ε, added outside the root; unused by SGD.
    pub epsilon: R,
    /// λ in the gradient: 0 unless the decay is L2.
    pub l2: R,
    /// λ beside the gradient: 0 unless the decay is decoupled.
    pub decoupled: R,
    /// The running mean of gradients; Adam, SparseAdam and LAMB.
    pub mean: RunningMean<R>,
    /// The running mean of squared gradients; Adam, SparseAdam and LAMB.
    pub square: RunningMean<R>,
}

/// A running mean `old + take · (new − old)`, and the factor that it enters the step with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunningMean<R = f32> {
    pub take: R,
    /// `1 / (1 − βᵗ)` at step t = 1, 2, …, which corrects the mean's start at 0. Under SparseAdam
    /// `√(1 − β₂ᵗ) / (1 − β₁ᵗ)` of the gradients and 1 of their squares.
    pub correction: R,
}

/// The running means of gradients and of their squares, `step` steps after the first.
fn moments<R: Real>(config: &OptimizerConfig, step: u64) -> [RunningMean<R>; 2] {
    let betas = [config.beta1, config.beta2];
    // How much of each mean is not its start at 0.
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
    /// The rule of `config` at `factor` times its learning rate, `step` steps after the first.
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

    /// What decoupled decay leaves of a weight: `1 − η λ`.
    #[inline(always)]
    pub(super) fn shrink(&self) -> R {
        R::ONE - self.learning_rate * self.decoupled
    }
}
