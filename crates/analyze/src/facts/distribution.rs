//! Summarizes integers by exact quantiles, mean, standard deviation, and histograms with powers of
//! two as bins.

#[cfg(test)]
mod tests;

use schema::TableRow;
use serde::Serialize;

pub use schema::median::{float_median as median, integer_median};

/// Quantiles, mean and standard deviation of a set of integers. All fields are zero if the set is
/// empty.
///
/// The median of an even number of values is the mean of the two in the middle, rounded down. Any
/// other quantile is a value of the set: `p` is the smallest value with at least `p` percent of the
/// values at or below it (nearest rank).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    pub count: u64,
    pub total: i64,
    pub min: i64,
    pub p5: i64,
    pub p25: i64,
    pub p50: i64,
    pub p75: i64,
    pub p95: i64,
    pub max: i64,
    /// Mean of the values, rounded to three decimals.
    pub mean: f64,
    /// The sample standard deviation (`n − 1`), rounded to three decimals; 0 for fewer than two
    /// values.
    pub std: f64,
}

/// A [`Distribution`] of durations whose field names carry the unit, for tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TableRow)]
pub struct Durations {
    pub min_ns: i64,
    pub p5_ns: i64,
    pub p25_ns: i64,
    pub p50_ns: i64,
    pub p75_ns: i64,
    pub p95_ns: i64,
    pub max_ns: i64,
    pub mean_ns: f64,
    pub std_ns: f64,
}

impl From<Distribution> for Durations {
    fn from(of: Distribution) -> Self {
        Self {
            min_ns: of.min,
            p5_ns: of.p5,
            p25_ns: of.p25,
            p50_ns: of.p50,
            p75_ns: of.p75,
            p95_ns: of.p95,
            max_ns: of.max,
            mean_ns: of.mean,
            std_ns: of.std,
        }
    }
}

/// Bin of a histogram with powers of two as bounds: `low ≤ value < high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// Lower bound of the bin, which is 0 or a power of two.
    pub low: i64,
    /// Upper bound of the bin, which is 1 or the next power of two, and `i64::MAX` for the last
    /// bin.
    pub high: i64,
    pub count: u64,
    pub total: i64,
}

/// Summarizes values, which it sorts in place.
///
/// # Cost
/// The cost is `O(n log n)`, for sorting.
/// # Numerics
/// Sums are exact up to the greatest `i64`, and mean and deviation are rounded once, at the end.
pub fn describe_values(values: &mut [i64]) -> Distribution {
    let median = integer_median(values).unwrap_or_default();
    let (Some(min), Some(max)) = (values.first(), values.last()) else {
        return Distribution::default();
    };
    // The nearest rank is the smallest value with at least `percent` percent of the values at or
    // below it.
    let at = |percent: usize| values[(values.len() * percent).div_ceil(100).max(1) - 1];
    let total: i128 = values.iter().map(|value| i128::from(*value)).sum();
    let count = values.len() as f64;
    let mean = total as f64 / count;
    let deviation: f64 = values.iter().map(|value| (*value as f64 - mean).powi(2)).sum();
    let variance = if values.len() < 2 { 0.0 } else { deviation / (count - 1.0) };
    Distribution {
        count: values.len() as u64,
        // The sum of many large values may exceed 64 bits, so it is computed in 128 bits and
        // clamped.
        total: total.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
        min: *min,
        p5: at(5),
        p25: at(25),
        p50: median,
        p75: at(75),
        p95: at(95),
        max: *max,
        mean: thousandths(mean),
        std: thousandths(variance.sqrt()),
    }
}

/// Counts values by powers of two. Returns the non-empty bins in ascending order; values below 1
/// fall into the first bin, `0..1`.
pub fn histogram(values: impl IntoIterator<Item = i64>) -> Vec<Bin> {
    let mut bins = [(0u64, 0i64); 64];
    for value in values {
        let bits = if value < 1 { 0 } else { 64 - value.leading_zeros() as usize };
        bins[bits].0 += 1;
        bins[bits].1 = bins[bits].1.saturating_add(value);
    }
    let bin = |(bits, (count, total)): (usize, (u64, i64))| Bin {
        low: if bits == 0 { 0 } else { 1 << (bits - 1) },
        high: if bits >= 63 { i64::MAX } else { 1 << bits },
        count,
        total,
    };
    bins.into_iter().enumerate().filter(|(_, (count, _))| *count > 0).map(bin).collect()
}

/// Rounds a number to three decimals, as table columns show it.
pub(crate) fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
