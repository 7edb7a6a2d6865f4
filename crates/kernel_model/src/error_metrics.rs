//! Means of prediction errors, in percent.

/// Mean absolute error in per cent, of predictions and measurements.
pub fn mape(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, count) = pairs.fold((0.0, 0.0), |(sum, count), (predicted, measured)| {
        (sum + (predicted / measured - 1.0).abs(), count + 1.0)
    });
    100.0 * sum / count
}

/// Geometric mean of the absolute errors in per cent.
pub fn gmae(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    geometric_mean_pct(pairs.map(|(predicted, measured)| (predicted / measured - 1.0).abs()))
}

/// Geometric mean of absolute errors in per cent; 4e-4 is added to each, as in the paper's code, so
/// that one exact prediction does not decide.
pub fn geometric_mean_pct(errors: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) =
        errors.fold((0.0, 0.0), |(sum, count), error| (sum + (error + 4e-4).ln(), count + 1.0));
    100.0 * (sum / count).exp()
}
