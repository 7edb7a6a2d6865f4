use schema::{Batch, JaggedTensor, JobConfig};

use super::{FirstOrderModel, LANES};

const CONFIG: &str = r#"
[model]
name = "one table"
dense_features = 0
top = [1]
interaction = { kind = "cat" }
loss = "bce_with_logits"
tables = [{ name = "a", rows = 4, dim = 1 }]
[optimizer]
sparse = { kind = "sgd", learning_rate = 0.1 }
dense = { kind = "sgd", learning_rate = 0.1 }
[training]
batch_size = 1
[data]
format = "csv"
label = { column = "y" }
categorical = [{ column = "a", kind = "integer" }]
"#;

/// Samples of three categories: 90, 50 and 20 % of them have the label 1.
fn samples() -> Batch {
    const SAMPLES: usize = 1200;
    let ids: Vec<i64> = (0..SAMPLES as i64).map(|sample| sample % 3).collect();
    let positive_tenths = [9, 5, 2];
    let label = |sample: usize| {
        let is_positive = sample / 3 % 10 < positive_tenths[sample % 3];
        f32::from(u8::from(is_positive))
    };
    Batch {
        size: SAMPLES,
        dense: Vec::new(),
        sparse: JaggedTensor::from_lengths(1, &[1; SAMPLES], ids),
        labels: (0..SAMPLES).map(label).collect(),
    }
}

#[test]
fn weak_penalties_give_the_share_of_each_category_and_strong_ones_shrink_it() {
    let config = JobConfig::parse(CONFIG, &[]).unwrap();
    let batch = samples();
    let mut model = FirstOrderModel::new(&config, batch.size as u64);
    model.uses = vec![0.0; 4];
    for sample in 0..batch.size {
        model.collect_active(&batch, sample);
        model.active.iter().for_each(|&(at, _)| model.uses[at] += 1.0);
    }
    model.label_sum = batch.labels.iter().copied().map(f64::from).sum();
    model.begin();
    let passes = 60;
    for pass in 0..passes {
        model.learn(&batch, 1.0 - f64::from(pass) / f64::from(passes));
    }
    let mut predict = |lane| {
        let mut probabilities = Vec::new();
        model.predict(&batch, lane, &mut probabilities);
        [probabilities[0], probabilities[1], probabilities[2]]
    };
    let mut check = |lane, expected: [f32; 3]| {
        for (got, expected) in predict(lane).into_iter().zip(expected) {
            assert!((got - expected).abs() < 0.02, "strength {lane}: {got} for {expected}");
        }
    };
    check(0, [0.9, 0.5, 0.2]);
    // The minimum of the penalized loss with strength 100, found by gradient descent on all
    // samples.
    check(LANES - 1, [0.711, 0.519, 0.370]);
}
