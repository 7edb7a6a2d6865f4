//! Tests of the optimizer step of dense parameters.

use device::Cpu;
use device::MatrixShape;
use device::ops::dense_update::{self, DenseUpdate, FusedArguments, WeightArguments, scalar};
use device::ops::gemm::{
    self, Activation, InputGradient, LinearBackwardInput, LinearBackwardWeight, LinearForward,
    LinearWeight, Matrix, Operand, OperandMut, pairs, panels,
};
use device::optimizer::UpdateRule;
use schema::{Optimizer, OptimizerConfig, Precision};

use super::{
    assert_close, bits, check_refused, on_every_cpu, packed, same_on_every_cpu, uniform, unpacked,
    widen,
};
use crate::optimizer::configs;

fn rule(kind: Optimizer) -> UpdateRule {
    UpdateRule::new(&OptimizerConfig::new(kind, 0.1), 1.0, 0)
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
                    let rule = UpdateRule::new(&config, 1.0, step);
                    let arguments = DenseUpdate { rule, weights, gradient, state, dim };
                    dense_update::run(cpu, arguments).unwrap();
                }
                [weights, state].concat()
            });
            let (mut weights, mut state) = (before.clone(), vec![0.0; state_len]);
            let (mut wide, mut wide_state) = (widen(&before), vec![0.0; state_len]);
            for (step, gradient) in (0..).zip(&gradients) {
                let narrow = UpdateRule::new(&config, 1.0, step);
                scalar::update(&narrow, [&mut weights, &mut state], gradient, dim);
                let gradient = widen(gradient);
                let rule = UpdateRule::new(&config, 1.0, step);
                scalar::update(&rule, [&mut wide, &mut wide_state], &gradient, dim);
            }
            let same = bits(&after) == bits(&[weights, state].concat());
            assert!(same, "{config:?} {rows}x{dim}");
            assert_close(&after, &[wide, wide_state].concat(), 1e-5, 1.0);
        }
    }
}

#[test]
fn a_weight_in_panels_is_updated_with_what_its_products_read() {
    for config in configs() {
        for (n, k) in [(1, 1), (7, 13), (33, 64), (70, 31), (600, 40), (1, 300)] {
            let gradients = [1, 2].map(|seed| uniform(seed, n * k));
            let before = uniform(9, n * k);
            let (mut wide, mut wide_state) = (widen(&before), state_of(config.kind, (n, k)));
            for (step, gradient) in (0..).zip(&gradients) {
                let rule = UpdateRule::new(&config, 1.0, step);
                scalar::update(&rule, [&mut wide, &mut wide_state], &widen(gradient), k);
            }
            for precision in [Precision::F32, Precision::Bf16] {
                let after = same_on_every_cpu(|cpu| {
                    let mut weight = LinearWeight::new(MatrixShape::new(n, k), precision);
                    weight.set(cpu, &before).unwrap();
                    let mut state =
                        vec![0.0; dense_update::state_len(config.kind, MatrixShape::new(n, k))];
                    for (step, gradient) in (0..).zip(&gradients) {
                        let rule = UpdateRule::new(&config, 1.0, step);
                        let (gradient, state) = (&packed(gradient, n, k), &mut state[..]);
                        let weight = &mut weight;
                        let arguments = WeightArguments { rule, weight, gradient, state };
                        dense_update::run_weight(cpu, arguments).unwrap();
                    }
                    let values = unpacked(weight.values(), n, k);
                    assert_eq!(
                        both_products(cpu, &weight),
                        both_products(cpu, &anew(cpu, &weight))
                    );
                    [values, state].concat()
                });
                assert_close(&after[..n * k], &wide, 1e-5, 1.0);
            }
        }
    }
}

#[test]
fn an_update_within_the_product_gives_the_bytes_of_both_one_after_the_other() {
    let shapes = [(1, 1), (7, 13), (33, 64), (70, 31), (600, 40), (40, 200)];
    for config in configs().filter(|config| dense_update::is_fused(config.kind)) {
        for ((n, k), b) in shapes.into_iter().zip([37, 0, 600, 1, 1100, 64]) {
            for precision in [Precision::F32, Precision::Bf16] {
                let factors =
                    [(1, k), (2, n)].map(|(seed, width)| (uniform(seed, b * width), width));
                let run = |cpu: &Cpu, fused: bool| {
                    let [x, d_y] = factors
                        .each_ref()
                        .map(|(values, width)| in_precision(cpu, precision, values, (b, *width)));
                    let (x, d_y) = (x.get(b, k), d_y.get(b, n));
                    let mut weight = LinearWeight::new(MatrixShape::new(n, k), precision);
                    weight.set(cpu, &uniform(9, n * k)).unwrap();
                    let mut state =
                        vec![0.0; dense_update::state_len(config.kind, MatrixShape::new(n, k))];
                    let (mut gradient, mut d_bias) = (vec![9.0; panels::len(n, k)], vec![9.0; n]);
                    for step in 0..2 {
                        let rule = UpdateRule::new(&config, 1.0, step);
                        let (d_weight, d_bias) = (&mut gradient[..], Some(&mut d_bias[..]));
                        let product = LinearBackwardWeight { x, d_y, d_weight, d_bias, b, k, n };
                        let (weight, state) = (&mut weight, &mut state[..]);
                        if fused {
                            let arguments = FusedArguments { rule, weight, state, product };
                            dense_update::run_with_gradient(cpu, arguments).unwrap();
                            continue;
                        }
                        gemm::backward_weight(cpu, product).unwrap();
                        let gradient = &gradient[..];
                        let arguments = WeightArguments { rule, weight, gradient, state };
                        dense_update::run_weight(cpu, arguments).unwrap();
                    }
                    assert_eq!(
                        both_products(cpu, &weight),
                        both_products(cpu, &anew(cpu, &weight))
                    );
                    [weight.values(), &state, &gradient, &d_bias].concat()
                };
                on_every_cpu(|cpu| {
                    let (fused, apart) = (run(cpu, true), run(cpu, false));
                    assert_eq!(bits(&fused), bits(&apart), "{config:?} {n}x{k}, B = {b}");
                    fused
                });
            }
        }
    }
}

