//! The unlearnt part of a measurement: at least the host's time for a call; above that a part of
//! it, because the kernel starts before the call ends, plus the kernel. `max(floor, start · floor +
//! slope · roofline)`.

use serde::{Deserialize, Serialize};

/// The line of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// Share of the floor that has passed when the kernel starts.
    pub start: f64,
    /// How far kernels stay behind the roofline.
    pub slope: f64,
}

/// A measurement: roofline, floor and latency, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct BaselinePoint {
    /// By FLOPs and bytes.
    pub roofline_ns: f64,
    /// What the host took.
    pub floor_ns: f64,
    pub latency_ns: f64,
}

/// The baseline of a device, with the launch overhead of one operation.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBaseline {
    pub overhead_ns: f64,
    pub line: Baseline,
}

/// Starts and slopes that are tried.
const STARTS: u32 = 21;
const SLOPES: u32 = 61;
const SLOPE_LEAST: f64 = 0.7;
const SLOPE_MOST: f64 = 8.0;
/// Most points used, evenly chosen.
const POINTS: usize = 2_000;
/// How many points the lines of other devices count for, and how a difference of starts compares
/// with one of logarithms of slopes.
const OTHERS: f64 = 2.0;
const START_WEIGHT: f64 = 3.0;

impl Baseline {
    /// The roofline over the floor, where nothing else is known.
    pub const ROOFLINE: Self = Self { start: 0.0, slope: 1.0 };

    /// With the least sum of absolute errors, in logarithms.
    pub fn fit(points: &[BaselinePoint]) -> Self {
        Self::best(points, |_| 0.0)
    }

    /// From few points, shrunk towards the line of other devices.
    pub fn fit_near(self, points: &[BaselinePoint]) -> Self {
        Self::best(points, |line| {
            let slope = (line.slope / self.slope).ln().abs();
            OTHERS * (slope + START_WEIGHT * (line.start - self.start).abs())
        })
    }

    /// The median of starts, and that of slopes.
    pub fn median(lines: impl Iterator<Item = Self> + Clone) -> Self {
        let middle = |of: fn(Self) -> f64| {
            let mut values: Vec<f64> = lines.clone().map(of).collect();
            schema::median::float_median(&mut values)
        };
        let (start, slope) = (middle(|line| line.start), middle(|line| line.slope));
        start.zip(slope).map_or(Self::ROOFLINE, |(start, slope)| Self { start, slope })
    }

    /// Where the kernel alone decides.
    pub fn above_ns(self, roofline_ns: f64, floor_ns: f64) -> f64 {
        self.start * floor_ns + self.slope * roofline_ns
    }

    /// A measurement by the line.
    pub fn ns(self, roofline_ns: f64, floor_ns: f64) -> f64 {
        self.above_ns(roofline_ns, floor_ns).max(floor_ns)
    }

    /// Whether a file may hold it.
    pub fn is_valid(self) -> bool {
        (0.0..=1.0).contains(&self.start) && self.slope > 0.0 && self.slope.is_finite()
    }

    /// The line with the least errors and penalty; the first of equal ones.
    fn best(points: &[BaselinePoint], penalty: impl Fn(Self) -> f64) -> Self {
        let step = points.len().div_ceil(POINTS).max(1);
        let error = |line: Self| {
            let of = |point: &BaselinePoint| {
                (point.latency_ns / line.ns(point.roofline_ns, point.floor_ns)).ln().abs()
            };
            points.iter().step_by(step).map(of).sum::<f64>() + penalty(line)
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
