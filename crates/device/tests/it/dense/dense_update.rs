//! The optimizer step of dense parameters.

use device::Cpu;
use device::ops::dense_update::{self, Arguments, scalar};
use device::optimizer::Rule;
use schema::{Optimizer, OptimizerConfig};

use super::{assert_close, bits, check_refused, same_on_every_cpu, uniform, widen};
use crate::optimizer::configs;

fn rule(kind: Optimizer) -> Rule {
    Rule::new(&OptimizerConfig::new(kind, 0.1), 1.0, 0)
}

#[test]
fn every_rule_follows_the_f32_and_the_f64_oracle_over_steps() {
    for config in configs() {
        for (rows, dim) in [(0, 4), (1, 1), (7, 13), (1, 40_000), (40_000, 1), (400, 129)] {
            let state_len = rows * config.kind.state_per_row(dim);
            let gradients = [1, 2, 3].map(|seed| uniform(seed, rows * dim));
            let before = uniform(9, rows * dim);
            let after = same_on_every_cpu(|cpu| {
                let (mut weights, mut state) = (before.clone(), vec![0.0; state_len]);
                for (step, gradient) in (0..).zip(&gradients) {
                    let (weights, state) = (&mut weights[..], &mut state[..]);
                    let rule = Rule::new(&config, 1.0, step);
                    let arguments = Arguments { rule, weights, gradient, state, dim };
                    dense_update::run(cpu, arguments).unwrap();
                }
                [weights, state].concat()
            });
            let (mut weights, mut state) = (before.clone(), vec![0.0; state_len]);
            let (mut wide, mut wide_state) = (widen(&before), vec![0.0; state_len]);
            for (step, gradient) in (0..).zip(&gradients) {
                let narrow = Rule::new(&config, 1.0, step);
                scalar::update(&narrow, [&mut weights, &mut state], (gradient, dim));
                let gradient = widen(gradient);
                let rule = Rule::new(&config, 1.0, step);
                scalar::update(&rule, [&mut wide, &mut wide_state], (&gradient, dim));
            }
            let same = bits(&after) == bits(&[weights, state].concat());
            assert!(same, "{config:?} {rows}x{dim}");
            assert_close(&after, &[wide, wide_state].concat(), 1e-5, 1.0);
        }
    }
}

#[test]
fn the_first_adagrad_step_has_the_length_of_the_learning_rate() {
    let (mut weights, mut state) = (vec![1.0, 1.0], vec![0.0, 0.0]);
    let arguments = Arguments {
        rule: rule(Optimizer::Adagrad),
        weights: &mut weights,
        gradient: &[3.0, -0.5],
        state: &mut state,
        dim: 2,
    };
    dense_update::run(&Cpu::new(1), arguments).unwrap();
    assert_close(&weights, &[0.9, 1.1], 1e-6, 0.0);
    assert_eq!(state, [9.0, 0.25]);
}

#[test]
fn wrong_lengths_are_refused_before_any_change() {
    let mut weights = vec![1.0; 6];
    let mut check = |gradient: usize, state: usize, dim: usize, text: &str| {
        let arguments = Arguments {
            rule: rule(Optimizer::RowwiseAdagrad),
            weights: &mut weights,
            gradient: &vec![1.0; gradient],
            state: &mut vec![0.0; state],
            dim,
        };
        check_refused(dense_update::run(&Cpu::new(1), arguments), text);
    };
    check(5, 2, 3, "dense_update: gradient [rows, dim]: expected 6, got 5");
    check(6, 3, 3, "dense_update: state: expected 2, got 3");
    check(6, 1, 4, "dense_update: weights [rows, dim]: expected 4, got 6");
    assert_eq!(weights, [1.0; 6]);
}
