//! Estimates from launch shapes how full the devices are while they compute.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::store::EventKind;

use crate::facts::classify::WorkClass;
use crate::facts::distribution::thousandths;
use crate::facts::scope::Scope;

/// Occupancy of one device of one rank.
///
/// Means are weighted by the durations, clipped to the window, of the compute kernels whose launch
/// shape was recorded. The means are `None` if there are no such kernels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Occupancy {
    pub rank: u32,
    pub device: i32,
    /// Number of compute kernels with a recorded launch shape.
    pub kernel_count: u64,
    pub kernel_ns: i64,
    pub unknown_count: u64,
    /// Share of multiprocessors that have a block to run, in percent: `Σ duration · min(1, blocks
    /// per SM) / Σ duration`.
    pub sm_efficiency_pct: Option<f64>,
    /// Warps in relation to the maximum of a multiprocessor, in percent, as the profiler estimated
    /// it.
    pub occupancy_pct: Option<f64>,
    /// Share of `kernel_ns` in kernels with less than one block per multiprocessor, in percent.
    pub few_blocks_pct: Option<f64>,
}

/// Measures the occupancy of each device of a scope, sorted by device.
///
/// # Cost
/// The cost is `O(n)` in the device rows.
/// # Source
/// The formula is that of "Est. SM Efficiency" in PyTorch's profiler, but without communication
/// kernels.
pub fn measure_occupancy(scope: &Scope<'_>) -> Vec<Occupancy> {
    let mut devices: BTreeMap<i32, OccupancySums> = BTreeMap::new();
    for (&row, &class) in scope.device_rows.iter().zip(&scope.classes) {
        // Communication kernels use few blocks on purpose, so they would lower the mean without
        // being a problem.
        if class != WorkClass::Compute || scope.trace.kind(row) != EventKind::Kernel {
            continue;
        }
        let sums = devices.entry(scope.trace.device(row)).or_default();
        let shape = scope.trace.slices.launch_shape.get(row);
        let Some(shape) = shape.filter(|shape| shape.blocks_per_sm.is_finite()) else {
            sums.unknown_count += 1;
            continue;
        };
        let (start, end) = scope.clipped(row);
        let weight = (end - start) as f64;
        let blocks = f64::from(shape.blocks_per_sm);
        sums.count += 1;
        sums.ns += end - start;
        // With more than one block per multiprocessor, every multiprocessor has work, so the share
        // is limited to 1.
        sums.efficiency += weight * blocks.min(1.0);
        sums.few += if blocks < 1.0 { weight } else { 0.0 };
        if shape.occupancy_pct.is_finite() {
            sums.occupancy += weight * f64::from(shape.occupancy_pct);
            sums.occupancy_weight += weight;
        }
    }
    devices.into_iter().map(|(device, sums)| sums.row(scope.trace.rank, device)).collect()
}

/// Running sums over the kernels of one device. Means are weighted by kernel time.
#[derive(Default)]
struct OccupancySums {
    count: u64,
    unknown_count: u64,
    ns: i64,
    efficiency: f64,
    few: f64,
    occupancy: f64,
    occupancy_weight: f64,
}

impl OccupancySums {
    fn row(&self, rank: u32, device: i32) -> Occupancy {
        let mean = |sum: f64, weight: f64| (weight > 0.0).then(|| thousandths(sum / weight));
        Occupancy {
            rank,
            device,
            kernel_count: self.count,
            kernel_ns: self.ns,
            unknown_count: self.unknown_count,
            sm_efficiency_pct: mean(100.0 * self.efficiency, self.ns as f64),
            occupancy_pct: mean(self.occupancy, self.occupancy_weight),
            few_blocks_pct: mean(100.0 * self.few, self.ns as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use trace::store::{LaunchShape, NewSlice, Trace};

    use super::measure_occupancy;
    use crate::facts::classify::{ClassRule, Classifier};
    use crate::facts::scope::Scope;
    use crate::facts::window::WindowRule;

    #[test]
    fn means_are_over_time_and_leave_communication_out() {
        let mut trace = Trace::default();
        let kernels =
            [("gemm", 0, 30, 0.5), ("copy", 30, 40, 4.0), ("ncclKernel_AllReduce", 40, 90, 0.1)];
        for (name, start, end, blocks_per_sm) in kernels {
            let row = trace.push(&NewSlice::new("kernel", name, (0, 7), (start, end)));
            let shape =
                LaunchShape { blocks_per_sm, occupancy_pct: 20.0, ..LaunchShape::default() };
            trace.slices.launch_shape.push(row, shape);
        }
        let classifier = Classifier::new(ClassRule::Category);
        let found = measure_occupancy(&Scope::new(&trace, WindowRule::All, &classifier));
        assert_eq!((found.len(), found[0].kernel_count, found[0].kernel_ns), (1, 2, 40));
        assert_eq!(found[0].sm_efficiency_pct, Some(62.5));
        assert_eq!((found[0].few_blocks_pct, found[0].occupancy_pct), (Some(75.0), Some(20.0)));
    }
}
