//! The baseline of a latency, which needs no forest: a linear function of launch overhead and
//! roofline.
//!
//! Calls with short kernels take the launch overhead. Calls with longer kernels take `max(overhead,
//! start · overhead + slope · roofline)`: the kernel time plus the share of the overhead that
//! passes before the kernel starts.

use serde::{Deserialize, Serialize};

/// A linear function of launch overhead and roofline time that predicts the latency of a call, and
/// never predicts less than the overhead. Forests learn the residual relative to this baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// Share of the launch overhead that has passed when the kernel starts.
    pub start: f64,
    /// Ratio of kernel time to roofline time.
    pub slope: f64,
}

/// One measurement that a baseline is fitted to, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct BaselinePoint {
    pub roofline_ns: f64,
    /// Launch overhead of the operation when it was measured.
    pub floor_ns: f64,
    pub latency_ns: f64,
}

/// The baseline of a device, together with the launch overhead of one operation.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBaseline {
    pub overhead_ns: f64,
    pub line: Baseline,
}

/// Numbers of starts and slopes in the grid that a fit searches.
const STARTS: u32 = 21;
const SLOPES: u32 = 61;
const SLOPE_LEAST: f64 = 0.7;
const SLOPE_MOST: f64 = 8.0;
/// Maximum number of points used by a fit. More points are thinned out evenly.
const POINTS: usize = 2_000;
impl Baseline {
    /// The roofline, but at least the launch overhead. Devices without a fitted baseline use this
    /// one.
    pub const ROOFLINE: Self = Self { start: 0.0, slope: 1.0 };

    /// Predicts the latency of a kernel that is longer than the launch overhead.
    pub fn above_ns(self, roofline_ns: f64, floor_ns: f64) -> f64 {
        self.start * floor_ns + self.slope * roofline_ns
    }

    /// Predicts the latency of a call, which is at least the launch overhead.
    pub fn ns(self, roofline_ns: f64, floor_ns: f64) -> f64 {
        self.above_ns(roofline_ns, floor_ns).max(floor_ns)
    }

    /// Checks that start and slope are in the range that a fit can produce.
    pub fn is_valid(self) -> bool {
        (0.0..=1.0).contains(&self.start) && self.slope > 0.0 && self.slope.is_finite()
    }

    /// Finds the baseline of a grid with the smallest sum of absolute errors of the logarithms. If
    /// two are equal, the first one wins.
    pub fn fit(points: &[BaselinePoint]) -> Self {
        let step = points.len().div_ceil(POINTS).max(1);
        let error = |line: Self| {
            let point_error = |point: &BaselinePoint| {
                (point.latency_ns / line.ns(point.roofline_ns, point.floor_ns)).ln().abs()
            };
            points.iter().step_by(step).map(point_error).sum::<f64>()
        };
        let mut best = (Self::ROOFLINE, f64::INFINITY);
        for start in 0..STARTS {
            for slope in 0..SLOPES {
                let share = f64::from(slope) / f64::from(SLOPES - 1);
                let line = Self {
                    start: f64::from(start) / f64::from(STARTS - 1),
                    slope: SLOPE_LEAST * (SLOPE_MOST / SLOPE_LEAST).powf(share),
                };
                let error = error(line);
                if error < best.1 {
                    best = (line, error);
                }
            }
        }
        best.0
    }
}
