//! The update rules against f64 arithmetic written out independently, over several steps.

use device::optimizer::Rule;
use schema::Optimizer;
use schema::random::CounterRng;

/// The formulas of one row, in f64, written out once more: `(weights, state)` after all
/// `gradients`.
fn by_hand(kind: Optimizer, dim: usize, gradients: &[Vec<f32>]) -> (Vec<f64>, Vec<f64>) {
    let (rate, epsilon) = (0.1, 1e-3);
    let mut weights = vec![0.25; dim];
    let mut state = vec![0.0; kind.state_per_row(dim)];
    for gradient in gradients {
        let gradient: Vec<f64> = gradient.iter().map(|&g| f64::from(g)).collect();
        match kind {
            Optimizer::Sgd => {
                for d in 0..dim {
                    weights[d] -= rate * gradient[d];
                }
            }
            Optimizer::Adagrad => {
                for d in 0..dim {
                    state[d] += gradient[d].powi(2);
                    weights[d] -= rate * gradient[d] / (state[d].sqrt() + epsilon);
                }
            }
            Optimizer::RowwiseAdagrad => {
                state[0] += gradient.iter().map(|g| g.powi(2)).sum::<f64>() / dim as f64;
                for d in 0..dim {
                    weights[d] -= rate * gradient[d] / (state[0].sqrt() + epsilon);
                }
            }
        }
    }
    (weights, state)
}

#[test]
fn every_rule_follows_its_formula_in_f32_and_f64() {
    for kind in [Optimizer::Sgd, Optimizer::Adagrad, Optimizer::RowwiseAdagrad] {
        for dim in [1, 2, 5, 16, 17, 64, 100] {
            let rng = CounterRng::new(dim as u64, 1);
            let gradient = |step: u64| -> Vec<f32> {
                (0..dim as u64).map(|d| rng.child(step).normal(d) as f32).collect()
            };
            let gradients: Vec<Vec<f32>> = (0..6).map(gradient).collect();
            let (weights, state) = by_hand(kind, dim, &gradients);

            let narrow = Rule { kind, learning_rate: 0.1f32, epsilon: 1e-3 };
            let wide = Rule { kind, learning_rate: 0.1f64, epsilon: 1e-3 };
            let (mut w32, mut h32) = (vec![0.25f32; dim], vec![0.0f32; state.len()]);
            let (mut w64, mut h64) = (vec![0.25f64; dim], vec![0.0f64; state.len()]);
            for gradient in &gradients {
                narrow.update_row(&mut w32, gradient, &mut h32);
                let gradient: Vec<f64> = gradient.iter().map(|&g| f64::from(g)).collect();
                wide.update_row(&mut w64, &gradient, &mut h64);
            }
            let near = |got: f64, expected: f64, tolerance: f64| {
                let error = (got - expected).abs();
                assert!(
                    error <= tolerance * expected.abs().max(1.0),
                    "{kind:?} D={dim}: {got} {expected}"
                );
            };
            for d in 0..dim {
                near(w64[d], weights[d], 1e-13);
                near(f64::from(w32[d]), weights[d], 2e-6);
            }
            for i in 0..state.len() {
                near(h64[i], state[i], 1e-13);
                near(f64::from(h32[i]), state[i], 2e-6);
            }
        }
    }
}
