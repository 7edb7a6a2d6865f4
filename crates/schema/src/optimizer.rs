//! Which optimizer updates a parameter, and how its learning rate moves with the step.
//! The arithmetic lives in `device`; this file names the rule and its constants.

use serde::{Deserialize, Serialize};

/// An update rule; see `device::optimizer` for the formulas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// `w −= η g`; no state.
    Sgd,
    /// `h += g²; w −= η g / (√h + ε)`; one state value per weight.
    Adagrad,
    /// `m += mean(g²); w −= η g / (√m + ε)`; one state value per row.
    RowwiseAdagrad,
}

impl Optimizer {
    /// State values kept per row of `dim` weights.
    #[must_use]
    pub fn state_per_row(self, dim: usize) -> usize {
        match self {
            Self::Sgd => 0,
            Self::Adagrad => dim,
            Self::RowwiseAdagrad => 1,
        }
    }
}

/// An optimizer with its constants, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// The rule.
    pub kind: Optimizer,
    /// Base learning rate η.
    pub learning_rate: f64,
    /// ε, added outside the root. Ignored by SGD.
    #[serde(default = "default_epsilon")]
    pub epsilon: f64,
}

fn default_epsilon() -> f64 {
    1e-8
}

/// Learning-rate schedule of training steps `s = 0, 1, …`: linear warm-up, hold, polynomial decay,
/// hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LearningRateSchedule {
    /// Steps of linear warm-up; at step `s` the factor is `(s + 1) / warmup_steps`.
    pub warmup_steps: u64,
    /// First step of the decay; 0 decay steps means a constant rate.
    pub decay_start_step: u64,
    /// Length of the decay.
    pub decay_steps: u64,
    /// Exponent of the decay `((end − s) / decay_steps)^decay_power`.
    pub decay_power: f64,
    /// The decayed factor never falls below this share of the base rate.
    pub decay_floor: f64,
}

impl LearningRateSchedule {
    /// The factor on the base learning rate at `step`.
    #[must_use]
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return (step + 1) as f64 / self.warmup_steps as f64;
        }
        if self.decay_steps == 0 || step < self.decay_start_step {
            return 1.0;
        }
        let end = self.decay_start_step + self.decay_steps;
        let left = end.saturating_sub(step) as f64 / self.decay_steps as f64;
        left.powf(self.decay_power).max(self.decay_floor)
    }
}

#[cfg(test)]
mod tests {
    use super::LearningRateSchedule;

    #[test]
    fn warm_up_hold_decay_hold() {
        let schedule = LearningRateSchedule {
            warmup_steps: 4,
            decay_start_step: 10,
            decay_steps: 10,
            decay_power: 2.0,
            decay_floor: 0.01,
        };
        let factors = [0, 3, 4, 10, 15, 20, 99].map(|step| schedule.factor(step));
        assert_eq!(factors, [0.25, 1.0, 1.0, 1.0, 0.25, 0.01, 0.01]);
        assert_eq!(LearningRateSchedule::default().factor(1 << 40), 1.0);
    }
}
