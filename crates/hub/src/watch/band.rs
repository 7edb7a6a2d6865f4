//! The band of usual values, by statistics that outliers do not move.

/// Factor from the median of absolute deviations to the standard deviation of a normal
/// distribution.
const NORMAL: f64 = 1.4826;

/// The range of usual values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Band {
    /// Computes the band around the median of past values, which are reordered. Its half width is a
    /// number of standard deviations, and at least a share of the median. Returns `None` without
    /// values.
    pub fn new(values: &mut [f64], deviations: f64, share_min: f64) -> Option<Self> {
        let median = median(values)?;
        let mut distances: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
        let deviation = NORMAL * self::median(&mut distances)?;
        let width = (deviations * deviation).max(share_min * median.abs());
        Some(Self { median, low: median - width, high: median + width })
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { 0.5 * (values[middle - 1] + upper) })
}

#[cfg(test)]
mod tests {
    use super::Band;

    #[test]
    fn outliers_do_not_widen_the_band() {
        let mut values = [1.0, 1.1, 0.9, 1.0, 50.0, 1.05, 0.95];
        let band = Band::new(&mut values, 5.0, 0.15).unwrap();
        assert_eq!(band.median, 1.0);
        assert!(band.high > 1.3 && band.high < 1.5, "{band:?}");
        let band = Band::new(&mut [2.0, 2.0, 2.0], 5.0, 0.1).unwrap();
        assert_eq!((band.low, band.high), (1.8, 2.2));
        assert_eq!(Band::new(&mut [], 5.0, 0.1), None);
    }
}
