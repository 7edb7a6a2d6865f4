//! Tests of the losses and their gradients against their oracles.

use device::Cpu;
use device::ops::loss::{self, LossArguments, scalar};
use schema::Loss;

use super::{assert_close, bits, check_gradient, same_on_every_cpu, uniform, widen};

struct Result {
    sum: f64,
    gradient: Vec<f32>,
    probabilities: Vec<f32>,
}

fn run(cpu: &Cpu, kind: Loss, logits: &[f32], labels: &[f32], normaliser: f64) -> Result {
    let [mut gradient, mut probabilities] = [0, 1].map(|_| vec![9.0; logits.len()]);
    let arguments = LossArguments {
        kind,
        logits,
        labels,
        normaliser,
        gradient: &mut gradient,
        probabilities: &mut probabilities,
    };
    let sum = loss::run(cpu, arguments).unwrap();
    Result { sum, gradient, probabilities }
}

#[test]
fn a_zero_logit_costs_ln_2_or_a_quarter() {
    let cpu = Cpu::new(1);
    let bce = run(&cpu, Loss::BceWithLogits, &[0.0], &[1.0], 4.0);
    assert!((bce.sum - std::f64::consts::LN_2).abs() < 1e-15);
    assert_eq!((bce.gradient[0], bce.probabilities[0]), (-0.125, 0.5));
    let mse = run(&cpu, Loss::Mse, &[0.0], &[1.0], 4.0);
    assert_eq!((mse.sum, mse.gradient[0], mse.probabilities[0]), (0.25, -0.0625, 0.5));
}

#[test]
fn extreme_logits_stay_finite() {
    let logits = [100.0, -100.0, 100.0, -100.0, 3e38, -3e38];
    let labels = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
    let bce = run(&Cpu::new(2), Loss::BceWithLogits, &logits, &labels, 1.0);
    assert!(bce.sum.is_finite());
    assert_close(&bce.gradient, &[0.0, 0.0, 1.0, -1.0, 1.0, -1.0], 1e-12, 1.0);
    assert_close(&bce.probabilities, &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0], 1e-12, 1.0);
    let two = run(&Cpu::new(2), Loss::BceWithLogits, &logits[2..4], &labels[2..4], 1.0);
    assert!((two.sum - 200.0).abs() < 1e-9);
    let mse = run(&Cpu::new(2), Loss::Mse, &logits, &labels, 1.0);
    assert!((mse.sum - 4.0).abs() < 1e-9);
    assert!(mse.gradient.iter().all(|gradient| gradient.is_finite()));
}

#[test]
fn the_batch_follows_the_oracle_with_any_number_of_threads() {
    for kind in [Loss::BceWithLogits, Loss::Mse] {
        for b in [0, 1, 511, 512, 513, 5000] {
            let logits: Vec<f32> = uniform(1, b).iter().map(|x| x * 8.0).collect();
            let labels: Vec<f32> = uniform(2, b).iter().map(|&x| f32::from(x > 0.3)).collect();
            let normaliser = 3.0 * b as f64;
            let got = same_on_every_cpu(|cpu| {
                let result = run(cpu, kind, &logits, &labels, normaliser);
                let sum = result.sum.to_bits();
                let halves = [sum >> 32, sum & 0xffff_ffff].map(|half| f32::from_bits(half as u32));
                [&halves[..], &result.gradient, &result.probabilities].concat()
            });
            let result = run(&Cpu::new(1), kind, &logits, &labels, normaliser);
            assert_eq!(bits(&got[2..2 + b]), bits(&result.gradient));
            let samples: Vec<_> = logits
                .iter()
                .zip(&labels)
                .map(|(&z, &y)| scalar::sample(kind, f64::from(z), f64::from(y)))
                .collect();
            let sum: f64 = samples.iter().map(|sample| sample.loss).sum();
            assert!((result.sum - sum).abs() <= 1e-12 * sum);
            let gradient: Vec<f64> = samples.iter().map(|s| s.gradient / normaliser).collect();
            assert_close(&result.gradient, &gradient, 1e-7, 1e-38);
            let probabilities: Vec<f64> = samples.iter().map(|s| s.probability).collect();
            assert_close(&result.probabilities, &probabilities, 1e-7, 1e-38);
        }
    }
}

#[test]
fn gradients_match_differences() {
    let logits: Vec<f64> = widen(&uniform(5, 40)).iter().map(|z| z * 6.0).collect();
    let labels: Vec<f64> = (0..40).map(|i| f64::from(i % 2)).collect();
    for kind in [Loss::BceWithLogits, Loss::Mse] {
        let samples = |logits: &[f64]| -> Vec<scalar::SampleLoss<f64>> {
            logits.iter().zip(&labels).map(|(&z, &y)| scalar::sample(kind, z, y)).collect()
        };
        let gradient: Vec<f64> = samples(&logits).iter().map(|s| s.gradient).collect();
        check_gradient(&logits, &gradient, |z| samples(z).iter().map(|s| s.loss).sum());
    }
}

#[test]
fn different_lengths_are_refused() {
    let arguments = LossArguments {
        kind: Loss::Mse,
        logits: &[0.0; 3],
        labels: &[0.0; 2],
        normaliser: 1.0,
        gradient: &mut [0.0; 3],
        probabilities: &mut [0.0; 3],
    };
    let error = loss::run(&Cpu::new(1), arguments).unwrap_err();
    assert_eq!(error.to_string(), "loss: labels [B]: expected 3, got 2");
}
