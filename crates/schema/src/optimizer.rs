//! Optimizers and learning-rate schedules, as rules with their constants. The crate `device`
//! implements the arithmetic.

use serde::{Deserialize, Serialize};

use crate::config_error::ConfigError;

/// An update rule of the optimizer. The module `device::optimizer` implements its formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// Computes `w −= η g` and keeps no state.
    Sgd,
    /// Computes `h += g²; w −= η g / (√h + ε)` and keeps one state value per weight.
    Adagrad,
    /// Computes `m += mean(g²); w −= η g / (√m + ε)` and keeps one state value per row.
    RowwiseAdagrad,
    /// Computes `w −= η m̂ / (√v̂ + ε)` and keeps two state values per weight. Like FBGEMM's Adam
    /// for tables and `torch.optim.Adam` for dense parameters, it adds ε to the bias-corrected
    /// root.
    Adam,
    /// Computes `w −= η √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + ε)` and keeps two state values per
    /// weight. Like `torch.optim.SparseAdam`, it adds ε to the root before the bias correction.
    SparseAdam,
    /// Scales the direction of [`Optimizer::Adam`] to the norm of the row or, for dense parameters,
    /// of the tensor. The rule keeps two state values per weight.
    Lamb,
}

/// The extent of the gradients on which the update of one weight depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    Element,
    /// The update depends on the gradients of the whole row. A rule of this kind keeps one value of
    /// each state per row.
    Row,
    /// The update depends on norms of the whole tensor or, for tables, of the row.
    Tensor,
}

impl Optimizer {
    /// All update rules, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::Sgd, Self::Adagrad, Self::RowwiseAdagrad, Self::Adam, Self::SparseAdam, Self::Lamb];

    /// Returns the extent of the gradients on which the update of one weight depends. Row-wise
    /// Adagrad uses the mean square of a row, and LAMB uses two norms.
    #[must_use]
    pub fn granularity(self) -> Granularity {
        match self {
            Self::Sgd | Self::Adagrad | Self::Adam | Self::SparseAdam => Granularity::Element,
            Self::RowwiseAdagrad => Granularity::Row,
            Self::Lamb => Granularity::Tensor,
        }
    }

    /// Whether the update of a weight depends on other weights of its row. If a table's columns are
    /// split, such a rule gives different results; see [`crate::RowScope`].
    #[must_use]
    pub fn looks_at_rows(self) -> bool {
        self.granularity() != Granularity::Element
    }

    /// Returns the name used in configurations and checkpoints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Adagrad => "adagrad",
            Self::RowwiseAdagrad => "rowwise_adagrad",
            Self::Adam => "adam",
            Self::SparseAdam => "sparse_adam",
            Self::Lamb => "lamb",
        }
    }

    /// Returns the number of state values per row of `dim` weights.
    #[must_use]
    pub fn state_per_row(self, dim: usize) -> usize {
        let values = if self.granularity() == Granularity::Row { 1 } else { dim };
        self.state_names().len() * values
    }

    /// Returns the names of the parts of the optimizer state. All parts have the same size, and a
    /// row stores its parts one after another.
    #[must_use]
    pub fn state_names(self) -> &'static [&'static str] {
        match self {
            Self::Sgd => &[],
            Self::Adagrad | Self::RowwiseAdagrad => &["state"],
            Self::Adam | Self::SparseAdam | Self::Lamb => &["exp_avg", "exp_avg_sq"],
        }
    }
}

impl std::fmt::Display for Optimizer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name())
    }
}

/// The way in which weight decay enters an update rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightDecayMode {
    #[default]
    None,
    /// The decay is added to the gradient: `g + λ w` replaces `g`.
    L2,
    /// The decay is separate from the gradient: `w −= η λ w`, which does not affect the rule's
    /// state.
    Decoupled,
}

