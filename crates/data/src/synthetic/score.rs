//! Computes AUC and normalized entropy of scores against labels.

/// Computes the area under the ROC curve, in which equal scores count half. Returns 0.5 if a class
/// is absent.
pub(crate) fn auc(scores: &[f64], labels: &[bool]) -> f64 {
    let mut pairs: Vec<(f64, bool)> = scores.iter().copied().zip(labels.iter().copied()).collect();
    pairs.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
    // Twice the number of correctly ordered (negative, positive) pairs, so that ties stay integers.
    let (mut ordered_twice, mut negatives, mut positives) = (0u128, 0u128, 0u128);
    for tie in pairs.chunk_by(|left, right| left.0 == right.0) {
        let hits = tie.iter().filter(|pair| pair.1).count() as u128;
        let misses = tie.len() as u128 - hits;
        ordered_twice += hits * (2 * negatives + misses);
        negatives += misses;
        positives += hits;
    }
    if negatives == 0 || positives == 0 {
        return 0.5;
    }
    ordered_twice as f64 / (2 * negatives * positives) as f64
}

/// Computes the mean cross entropy relative to always predicting the mean label. Returns 1 if a
/// class is absent.
pub(super) fn normalized_entropy(probabilities: &[f64], labels: &[bool]) -> f64 {
    let n = labels.len() as f64;
    let clicks = labels.iter().filter(|&&label| label).count() as f64;
    if clicks == 0.0 || clicks == n {
        return 1.0;
    }
    let loss: f64 = probabilities
        .iter()
        .zip(labels)
        .map(|(&p, &label)| if label { -p.ln() } else { -(-p).ln_1p() })
        .sum();
    let rate = clicks / n;
    let entropy = -(rate * rate.ln() + (1.0 - rate) * (-rate).ln_1p());
    loss / n / entropy
}

#[cfg(test)]
mod tests {
    use super::{auc, normalized_entropy};

    #[test]
    fn auc_of_hand_cases() {
        let labels = [false, true, false, true];
        assert_eq!(auc(&[0.1, 0.2, 0.3, 0.4], &labels), 0.75);
        assert_eq!(auc(&[0.1, 0.9, 0.2, 0.8], &labels), 1.0);
        assert_eq!(auc(&[0.9, 0.1, 0.8, 0.2], &labels), 0.0);
        assert_eq!(auc(&[0.5; 4], &labels), 0.5, "ties count half");
        assert_eq!(auc(&[0.1, 0.3, 0.3, 0.3], &labels), 0.75, "two ties and two right pairs");
        assert_eq!(auc(&[0.1, 0.2], &[true, true]), 0.5, "one class");
    }

    #[test]
    fn auc_agrees_with_counting_pairs() {
        let rng = schema::random::CounterRng::new(3, 0);
        let scores: Vec<f64> = (0..200).map(|i| rng.below(i, 20) as f64).collect();
        let labels: Vec<bool> = (0..200).map(|i| rng.below(1000 + i, 3) == 0).collect();
        let (mut right, mut pairs) = (0.0, 0.0);
        for (positive, _) in scores.iter().zip(&labels).filter(|pair| *pair.1) {
            for (negative, _) in scores.iter().zip(&labels).filter(|pair| !*pair.1) {
                pairs += 1.0;
                right += if positive > negative { 1.0 } else { 0.0 };
                right += if positive == negative { 0.5 } else { 0.0 };
            }
        }
        assert!((auc(&scores, &labels) - right / pairs).abs() < 1e-12);
    }

    #[test]
    fn normalized_entropy_of_the_mean_is_one() {
        let labels = [true, false, false, false];
        assert!((normalized_entropy(&[0.25; 4], &labels) - 1.0).abs() < 1e-12);
        assert!(normalized_entropy(&[0.9, 0.1, 0.1, 0.1], &labels) < 0.3);
    }
}
