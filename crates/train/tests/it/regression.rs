//! Tests regression with an MLP: its accuracy on new rows, equal bytes for any number of threads,
//! and refused rows.

use device::Cpu;
use schema::random::CounterRng;
use schema::{Optimizer, OptimizerConfig};

use train::Error;
use train::regression::{Regression, RegressionConfig, RegressionExamples};

const COLUMNS: usize = 3;

fn config(optimizer: OptimizerConfig, widths: &[usize]) -> RegressionConfig {
    RegressionConfig { widths: widths.to_vec(), optimizer, batch_size: 16, seed: 5 }
}

/// Creates rows of random inputs with the target that `of` computes from them.
fn rows(count: u64, of: impl Fn(&[f32]) -> f32) -> (Vec<f32>, Vec<f32>) {
    let mut inputs = Vec::new();
    for row in 0..count {
        let random = CounterRng::new(9, row);
        inputs.extend((0..COLUMNS as u64).map(|at| (10.0 * random.unit(at)) as f32));
    }
    let targets = inputs.chunks_exact(COLUMNS).map(of).collect();
    (inputs, targets)
}

fn learned(config: RegressionConfig, threads: usize, epochs: usize) -> Vec<f32> {
    let (inputs, targets) = rows(300, |row| row[0].max(row[1]) - 0.3 * row[2]);
    let examples = RegressionExamples { inputs: &inputs, targets: &targets };
    let mut regression = Regression::new(Cpu::new(threads), config, examples).unwrap();
    for _ in 0..epochs {
        regression.epoch(examples).unwrap();
    }
    regression.predict(&rows(40, |_| 0.0).0).unwrap()
}

#[test]
fn a_learned_function_generalizes_to_new_rows() {
    let (inputs, targets) = rows(1_200, |row| row[0].max(row[1]) - 0.3 * row[2]);
    let (old, new) = inputs.split_at(1_000 * COLUMNS);
    let examples = RegressionExamples { inputs: old, targets: &targets[..1_000] };
    for optimizer in
        [OptimizerConfig::new(Optimizer::Adam, 3e-3), OptimizerConfig::new(Optimizer::Sgd, 3e-2)]
    {
        let config = config(optimizer, &[32, 32]);
        let mut regression = Regression::new(Cpu::new(1), config, examples).unwrap();
        let first = regression.epoch(examples).unwrap();
        let last = (0..40).map(|_| regression.epoch(examples).unwrap()).last();
        assert!(last.unwrap() < 0.03 * first, "{last:?} after {first}");
        let predicted = regression.predict(new).unwrap();
        let off = predicted.iter().zip(&targets[1_000..]).map(|(got, wanted)| (got - wanted).abs());
        let mean = off.sum::<f32>() / 200.0;
        assert!(mean < 0.25, "off by {mean}");
    }
}

#[test]
fn linear_regression_without_hidden_layers_is_exact() {
    let (inputs, targets) = rows(200, |row| 2.0 * row[0] - row[1] + 4.0);
    let examples = RegressionExamples { inputs: &inputs, targets: &targets };
    let config = config(OptimizerConfig::new(Optimizer::Sgd, 0.05), &[]);
    let mut regression = Regression::new(Cpu::new(1), config, examples).unwrap();
    for _ in 0..60 {
        regression.epoch(examples).unwrap();
    }
    let predicted = regression.predict(&inputs).unwrap();
    for (got, wanted) in predicted.iter().zip(&targets) {
        assert!((got - wanted).abs() < 1e-3, "{got} for {wanted}");
    }
}

#[test]
fn predictions_are_the_same_bytes_for_any_number_of_threads() {
    let config = config(OptimizerConfig::new(Optimizer::Adam, 1e-3), &[48, 64]);
    let one = learned(config.clone(), 1, 3);
    assert!([2, 7].into_iter().all(|threads| learned(config.clone(), threads, 3) == one));
    assert_ne!(learned(RegressionConfig { seed: 6, ..config }, 1, 3), one, "another seed");
}

#[test]
fn rows_with_the_wrong_number_of_columns_are_refused() {
    let config = config(OptimizerConfig::new(Optimizer::Sgd, 0.1), &[8]);
    let refused = |inputs: &[f32], targets: &[f32]| {
        let examples = RegressionExamples { inputs, targets };
        let made = Regression::new(Cpu::new(1), config.clone(), examples);
        assert!(matches!(made.err(), Some(Error::BatchShape { .. })));
    };
    refused(&[], &[]);
    refused(&[1.0, 2.0, 3.0], &[1.0, 2.0]);
    let (inputs, targets) = rows(20, |row| row[0]);
    let examples = RegressionExamples { inputs: &inputs, targets: &targets };
    let mut regression = Regression::new(Cpu::new(1), config, examples).unwrap();
    let error = regression.predict(&inputs[..4]).unwrap_err();
    assert!(matches!(error, Error::BatchShape { expected: 3, got: 1, .. }), "{error}");
}
