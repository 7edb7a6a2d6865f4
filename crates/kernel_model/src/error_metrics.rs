//! Computes means of prediction errors, in percent.

/// Computes the mean absolute error in percent from pairs of predicted and measured time.
pub fn mape(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, count) = pairs.fold((0.0, 0.0), |(sum, count), (predicted, measured)| {
        (sum + (predicted / measured - 1.0).abs(), count + 1.0)
    });
    100.0 * sum / count
}

/// Computes the geometric mean of the absolute errors in percent from pairs of predicted and
/// measured time.
pub fn gmae(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    geometric_mean_pct(pairs.map(|(predicted, measured)| (predicted / measured - 1.0).abs()))
}

/// Computes the geometric mean of absolute errors in percent. Like the paper's code, it adds 4e-4
/// to each error, so that one exact prediction does not dominate the mean.
pub fn geometric_mean_pct(errors: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) =
        errors.fold((0.0, 0.0), |(sum, count), error| (sum + (error + 4e-4).ln(), count + 1.0));
    100.0 * (sum / count).exp()
}
