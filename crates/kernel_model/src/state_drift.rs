//! Estimates slow changes of a device's state while a table is measured.
//!
//! Kernels whose tensors just fit L2 take up to a fifth longer in one part of a table than in
//! another, because the memory layout depends on everything measured before.

use std::cmp::Ordering;

use schema::median;

/// Number of rows of similar size that define the usual residual.
const LIKE: usize = 12;
/// Number of rows measured just before and just after a row.
const BESIDE: usize = 30;
/// Number of these rows, those nearest in size, whose median residual is the drift.
const NEAREST: usize = 5;
/// Minimum number of rows to estimate a drift from.
const ROWS: usize = 200;
/// A drift is accepted only if it reduces the sum of absolute residuals to less than this share.
const BY_TIME: f64 = 0.9;

/// One measured row from which a device's state drift is estimated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriftSample {
    /// Position of the row in the table.
    pub place: u32,
    /// Logarithm of the roofline time.
    pub size: f64,
    /// Natural logarithm of measured latency over baseline latency.
    pub log_residual: f64,
}

/// Slow changes of a device's latency over a table, by position. The list is empty if the device's
/// state did not change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateDrift {
    /// Rows in table order. The residual of each row is relative to rows of similar size.
    rows: Vec<DriftSample>,
}

impl StateDrift {
    /// Estimates the drift from rows of one operation on one device whose kernels are observable.
    pub fn fit(mut rows: Vec<DriftSample>) -> Self {
        if rows.len() < ROWS {
            return Self::default();
        }
        rows.sort_by(|a, b| a.size.total_cmp(&b.size).then(a.place.cmp(&b.place)));
        let usual: Vec<f64> = (0..rows.len())
            .map(|at| {
                let from = at.saturating_sub(LIKE);
                let around = from..rows.len().min(at + LIKE + 1);
                let others = around.filter(|other| *other != at).map(|other| rows[other]);
                middle(nearest(others.collect(), LIKE, |row| (row.size - rows[at].size).abs()))
            })
            .collect();
        // A residual that all rows of similar size share is an error of the baseline, not drift.
        for (row, usual) in rows.iter_mut().zip(usual) {
            row.log_residual -= usual;
        }
        rows.sort_by_key(|row| row.place);
        let found = Self { rows };
        let sum =
            |of: &dyn Fn(&DriftSample) -> f64| found.rows.iter().map(|row| of(row).abs()).sum();
        let by_size: f64 = sum(&|row| row.log_residual);
        let by_time: f64 = sum(&|row| row.log_residual - found.at(row.place, row.size));
        if by_time < BY_TIME * by_size { found } else { Self::default() }
    }

    /// Returns `ln` of the extra time of a row of some size at a position. The estimate uses other
    /// rows only.
    pub fn at(&self, place: u32, size: f64) -> f64 {
        if self.rows.is_empty() {
            return 0.0;
        }
        let at = self.rows.partition_point(|row| row.place < place);
        let around = at.saturating_sub(BESIDE)..self.rows.len().min(at + BESIDE + 1);
        let others = self.rows[around].iter().filter(|row| row.place != place).copied();
        let beside = nearest(others.collect(), BESIDE, |row| f64::from(row.place.abs_diff(place)));
        middle(nearest(beside, NEAREST, |row| (row.size - size).abs()))
    }
}

/// Keeps the `count` rows with the smallest distance. If several are equally near, the first
/// ones stay.
fn nearest(
    mut rows: Vec<DriftSample>,
    count: usize,
    away: impl Fn(&DriftSample) -> f64,
) -> Vec<DriftSample> {
    let order = |a: &DriftSample, b: &DriftSample| -> Ordering { away(a).total_cmp(&away(b)) };
    rows.sort_by(order);
    rows.truncate(count);
    rows
}

/// Returns the median residual of rows, or 0 if there are no rows.
fn middle(rows: Vec<DriftSample>) -> f64 {
    let mut log_residual: Vec<f64> = rows.into_iter().map(|row| row.log_residual).collect();
    median::float_median(&mut log_residual).unwrap_or_default()
}

#[cfg(test)]
mod tests;
