//! Tests of the update rules with every weight decay against independent f64 code, over several
//! steps. LAMB is also tested with a norm of 0.

use device::optimizer::{UpdateRule, split_state};
use schema::random::CounterRng;
use schema::{Optimizer, OptimizerConfig, WeightDecayMode};

const MODES: [WeightDecayMode; 3] =
    [WeightDecayMode::None, WeightDecayMode::L2, WeightDecayMode::Decoupled];

/// Returns the configuration of `kind`, with a decay of 0.3 if the mode has one. ε is large
/// enough to affect the results.
pub fn config(kind: Optimizer, mode: WeightDecayMode) -> OptimizerConfig {
    let weight_decay = if mode == WeightDecayMode::None { 0.0 } else { 0.3 };
    let base = OptimizerConfig::new(kind, 0.1);
    OptimizerConfig { epsilon: 1e-3, beta2: 0.99, weight_decay, weight_decay_mode: mode, ..base }
}

/// Returns a configuration for every rule with every decay mode.
pub fn configs() -> impl Iterator<Item = OptimizerConfig> {
    Optimizer::ALL.into_iter().flat_map(|kind| MODES.map(|mode| config(kind, mode)))
}

/// Computes the steps of one row in f64 with independently written formulas. Returns `(weights,
/// state)` after all `gradients`.
fn by_hand(config: &OptimizerConfig, dim: usize, gradients: &[Vec<f32>]) -> (Vec<f64>, Vec<f64>) {
    let OptimizerConfig { kind, learning_rate: rate, epsilon, beta1, beta2, .. } = *config;
    let lambda = |mode| if config.weight_decay_mode == mode { config.weight_decay } else { 0.0 };
    let (l2, decoupled) = (lambda(WeightDecayMode::L2), lambda(WeightDecayMode::Decoupled));
    let mut weights = vec![0.25; dim];
    let mut state = vec![0.0; kind.state_per_row(dim)];
    for (step, gradient) in gradients.iter().enumerate() {
        let plain = weights.clone();
        let g: Vec<f64> =
            gradient.iter().zip(&plain).map(|(&g, w)| f64::from(g) + l2 * w).collect();
        if kind == Optimizer::RowwiseAdagrad {
            state[0] += g.iter().map(|g| g.powi(2)).sum::<f64>() / dim as f64;
        }
        let mut direction = vec![0.0; dim];
        for d in 0..dim {
            direction[d] = match kind {
                Optimizer::Sgd => g[d],
                Optimizer::Adagrad => {
                    state[d] += g[d].powi(2);
                    g[d] / (state[d].sqrt() + epsilon)
                }
                Optimizer::RowwiseAdagrad => g[d] / (state[0].sqrt() + epsilon),
                Optimizer::Adam | Optimizer::SparseAdam | Optimizer::Lamb => {
                    let t = step as i32 + 1;
                    state[d] = beta1 * state[d] + (1.0 - beta1) * g[d];
                    state[dim + d] = beta2 * state[dim + d] + (1.0 - beta2) * g[d].powi(2);
                    let mean = state[d] / (1.0 - beta1.powi(t));
                    let square = state[dim + d] / (1.0 - beta2.powi(t));
                    if kind == Optimizer::SparseAdam {
                        // SparseAdam has the form of `torch.optim.SparseAdam`.
                        let rate = (1.0 - beta2.powi(t)).sqrt() / (1.0 - beta1.powi(t));
                        rate * (state[d] / (state[dim + d].sqrt() + epsilon))
                    } else {
                        mean / (square.sqrt() + epsilon)
                    }
                }
            } + decoupled * plain[d];
        }
        let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
        let ratio = if kind == Optimizer::Lamb { norm(&plain) / norm(&direction) } else { 1.0 };
        for d in 0..dim {
            weights[d] -= rate * ratio * direction[d];
        }
    }
    (weights, state)
}

