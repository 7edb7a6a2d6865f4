//! Computes intervals that covered nine of ten held-out rows (split conformal prediction).
//!
//! The coverage of the intervals holds for new rows of the same kind, however wrong the model is.

use serde::{Deserialize, Serialize};

/// Share of rows that lie outside the interval at each end.
const TAIL: f64 = 0.05;
/// Minimum number of rows in a group. Quantiles of fewer rows are so coarse that they cover well
/// above nine of ten rows.
const ROWS: usize = 250;
/// Maximum number of groups.
const GROUPS: usize = 4;

/// Quantiles of `ln(measured ÷ predicted)`, by group. A group holds predictions of similar height,
/// the logarithm of baseline over launch overhead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorInterval {
    /// Heights that separate the groups, in ascending order. There is one fewer height than there
    /// are groups.
    ends: Vec<f32>,
    low: Vec<f32>,
    high: Vec<f32>,
}

impl ErrorInterval {
    /// Creates an interval that is the same for all latencies.
    pub fn flat(low: f64, high: f64) -> Self {
        Self { ends: Vec::new(), low: vec![low as f32], high: vec![high as f32] }
    }

    /// Computes the quantiles of each group from pairs of height above the launch overhead and
    /// `ln(measured ÷ predicted)`.
    pub fn from_rows(mut rows: Vec<(f32, f64)>) -> Self {
        rows.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let groups = (rows.len() / ROWS).clamp(1, GROUPS);
        let mut found = Self { ends: Vec::new(), low: Vec::new(), high: Vec::new() };
        for group in 0..groups {
            let from = rows.len() * group / groups;
            let to = rows.len() * (group + 1) / groups;
            if group > 0 {
                found.ends.push(rows[from].0);
            }
            let (low, high) = quantiles(rows[from..to].iter().map(|row| row.1));
            found.low.push(low as f32);
            found.high.push(high as f32);
        }
        found
    }

    /// Returns the lowest and highest factor for a prediction at this height above the launch
    /// overhead.
    pub fn at(&self, above_floor: f32) -> (f64, f64) {
        let group = self.ends.partition_point(|end| *end <= above_floor);
        (f64::from(self.low[group]).exp(), f64::from(self.high[group]).exp())
    }

    /// Checks the lengths, order and finiteness of an interval read from a file.
    pub fn is_valid(&self) -> bool {
        let groups = self.ends.len() + 1;
        let numbers = self.ends.iter().chain(&self.low).chain(&self.high);
        self.low.len() == groups
            && self.high.len() == groups
            && self.ends.is_sorted()
            && numbers.into_iter().all(|number| number.is_finite())
    }
}

/// Returns the quantiles between which nine of ten new values lie. If there are no values, it
/// assumes a factor of e in both directions.
pub fn quantiles(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (Some(&first), Some(&last)) = (values.first(), values.last()) else { return (-1.0, 1.0) };
    let place = TAIL * (values.len() + 1) as f64;
    let rank = place.floor() as usize;
    if rank == 0 {
        return (first, last);
    }
    // Interpolate between two values, because whole ranks would cover up to one percent more than
    // the nominal share.
    let between = |outer: f64, inner: f64| outer + (inner - outer) * place.fract();
    let end = values.len() - rank;
    (between(values[rank - 1], values[rank]), between(values[end], values[end - 1]))
}

#[cfg(test)]
mod tests;
