//! Tests of ReLU and sigmoid against their oracles.

use device::Cpu;
use device::ops::activation::{self, scalar};

use super::{assert_close, bits, check_gradient, check_refused, same_on_every_cpu, uniform, widen};

#[test]
fn relu_keeps_positive_values_and_nan() {
    let x = [-1.0, -0.0, 0.0, 2.5, f32::NEG_INFINITY, f32::INFINITY];
    assert_eq!(x.map(scalar::relu), [0.0, 0.0, 0.0, 2.5, 0.0, f32::INFINITY]);
    assert!(scalar::relu(f32::NAN).is_nan());
}

#[test]
fn relu_backward_stops_where_the_output_is_not_positive() {
    let mut d_y = vec![5.0, 6.0, 7.0];
    activation::relu_backward(&Cpu::new(1), &[0.0, 1e-30, -1.0], &mut d_y).unwrap();
    assert_eq!(d_y, [0.0, 6.0, 0.0]);
}

#[test]
fn many_chunks_give_the_bytes_of_the_oracle() {
    for len in [0, 1, 16_384, 16_385, 100_001] {
        let x = uniform(1, len);
        let y: Vec<f32> = x.iter().map(|&x| scalar::relu(x)).collect();
        let d_y = uniform(2, len);
        let d_x = same_on_every_cpu(|cpu| {
            let mut d = d_y.clone();
            activation::relu_backward(cpu, &y, &mut d).unwrap();
            d
        });
        let pairs = y.iter().zip(&d_y);
        let oracle: Vec<f32> = pairs.map(|(&y, &d_y)| scalar::relu_gradient(y, d_y)).collect();
        assert_eq!(bits(&d_x), bits(&oracle));
    }
}

#[test]
fn relu_gradient_matches_differences() {
    // The inputs are moved away from 0, where ReLU has no derivative.
    let x: Vec<f64> = widen(&uniform(3, 50)).iter().map(|x| x + 0.1 * x.signum()).collect();
    let gradient: Vec<f64> =
        x.iter().map(|&x| scalar::relu_gradient(scalar::relu(x), 1.0)).collect();
    check_gradient(&x, &gradient, |x| x.iter().map(|&x| scalar::relu(x)).sum());
}

#[test]
fn sigmoid_is_accurate_and_finite_at_both_ends() {
    let logits = [-100.0, -20.0, -1.0, 0.0, 1.0, 20.0, 100.0, -1e30, 1e30];
    let mut probabilities = vec![9.0; logits.len()];
    activation::sigmoid(&Cpu::new(1), &logits, &mut probabilities).unwrap();
    let expected: Vec<f64> = logits.iter().map(|&x| 1.0 / (1.0 + (-f64::from(x)).exp())).collect();
    assert_close(&probabilities, &expected, 1e-7, 1e-38);
    assert_eq!(probabilities[3], 0.5);
}

#[test]
fn different_lengths_are_refused() {
    let result = activation::relu_backward(&Cpu::new(1), &[1.0; 3], &mut [1.0; 4]);
    check_refused(result, "relu backward: y, one per element of d_y: expected 4, got 3");
    let result = activation::sigmoid(&Cpu::new(1), &[1.0; 3], &mut [1.0; 4]);
    check_refused(result, "sigmoid: probabilities, one per logit: expected 3, got 4");
}
