//! Corrects the transferred time of one device by a line that was fitted to a few of its
//! measurements.

use serde::{Deserialize, Serialize};

use super::latency::Latency;

/// Logarithm of latency over launch overhead from which a latency counts as kernel time entirely.
const FREE_OF_FLOOR: f64 = 0.4;

/// Corrects the transferred time of one device. The correction is a linear function of the height,
/// the logarithm of latency over launch overhead. The correction fades to zero at the launch
/// overhead, where a latency contains no kernel time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Correction {
    /// Height above the launch overhead at which the correction equals `shift`.
    pub middle: f64,
    pub shift: f64,
    pub slope: f64,
}

impl Correction {
    /// Applies the correction to a predicted latency and returns the result.
    pub fn applied(&self, found: Latency) -> Latency {
        let share = share(&found);
        let line = self.shift + self.slope * (f64::from(found.above_floor) - self.middle);
        found.times((share * line).exp())
    }

    /// Fits a correction to pairs of predicted and measured latency by ridge regression.
    pub fn fit(rows: &[(Latency, f64)]) -> Self {
        const SHIFT_RIDGE: f64 = 0.3;
        const SLOPE_RIDGE: f64 = 8.0;
        let share = |row: &(Latency, f64)| share(&row.0);
        // Rows at the launch overhead say nothing about kernels, so a row counts by its share of
        // kernel time.
        let weight: f64 = rows.iter().map(share).sum();
        if weight <= 0.0 {
            return Self { middle: 0.0, shift: 0.0, slope: 0.0 };
        }
        let above = |row: &(Latency, f64)| f64::from(row.0.above_floor);
        let middle = rows.iter().map(|row| share(row) * above(row)).sum::<f64>() / weight;
        let (mut aa, mut ab, mut bb, mut a, mut b) = (SHIFT_RIDGE, 0.0, SLOPE_RIDGE, 0.0, 0.0);
        for row in rows {
            let (one, two) = (share(row), share(row) * (above(row) - middle));
            let off = (row.1 / row.0.ns).ln();
            aa += one * one;
            ab += one * two;
            bb += two * two;
            a += one * off;
            b += two * off;
        }
        let determinant = aa * bb - ab * ab;
        let (shift, slope) = ((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant);
        Self { middle, shift, slope }
    }
}

/// Computes the share of a latency that is kernel time. The share is 0 at the launch overhead and
/// reaches 1 a fixed factor above it.
fn share(found: &Latency) -> f64 {
    ((found.ns / found.floor_ns).ln() / FREE_OF_FLOOR).clamp(0.0, 1.0)
}