/// The columns over which row-wise Adagrad and LAMB take the mean or the norms of a row where a
/// plan splits its columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitRowRule {
    /// All columns of the row. Ranks exchange what they need of the row, and the plan does not
    /// change the rule.
    #[default]
    WholeRows,
    /// The columns of each tile, as in TorchRec's column-wise sharding.
    ColumnTiles,
}

impl SplitRowRule {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// An optimizer with its constants, as configured.
///
/// ```
/// use schema::{Optimizer, OptimizerConfig};
///
/// let adam = OptimizerConfig::new(Optimizer::Adam, 1e-3);
/// assert_eq!(adam.check("dense"), Ok(()));
/// let negative = OptimizerConfig { learning_rate: -1.0, ..adam };
/// assert!(negative.check("dense").is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    pub kind: Optimizer,
    /// Base learning rate η.
    pub learning_rate: f64,
    /// The constant ε, which is added to the root in the denominator. Adam and LAMB add it after
    /// the bias correction, and SparseAdam before it. SGD does not use it.
    #[serde(default = "default_epsilon")]
    pub epsilon: f64,
    /// The constant β₁, which is the share of the mean gradient kept per step. Adam, SparseAdam and
    /// LAMB use it.
    #[serde(default = "default_beta1")]
    pub beta1: f64,
    /// The constant β₂, which is the share of the mean squared gradient kept per step. Adam,
    /// SparseAdam and LAMB use it.
    #[serde(default = "default_beta2")]
    pub beta2: f64,
    /// The factor λ of the weight decay. A row of a table decays only when a batch looks it up.
    #[serde(default)]
    pub weight_decay: f64,
    #[serde(default)]
    pub weight_decay_mode: WeightDecayMode,
}

impl OptimizerConfig {
    /// Creates an optimizer of `kind` with `learning_rate` and the default constants.
    #[must_use]
    pub fn new(kind: Optimizer, learning_rate: f64) -> Self {
        Self {
            kind,
            learning_rate,
            epsilon: default_epsilon(),
            beta1: default_beta1(),
            beta2: default_beta2(),
            weight_decay: 0.0,
            weight_decay_mode: WeightDecayMode::None,
        }
    }

    /// Rejects constants that could make a weight NaN or infinite.
    ///
    /// # Errors
    /// Returns [`ConfigError::Shape`] with the name of the constant below `key`.
    pub fn check(&self, key: &str) -> Result<(), ConfigError> {
        let fail = |name: &str, text| Err(ConfigError::shape(format!("{key}.{name}"), text));
        for (name, value) in [
            ("learning_rate", self.learning_rate),
            ("epsilon", self.epsilon),
            ("weight_decay", self.weight_decay),
        ] {
            if !value.is_finite() || value < 0.0 {
                return fail(name, format!("expected a finite number ≥ 0, got {value}"));
            }
            // Updates are computed in f32, so a constant must be finite as f32.
            if !(value as f32).is_finite() {
                let most = f32::MAX;
                return fail(
                    name,
                    format!("expected at most {most:e}, the largest f32, got {value:e}"),
                );
            }
        }
        for (name, value) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&value) {
                return fail(name, format!("expected a share in [0, 1), got {value}"));
            }
        }
        if self.kind != Optimizer::Sgd && self.epsilon as f32 == 0.0 {
            let text = "expected above 0: a weight without a gradient would become 0/0, got 0";
            return fail("epsilon", text.to_owned());
        }
        match self.weight_decay_mode {
            WeightDecayMode::None if self.weight_decay > 0.0 => {
                let text = "expected \"l2\" or \"decoupled\" where weight_decay is above 0";
                fail("weight_decay_mode", format!("{text}, got \"none\""))
            }
            WeightDecayMode::Decoupled if self.learning_rate * self.weight_decay > 1.0 => {
                let product = self.learning_rate * self.weight_decay;
                let text = "expected learning_rate · weight_decay of at most 1: a decay beyond 0";
                fail("weight_decay", format!("{text} changes signs, got {product}"))
            }
            _ => Ok(()),
        }
    }
}