#[test]
fn every_rule_follows_its_formula_in_f32_and_f64() {
    for config in configs() {
        let kind = config.kind;
        for dim in [1, 2, 5, 16, 17, 64, 100] {
            let rng = CounterRng::new(dim as u64, 1);
            let gradient = |step: u64| -> Vec<f32> {
                (0..dim as u64).map(|d| rng.child(step).normal(d) as f32).collect()
            };
            let gradients: Vec<Vec<f32>> = (0..6).map(gradient).collect();
            let (weights, state) = by_hand(&config, dim, &gradients);

            let (mut w32, mut h32) = (vec![0.25f32; dim], vec![0.0f32; state.len()]);
            let (mut w64, mut h64) = (vec![0.25f64; dim], vec![0.0f64; state.len()]);
            for (step, gradient) in (0..).zip(&gradients) {
                let narrow = UpdateRule::new(&config, 1.0, step);
                narrow.update_row(&mut w32, gradient, split_state(kind, &mut h32));
                let gradient: Vec<f64> = gradient.iter().map(|&g| f64::from(g)).collect();
                let wide = UpdateRule::new(&config, 1.0, step);
                wide.update_row(&mut w64, &gradient, split_state(kind, &mut h64));
            }
            let near = |got: f64, expected: f64, tolerance: f64| {
                let error = (got - expected).abs();
                assert!(
                    error <= tolerance * expected.abs().max(1.0),
                    "{config:?} D={dim}: {got} {expected}"
                );
            };
            for d in 0..dim {
                near(w64[d], weights[d], 1e-12);
                near(f64::from(w32[d]), weights[d], 4e-6);
            }
            for i in 0..state.len() {
                near(h64[i], state[i], 1e-12);
                near(f64::from(h32[i]), state[i], 4e-6);
            }
        }
    }
}

#[test]
fn lamb_takes_the_ratio_1_where_a_norm_is_0() {
    let config = config(Optimizer::Lamb, WeightDecayMode::None);
    let step = |weights: &mut [f64], gradient: &[f64]| {
        let mut state = vec![0.0; 2 * weights.len()];
        UpdateRule::new(&config, 1.0, 0).update_row(
            weights,
            gradient,
            split_state(Optimizer::Lamb, &mut state),
        );
    };
    // If all weights are 0, a step of LAMB equals a step of Adam, which is ± η apart from ε.
    let mut weights = [0.0; 2];
    step(&mut weights, &[2.0, -3.0]);
    assert!((weights[0] + 0.1).abs() < 1e-4 && (weights[1] - 0.1).abs() < 1e-4, "{weights:?}");
    // Without a gradient, the direction is 0 and the weights do not change.
    let mut weights = [3.0, -1.0];
    step(&mut weights, &[0.0, 0.0]);
    assert_eq!(weights, [3.0, -1.0]);
}

#[test]
fn the_bias_correction_makes_the_first_steps_of_adam_as_long_as_the_rate() {
    let config = OptimizerConfig::new(Optimizer::Adam, 0.01);
    let (mut weights, mut state) = ([1.0f64], [0.0; 2]);
    for step in 0..5 {
        let before = weights[0];
        let rule = UpdateRule::new(&config, 1.0, step);
        rule.update_row(&mut weights, &[0.5], split_state(Optimizer::Adam, &mut state));
        assert!((before - weights[0] - 0.01).abs() < 1e-9, "step {step}");
    }
}

/// Reproduces the example of the issue: from equal starts and equal gradients, the two rules must
/// give different results.
#[test]
fn adam_and_sparse_adam_differ_in_where_epsilon_stands() {
    let after_30_steps = |kind| {
        let config = OptimizerConfig { epsilon: 1e-3, ..OptimizerConfig::new(kind, 0.01) };
        let (mut weights, mut state) = (vec![0.1f64; 16], vec![0.0; 32]);
        for step in 0..30 {
            let rng = CounterRng::new(5, step);
            let gradient: Vec<f64> = (0..16).map(|d| 0.01 * rng.normal(d)).collect();
            let rule = UpdateRule::new(&config, 1.0, step);
            rule.update_row(&mut weights, &gradient, split_state(kind, &mut state));
        }
        (weights, state)
    };
    let (adam, sparse) = (after_30_steps(Optimizer::Adam), after_30_steps(Optimizer::SparseAdam));
    // The two rules must have the same running means, because ε does not affect them.
    assert_eq!(adam.1, sparse.1);
    let apart = adam.0.iter().zip(&sparse.0).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart > 1e-3, "{apart}");
}
