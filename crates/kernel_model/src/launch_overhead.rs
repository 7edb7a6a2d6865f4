//! Estimates the host's share of a measured latency.
//!
//! The share consists of a minimum over calls and a drift from row to row.

use serde::{Deserialize, Serialize};

use super::baseline::BaselinePoint;
use super::feature::roofline_ns;
use super::measured::Measured;
use super::work::Kind;

/// The smallest fiftieth of the operations determines the launch overhead, but at least [`LEAST`]
/// rows.
const SMALLEST: usize = 50;
const LEAST: usize = 20;

/// Kernels shorter than this share of the launch overhead cannot be observed.
const UNSEEN: f64 = 0.35;

/// Host time that a call adds to its kernel: a minimum, and a drift from row to row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaunchOverhead {
    /// Latency of the calls with the smallest operations, in nanoseconds.
    pub ns: f64,
    /// Nanoseconds by which each row takes longer than the row before it.
    pub drift_ns: f64,
}

impl LaunchOverhead {
    /// Fits the launch overhead to rows of one operation on one device.
    ///
    /// The overhead is the lower quartile of the smallest operations' latencies. Kernel times
    /// contain no host time, so for them the overhead is the shortest time.
    pub fn fit(rows: &[Measured]) -> Self {
        if rows.iter().any(|row| !row.timed.is_call()) {
            let shortest = rows.iter().map(|row| row.latency_ns).reduce(f64::min);
            return Self { ns: shortest.unwrap_or(1.0), ..Self::default() };
        }
        let drift_ns = drift_ns(rows);
        let mut all: Vec<(f64, f64)> = rows
            .iter()
            .map(|row| (roofline_ns(&row.work, row.device), without(row, drift_ns)))
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        all.truncate(LEAST.max(all.len() / SMALLEST));
        let mut smallest: Vec<f64> = all.into_iter().map(|(_, ns)| ns).collect();
        smallest.sort_by(f64::total_cmp);
        let ns = smallest.get(smallest.len() / 4).copied().unwrap_or(1.0);
        Self { ns, drift_ns }
    }

    /// Returns whether a latency contains observable kernel time.
    pub fn shows(&self, row: &Measured) -> bool {
        roofline_ns(&row.work, row.device) >= UNSEEN * self.ns
    }

    /// Returns whether the launch overhead is known to hide a kernel. Small matrix products never
    /// count as hidden, because they are so much slower than their roofline.
    pub fn hides(&self, row: &Measured) -> bool {
        row.timed.is_call() && waits_for_memory(row) && !self.shows(row)
    }

    /// Converts a row to a point for fitting a baseline.
    pub fn point(&self, row: &Measured) -> BaselinePoint {
        BaselinePoint {
            roofline_ns: roofline_ns(&row.work, row.device),
            floor_ns: self.ns,
            latency_ns: self.latency_ns(row),
        }
    }

    /// Converts a latency to the one that a host without drift would have shown.
    pub fn latency_ns(&self, row: &Measured) -> f64 {
        without(row, self.drift_ns)
    }
}

/// Launch overhead of each operation of a device, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaunchOverheads(Vec<(String, f64)>);

impl LaunchOverheads {
    /// Creates the overheads from pairs of an operation's name and its overhead.
    pub fn new(floors: impl Iterator<Item = (String, f64)>) -> Self {
        Self(floors.collect())
    }

    /// Returns the overhead of an operation. If it was not measured, returns the geometric mean
    /// over the other operations.
    pub fn ns(&self, name: &str) -> f64 {
        let own_ns = self.0.iter().find(|(operation, _)| operation == name).map(|(_, ns)| *ns);
        own_ns.unwrap_or_else(|| geometric_mean(self.0.iter().map(|(_, ns)| *ns)))
    }

    /// Takes the median over devices for each operation, and the lower of two middle values. Few
    /// hosts are much faster than others, but some are much slower.
    pub fn median_of<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let mut names: Vec<&String> =
            all.clone().flat_map(|one| &one.0).map(|one| &one.0).collect();
        names.sort();
        names.dedup();
        let usual = |name: &String| {
            let mut floors: Vec<f64> = all.clone().map(|floors| floors.ns(name)).collect();
            floors.sort_by(f64::total_cmp);
            (name.clone(), floors[(floors.len() - 1) / 2])
        };
        Self(names.into_iter().map(usual).collect())
    }

    /// Applies `change` to the name and overhead of each operation.
    pub fn with_each(&self, change: impl Fn(&str, f64) -> f64) -> Self {
        Self(self.0.iter().map(|(name, ns)| (name.clone(), change(name, *ns))).collect())
    }

    /// Checks the overheads of a model that was read from a file.
    pub fn is_valid(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|(_, ns)| ns.is_finite() && *ns > 0.0)
    }
}

/// Computes the geometric mean, or 1 if the iterator is empty.
fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) =
        values.fold((0.0, 0.0), |(sum, count), value| (sum + value.ln(), count + 1.0));
    if count > 0.0 { (sum / count).exp() } else { 1.0 }
}

/// Returns whether a row measures a memory-bound kind.
fn waits_for_memory(row: &Measured) -> bool {
    matches!(row.work.kind(), Kind::LayerNorm | Kind::Softmax | Kind::ElementWise)
}

/// Subtracts the drift from a latency. At least a tenth of the latency remains as kernel time.
fn without(row: &Measured, drift_ns: f64) -> f64 {
    (row.latency_ns - drift_ns * f64::from(row.place)).max(0.1 * row.latency_ns)
}

/// Fits how much longer each row takes than the row before it, by a line through low quantiles of
/// blocks of rows.
///
/// Only tables whose sizes do not depend on the position qualify, because otherwise the slope would
/// reflect the sizes.
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
    // If the overhead is constant, the blocks scatter around it. If the overhead grows, the blocks
    // lie on a line.
    if correlation > 0.8 { slope } else { 0.0 }
}

/// Computes the slope of the regression line through points, and their correlation.
fn line(points: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64) {
    let count = points.clone().count() as f64;
    let sum = |of: fn((f64, f64)) -> f64| points.clone().map(of).sum::<f64>() / count;
    let (x, y) = (sum(|point| point.0), sum(|point| point.1));
    let xx = sum(|point| point.0 * point.0) - x * x;
    let yy = sum(|point| point.1 * point.1) - y * y;
    let xy = sum(|point| point.0 * point.1) - x * y;
    if xx <= 0.0 || yy <= 0.0 { (0.0, 0.0) } else { (xy / xx, xy / (xx * yy).sqrt()) }
}