fn default_epsilon() -> f64 {
    1e-8
}

fn default_beta1() -> f64 {
    0.9
}

fn default_beta2() -> f64 {
    0.999
}

/// The learning-rate schedule over training steps `s = 0, 1, …`. After a linear warm-up the rate is
/// constant, then it decays as a polynomial, and then it is constant again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LearningRateSchedule {
    /// Steps of linear warm-up; at step `s` the factor is `(s + 1) / warmup_steps`.
    pub warmup_steps: u64,
    /// First step of the decay. If there are no decay steps, the rate stays constant.
    pub decay_start_step: u64,
    pub decay_steps: u64,
    /// Exponent of the decay `((end − s) / decay_steps)^decay_power`.
    pub decay_power: f64,
    /// Lower limit of the factor during and after the decay.
    pub decay_floor: f64,
}

impl LearningRateSchedule {
    /// Returns the factor on the base learning rate at `step`.
    #[must_use]
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return (step + 1) as f64 / self.warmup_steps as f64;
        }
        if self.decay_steps == 0 || step < self.decay_start_step {
            return 1.0;
        }
        let end = self.decay_start_step + self.decay_steps;
        // After the decay, `saturating_sub` keeps the factor at its last value.
        let left = end.saturating_sub(step) as f64 / self.decay_steps as f64;
        left.powf(self.decay_power).max(self.decay_floor)
    }
}

#[cfg(test)]
mod tests {
    use super::{LearningRateSchedule, Optimizer, OptimizerConfig, WeightDecayMode};

    #[test]
    fn impossible_constants_are_errors() {
        let refused = |spoil: fn(&mut OptimizerConfig)| {
            let mut config = OptimizerConfig::new(Optimizer::Adam, 0.1);
            assert_eq!(config.check("dense"), Ok(()));
            spoil(&mut config);
            config.check("dense").unwrap_err().to_string()
        };
        let texts = [
            refused(|config| config.learning_rate = -1.0),
            refused(|config| config.learning_rate = 1e39),
            refused(|config| config.weight_decay = f64::NAN),
            refused(|config| config.beta1 = 1.0),
            refused(|config| config.beta2 = -0.1),
            refused(|config| config.epsilon = 0.0),
            refused(|config| config.weight_decay = 0.01),
            refused(|config| {
                config.weight_decay = 20.0;
                config.weight_decay_mode = WeightDecayMode::Decoupled;
            }),
        ];
        assert_eq!(
            texts,
            [
                "dense.learning_rate: expected a finite number ≥ 0, got -1",
                "dense.learning_rate: expected at most 3.4028235e38, the largest f32, got 1e39",
                "dense.weight_decay: expected a finite number ≥ 0, got NaN",
                "dense.beta1: expected a share in [0, 1), got 1",
                "dense.beta2: expected a share in [0, 1), got -0.1",
                "dense.epsilon: expected above 0: a weight without a gradient would become 0/0, \
                 got 0",
                "dense.weight_decay_mode: expected \"l2\" or \"decoupled\" where weight_decay is \
                 above 0, got \"none\"",
                "dense.weight_decay: expected learning_rate · weight_decay of at most 1: a decay \
                 beyond 0 changes signs, got 2",
            ]
        );
    }

    #[test]
    fn every_rule_has_its_configuration_name() {
        for kind in Optimizer::ALL {
            let saved = toml::Value::try_from(kind).unwrap();
            assert_eq!(saved.as_str(), Some(kind.name()));
        }
        let refused = toml::Value::from("?").try_into::<Optimizer>().unwrap_err().to_string();
        let names = Optimizer::ALL.map(|kind| format!("`{kind}`")).join(", ");
        assert!(refused.contains(&format!("expected one of {names}\n")), "{refused}");
    }

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
