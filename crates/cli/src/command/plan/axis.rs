//! Chooses the round values at which an axis of a picture is labeled.

/// Returns the values from 0 to `reach` that label an axis: at most `most` steps of 1, 2 or 5 times
/// a power of ten of `unit`.
pub fn round_ticks(reach: f64, unit: f64, most: usize) -> Vec<f64> {
    let least = (reach / unit / most.max(1) as f64).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(least.log10().floor());
    let multiples = [1.0, 2.0, 5.0, 10.0].map(|multiple| multiple * power);
    // The factor allows for rounding in the division above.
    let step = multiples.into_iter().find(|step| *step >= 0.999_999 * least);
    let step = unit * step.unwrap_or(least);
    let count = (1.000_001 * reach / step).floor() as usize;
    (0..=count).map(|at| at as f64 * step).collect()
}

/// Returns the binary unit in which a number of bytes is printed.
pub fn unit_of_bytes(bytes: f64) -> f64 {
    1024f64.powf((bytes.max(1.0).ln() / 1024f64.ln()).floor())
}

#[cfg(test)]
mod tests {
    use super::{round_ticks, unit_of_bytes};

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        assert_eq!(round_ticks(8.13e6, 1.0, 5), [0.0, 2e6, 4e6, 6e6, 8e6]);
        assert_eq!(round_ticks(5.0, 1.0, 5), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let gib = unit_of_bytes(9.5e9);
        assert_eq!(gib, 1024f64.powi(3));
        assert_eq!(round_ticks(4.0 * gib, gib, 4).last(), Some(&(4.0 * gib)));
    }
}