fn state_of(kind: Optimizer, (rows, dim): (usize, usize)) -> Vec<f64> {
    vec![0.0; rows * kind.state_per_row(dim)]
}

/// Creates a new weight with the values of `weight`.
fn anew(cpu: &Cpu, weight: &LinearWeight) -> LinearWeight {
    let shape @ MatrixShape { rows: n, columns: k } = weight.shape();
    let mut anew = LinearWeight::new(shape, weight.precision());
    anew.set(cpu, &unpacked(weight.values(), n, k)).unwrap();
    anew
}

/// Multiplies the weight by unit matrices, which returns every value of both copies.
fn both_products(cpu: &Cpu, weight: &LinearWeight) -> [Vec<f32>; 2] {
    let MatrixShape { rows: n, columns: k } = weight.shape();
    let [unit_k, unit_n] = [k, n].map(|size| {
        let mut unit = vec![0.0; size * size];
        unit.iter_mut().step_by(size + 1).for_each(|diagonal| *diagonal = 1.0);
        in_precision(cpu, weight.precision(), &unit, (size, size))
    });
    let (mut y, mut d_x) = (vec![9.0; panels::len(k, n)], vec![9.0; panels::len(n, k)]);
    let (x, to) = (unit_k.get(k, k), OperandMut::F32(&mut y));
    let activation = Activation::None;
    let forward = LinearForward { x, weight, bias: None, activation, y: to, b: k };
    gemm::forward(cpu, forward).unwrap();
    let (d_y, to) = (unit_n.get(n, n), OperandMut::F32(&mut d_x));
    let gradient = InputGradient::Write;
    gemm::backward_input(cpu, LinearBackwardInput { d_y, weight, gradient, d_x: to, b: n })
        .unwrap();
    [unpacked(&y, k, n), unpacked(&d_x, n, k)]
}

/// Returns `matrix` `[rows, columns]` in the layout that products in `precision` read.
fn in_precision(
    cpu: &Cpu,
    precision: Precision,
    matrix: &[f32],
    (rows, columns): (usize, usize),
) -> Matrix {
    let mut read = Matrix::new(precision, rows, columns);
    let panels = packed(matrix, rows, columns);
    match read.get_mut(rows, columns) {
        OperandMut::F32(to) => to.copy_from_slice(&panels),
        OperandMut::Bf16(to) => {
            pairs::round(cpu, &panels, MatrixShape::new(rows, columns), to).unwrap();
        }
    }
    read
}

#[test]
fn the_first_adagrad_step_has_the_length_of_the_learning_rate() {
    let (mut weights, mut state) = (vec![1.0, 1.0], vec![0.0, 0.0]);
    let arguments = DenseUpdate {
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
        let arguments = DenseUpdate {
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
    let mut weight = LinearWeight::new(MatrixShape::new(2, 3), Precision::F32);
    let mut check = |kind: Optimizer, gradient: usize, state: usize, text: &str| {
        let (gradient, state) = (&vec![1.0; gradient][..], &mut vec![0.0; state][..]);
        let arguments = WeightArguments { rule: rule(kind), weight: &mut weight, gradient, state };
        check_refused(dense_update::run_weight(&Cpu::new(1), arguments), text);
    };
    let text = "dense_update: gradient [N, K] in panels: expected 64, got 6";
    check(Optimizer::Sgd, 6, 0, text);
    check(Optimizer::Adam, 64, 64, "dense_update: state: expected 128, got 64");
    check(Optimizer::RowwiseAdagrad, 64, 64, "dense_update: state: expected 2, got 64");
    let mut check = |n: usize, state: usize, text: &str| {
        let (x, d_y) = (Operand::F32(&[1.0; 64]), Operand::F32(&[1.0; 64]));
        let d_weight = &mut [0.0; 96][..32 * n];
        let product = LinearBackwardWeight { x, d_y, d_weight, d_bias: None, b: 2, k: 3, n };
        let (rule, weight, state) = (rule(Optimizer::Adam), &mut weight, &mut [0.0; 128][..state]);
        let arguments = FusedArguments { rule, weight, state, product };
        check_refused(dense_update::run_with_gradient(&Cpu::new(1), arguments), text);
    };
    check(3, 128, "dense_update: outputs of the product: expected 2, got 3");
    check(2, 64, "dense_update: state: expected 128, got 64");
    assert!(weight.values().iter().all(|&value| value == 0.0));
}
