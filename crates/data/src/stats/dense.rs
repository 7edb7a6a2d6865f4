//! Running statistics of one dense column: moments of all values, and quantiles of a sample.

use super::figure::DenseStats;

const QUANTILES: [f64; 5] = [0.01, 0.25, 0.5, 0.75, 0.99];

/// Running moments and a sample of one dense column.
pub(super) struct DenseTally {
    column: String,
    missing: u64,
    not_finite: u64,
    count: u64,
    mean: f64,
    /// Sum of squared distances to the mean (Welford's algorithm).
    squares: f64,
    minimum: f64,
    maximum: f64,
    /// Values of the sampled rows; NaN for missing ones.
    sample: Vec<f64>,
}

impl DenseTally {
    pub(super) fn new(column: String) -> Self {
        Self {
            column,
            missing: 0,
            not_finite: 0,
            count: 0,
            mean: 0.0,
            squares: 0.0,
            minimum: f64::INFINITY,
            maximum: f64::NEG_INFINITY,
            sample: Vec::new(),
        }
    }

    /// Adds the values of rows. `slots` gives the place of each row in the sample, if it has one.
    pub(super) fn take(&mut self, values: &[f64], slots: &[Option<usize>]) {
        for (&value, slot) in values.iter().zip(slots) {
            match *slot {
                Some(slot) if slot < self.sample.len() => self.sample[slot] = value,
                Some(_) => self.sample.push(value),
                None => {}
            }
            if value.is_nan() {
                self.missing += 1;
            } else if value.is_infinite() {
                self.not_finite += 1;
            } else {
                self.count += 1;
                let distance = value - self.mean;
                self.mean += distance / self.count as f64;
                self.squares += distance * (value - self.mean);
                self.minimum = self.minimum.min(value);
                self.maximum = self.maximum.max(value);
            }
        }
    }

    pub(super) fn finish(mut self, rows: u64) -> DenseStats {
        self.sample.retain(|value| value.is_finite());
        self.sample.sort_unstable_by(f64::total_cmp);
        let last = self.sample.len().saturating_sub(1) as f64;
        let quantile = |at: f64| self.sample[(at * last).round() as usize];
        let mut quantiles = (!self.sample.is_empty()).then(|| QUANTILES.map(quantile));
        // By nearest rank, the median of an even number of values would be one of the middle two.
        let median = schema::median::float_median(&mut self.sample);
        if let (Some(quantiles), Some(median)) = (&mut quantiles, median) {
            quantiles[QUANTILES.len() / 2] = median;
        }
        let if_any = |value: f64| (self.count > 0).then_some(value);
        DenseStats {
            missing_share: self.missing as f64 / rows.max(1) as f64,
            not_finite: self.not_finite,
            minimum: if_any(self.minimum),
            mean: if_any(self.mean),
            deviation: if_any((self.squares / self.count as f64).sqrt()),
            maximum: if_any(self.maximum),
            quantiles,
            column: self.column,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DenseTally;

    #[test]
    fn statistics_of_a_few_values() {
        let mut tally = DenseTally::new("x".to_owned());
        let values = [3.0, f64::NAN, 1.0, 2.0, f64::INFINITY];
        tally.take(&values, &[Some(0), Some(1), Some(2), Some(3), Some(4)]);
        let stats = tally.finish(5);
        assert_eq!((stats.missing_share, stats.not_finite), (0.2, 1));
        assert_eq!((stats.minimum, stats.mean, stats.maximum), (Some(1.0), Some(2.0), Some(3.0)));
        assert!((stats.deviation.unwrap() - (2.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(stats.quantiles, Some([1.0, 2.0, 2.0, 3.0, 3.0]));
    }

    #[test]
    fn an_empty_column_has_no_statistics() {
        let mut tally = DenseTally::new("x".to_owned());
        tally.take(&[f64::NAN], &[Some(0)]);
        let stats = tally.finish(1);
        assert_eq!((stats.mean, stats.quantiles, stats.missing_share), (None, None, 1.0));
    }
}
