//! Measures how far a device's long kernels are from the roofline.

use super::feature::roofline_ns;
use super::measured::Measured;

/// Computes the median ratio of measured time to roofline time over the longer half of the rows,
/// where launch overhead matters least.
pub fn slack<'a>(rows: impl Iterator<Item = (&'a Measured, f64)>) -> f64 {
    let mut ratios: Vec<(f64, f64)> = rows
        .map(|(row, latency)| (latency, latency / roofline_ns(&row.work, row.device)))
        .collect();
    // Keep the longer half of the kernels, in which launch overhead matters least.
    ratios.sort_by(|a, b| b.0.total_cmp(&a.0));
    ratios.truncate(ratios.len().div_ceil(2));
    let mut ratios: Vec<f64> = ratios.into_iter().map(|(_, ratio)| ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(1.0)
}
