//! Compares metrics with known values, and the AUC with a loop over all pairs of samples.

use proptest::prelude::*;
use train::metric::{Accumulator, Evaluation};

fn evaluate(probabilities: &[f32], labels: &[f32]) -> Evaluation {
    let mut accumulator = Accumulator::new();
    accumulator.push(probabilities, labels, 0.0);
    accumulator.finish()
}

/// Computes the AUC over all pairs of a click and a non-click. A pair counts 1 if the click has the
/// higher probability, and ½ if both probabilities are equal.
fn auc_of_all_pairs(probabilities: &[f32], labels: &[f32]) -> f64 {
    let (mut wins, mut pairs) = (0.0, 0.0);
    for (p, y) in probabilities.iter().zip(labels) {
        for (q, z) in probabilities.iter().zip(labels) {
            if *y == 1.0 && *z == 0.0 {
                pairs += 1.0;
                wins += if p > q { 1.0 } else { f64::from(u8::from(p == q)) / 2.0 };
            }
        }
    }
    if pairs == 0.0 { 0.5 } else { wins / pairs }
}

#[test]
fn metrics_match_values_computed_by_hand() {
    let mut accumulator = Accumulator::new();
    accumulator.push(&[0.1, 0.4, 0.35, 0.8], &[0.0, 0.0, 1.0, 1.0], 2.0);
    let got = accumulator.finish();
    assert_eq!((got.samples, got.loss, got.auc, got.accuracy), (4, 0.5, 0.75, 0.75));
    assert!((got.calibration - 1.65 / 2.0).abs() < 1e-7);
    let cross_entropy = -(0.9f64.ln() + 0.6f64.ln() + 0.35f64.ln() + 0.8f64.ln()) / 4.0;
    assert!((got.normalized_entropy - cross_entropy / 2f64.ln()).abs() < 1e-7);
}

#[test]
fn the_base_rate_has_normalized_entropy_one_and_auc_one_half() {
    let labels: Vec<f32> = (0..1000).map(|i| f32::from(u8::from(i % 4 == 0))).collect();
    let got = evaluate(&[0.25; 1000], &labels);
    assert_eq!((got.auc, got.accuracy, got.calibration), (0.5, 0.75, 1.0));
    assert!((got.normalized_entropy - 1.0).abs() < 1e-12);
}

#[test]
fn metrics_of_degenerate_samples_are_nan_or_one_half() {
    let one_class = evaluate(&[0.2, 0.9], &[0.0, 0.0]);
    assert_eq!(one_class.auc, 0.5);
    assert!(one_class.calibration.is_nan() && one_class.normalized_entropy.is_nan());
    let diverged = evaluate(&[0.2, f32::NAN], &[0.0, 1.0]);
    assert!(diverged.auc.is_nan() && diverged.normalized_entropy.is_nan());
    let none = evaluate(&[], &[]);
    assert!(none.samples == 0 && none.loss.is_nan() && none.accuracy.is_nan());
}

#[test]
fn saturated_probabilities_give_a_large_finite_loss() {
    let got = evaluate(&[0.0, 1.0, 0.0, 1.0], &[1.0, 0.0, 0.0, 1.0]);
    assert!(got.normalized_entropy.is_finite() && got.normalized_entropy > 10.0);
    let tie = evaluate(&[0.0, -0.0], &[0.0, 1.0]);
    assert_eq!(tie.auc, 0.5);
}

proptest! {
    #[test]
    fn auc_equals_the_share_of_ordered_pairs(
        samples in proptest::collection::vec((0u32..20, any::<bool>()), 1..200),
        levels in 1u32..40,
    ) {
        let probabilities: Vec<f32> =
            samples.iter().map(|(p, _)| (p % levels) as f32 / 20.0).collect();
        let labels: Vec<f32> = samples.iter().map(|(_, y)| f32::from(u8::from(*y))).collect();
        let got = evaluate(&probabilities, &labels).auc;
        prop_assert!((got - auc_of_all_pairs(&probabilities, &labels)).abs() < 1e-12);
    }

    #[test]
    fn any_partition_into_ranks_and_batches_gives_the_same_bits(
        samples in proptest::collection::vec((0f32..1.0, any::<bool>()), 1..200),
        batch in 1usize..50,
        ranks in 1usize..4,
    ) {
        let probabilities: Vec<f32> = samples.iter().map(|(p, _)| *p).collect();
        let labels: Vec<f32> = samples.iter().map(|(_, y)| f32::from(u8::from(*y))).collect();
        let mut parts = vec![Accumulator::new(); ranks];
        for (i, (p, y)) in probabilities.chunks(batch).zip(labels.chunks(batch)).enumerate() {
            parts[i % ranks].push(p, y, 0.0);
        }
        let mut merged = Accumulator::new();
        for part in parts {
            merged.merge(part);
        }
        prop_assert_eq!(merged.samples(), samples.len() as u64);
        let (got, expected) = (merged.finish(), evaluate(&probabilities, &labels));
        prop_assert_eq!(format!("{got:?}"), format!("{expected:?}"));
    }
}
