//! What a measurement holds besides the kernel: the least a call takes, whatever its size, and what
//! the host adds from row to row.

use super::feature::roofline_ns;
use super::measured::Measured;

/// The rows of the smallest works that a floor is found on: one of so many, and no fewer than
/// [`LEAST`].
const SMALLEST: usize = 50;
const LEAST: usize = 20;

/// What the host adds to a call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Floor {
    /// Nanoseconds of a call of the smallest works.
    pub ns: f64,
    /// Nanoseconds by which every row takes longer than the one before it.
    pub drift_ns: f64,
}

impl Floor {
    /// Of rows of one operation on one device.
    ///
    /// The lower quartile of the smallest works.
    pub fn of(rows: &[Measured]) -> Self {
        let drift_ns = drift_ns(rows);
        let mut all: Vec<(f64, f64)> = rows
            .iter()
            .map(|row| (roofline_ns(&row.work, row.device), without(row, drift_ns)))
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        all.truncate(LEAST.max(all.len() / SMALLEST));
        let mut smallest: Vec<f64> = all.into_iter().map(|(_, ns)| ns).collect();
        smallest.sort_by(f64::total_cmp);
        Self { ns: smallest.get(smallest.len() / 4).copied().unwrap_or(1.0), drift_ns }
    }

    /// A measurement without what the host added from row to row.
    pub fn latency_ns(&self, row: &Measured) -> f64 {
        without(row, self.drift_ns)
    }
}

/// At least a tenth of a measurement is the kernel's own.
fn without(row: &Measured, drift_ns: f64) -> f64 {
    (row.latency_ns - drift_ns * f64::from(row.place)).max(0.1 * row.latency_ns)
}

/// How much longer each row takes: the slope of the line through low quantiles of blocks of rows.
///
/// Only where sizes do not depend on the place in the table, or it would be theirs.
fn drift_ns(rows: &[Measured]) -> f64 {
    const BLOCKS: usize = 40;
    const LEAST_ROWS: usize = 25;
    let mut rows: Vec<&Measured> = rows.iter().collect();
    rows.sort_by_key(|row| row.place);
    let sizes =
        rows.iter().map(|row| (f64::from(row.place), roofline_ns(&row.work, row.device).ln()));
    if rows.len() < BLOCKS * LEAST_ROWS || line(sizes).1.abs() > 0.1 {
        return 0.0;
    }
    let low = |block: &[&Measured]| {
        let mut latencies: Vec<f64> = block.iter().map(|row| row.latency_ns).collect();
        latencies.sort_by(f64::total_cmp);
        let places: f64 = block.iter().map(|row| f64::from(row.place)).sum();
        (places / block.len() as f64, latencies[latencies.len() / 50])
    };
    let (slope, correlation) = line(rows.chunks(rows.len().div_ceil(BLOCKS)).map(low));
    // Blocks of one floor scatter round it; those of one that grows lie on a line.
    if correlation > 0.8 { slope } else { 0.0 }
}

/// Slope and correlation of points.
fn line(points: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64) {
    let count = points.clone().count() as f64;
    let sum = |of: fn((f64, f64)) -> f64| points.clone().map(of).sum::<f64>() / count;
    let (x, y) = (sum(|point| point.0), sum(|point| point.1));
    let xx = sum(|point| point.0 * point.0) - x * x;
    let yy = sum(|point| point.1 * point.1) - y * y;
    let xy = sum(|point| point.0 * point.1) - x * y;
    if xx <= 0.0 || yy <= 0.0 { (0.0, 0.0) } else { (xy / xx, xy / (xx * yy).sqrt()) }
}
