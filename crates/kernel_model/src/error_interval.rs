//! Intervals that covered nine of ten held-out rows (split conformal prediction): the coverage
//! holds for new rows of the same kind, however wrong the model is.

use serde::{Deserialize, Serialize};

/// Share of rows outside the interval at each end.
const TAIL: f64 = 0.05;
/// Minimum number of rows in a group. With fewer rows, quantiles are whole rows and cover well
/// above nine of ten.
const ROWS: usize = 140;
/// Maximum number of groups.
const GROUPS: usize = 4;

/// Quantiles of `ln(measured ÷ predicted)` by how far a latency lies above the launch overhead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorInterval {
    /// Upper ends of the groups, rising; one fewer than there are groups.
    ends: Vec<f32>,
    low: Vec<f32>,
    high: Vec<f32>,
}

impl ErrorInterval {
    /// Creates an interval that is the same for all latencies.
    pub fn flat(low: f64, high: f64) -> Self {
        Self { ends: Vec::new(), low: vec![low as f32], high: vec![high as f32] }
    }

    /// Computes quantiles by group from pairs of height above the launch overhead and `ln(measured
    /// ÷ predicted)`.
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

    /// Creates the interval of an unmeasured device: half as wide again as the hull of all measured
    /// devices' intervals.
    pub fn hull(all: &[(f64, f64)]) -> Self {
        let low = all.iter().map(|one| one.0).fold(0.0, f64::min);
        let high = all.iter().map(|one| one.1).fold(0.0, f64::max);
        Self::flat(1.5 * low, 1.5 * high)
    }

    /// Returns lowest and highest factor for a prediction at this height above the launch overhead.
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

/// Computes the ratio of mean absolute errors of two sets of rows; 1 if the second has no errors.
pub fn ratio(some: &[(f32, f64)], others: &[(f32, f64)]) -> f64 {
    let mean = |rows: &[(f32, f64)]| {
        rows.iter().map(|row| row.1.abs()).sum::<f64>() / rows.len().max(1) as f64
    };
    let others = mean(others);
    if others > 0.0 { mean(some) / others } else { 1.0 }
}

/// Returns the quantiles between which nine of ten new values lie; a factor of e if there are no
/// values.
pub fn quantiles(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (Some(&first), Some(&last)) = (values.first(), values.last()) else { return (-1.0, 1.0) };
    let place = TAIL * (values.len() + 1) as f64;
    let rank = place.floor() as usize;
    if rank == 0 {
        return (first, last);
    }
    // Between two values: whole ranks would cover up to a hundredth more than they promise.
    let between = |outer: f64, inner: f64| outer + (inner - outer) * place.fract();
    let end = values.len() - rank;
    (between(values[rank - 1], values[rank]), between(values[end], values[end - 1]))
}

#[cfg(test)]
mod tests;
