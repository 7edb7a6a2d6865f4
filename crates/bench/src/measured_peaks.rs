//! The roofline of arXiv:2201.07821 with measured peaks, the highest rates that rows of a table
//! reached.

use std::collections::BTreeMap;

use kernel_model::error_metrics::{gmae, mape};
use kernel_model::evaluate::{CleanLatency, list_latencies};
use kernel_model::{Kind, Measured, Part, Work};
use schema::HardwareSpec;
use serde::Serialize;

/// The highest rates that measured kernels of a device reached, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredPeaks {
    pub flops: f64,
    /// Highest bandwidth that memory-bound kernels reached.
    pub bytes: f64,
}

/// A kernel that moves more than this many times the L2 size is taken to read device memory.
const BEYOND_L2: f64 = 4.0;

impl MeasuredPeaks {
    /// Finds the highest rates over the training rows of all kinds. Without such rows it uses
    /// benchmark results, or else the data sheet.
    #[must_use]
    pub fn from_rows(device: &HardwareSpec, rows: &[Measured]) -> Self {
        let (mut flops, mut bytes) = (0.0, 0.0);
        let own = rows.iter().filter(|row| row.device.key == device.key);
        for row in own.filter(|row| Part::for_work(&row.work) == Part::Train) {
            let (of_work, moved) = row.work.flops_and_bytes();
            let rate = |count: f64| 1e9 * count / row.latency_ns;
            match row.work.kind() {
                Kind::Linear | Kind::Bmm => flops = rate(of_work).max(flops),
                // Winograd's algorithm executes fewer FLOPs than are counted, so the rate would be
                // too high.
                Kind::Conv => {}
                Kind::LayerNorm | Kind::Softmax | Kind::ElementWise => {
                    if moved > BEYOND_L2 * device.l2_bytes as f64 {
                        bytes = rate(moved).max(bytes);
                    }
                }
            }
        }
        let or = |rate: f64, other: f64| if rate > 0.0 { rate } else { other };
        Self {
            flops: or(flops, device.sustained_f32.unwrap_or(device.peak.f32)),
            bytes: or(bytes, device.dram_sustained.unwrap_or(device.dram)),
        }
    }

    /// Computes the time of the published roofline, without launch overhead or cache.
    #[must_use]
    pub fn roofline_ns(self, work: &Work) -> f64 {
        let (flops, bytes) = work.flops_and_bytes();
        1e9 * (flops / self.flops).max(bytes / self.bytes)
    }
}

/// Prediction errors of the roofline with measured peaks, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PeakErrors {
    /// Geometric mean of the absolute errors.
    pub measured_peak_gmae_pct: f64,
    pub measured_peak_mape_pct: f64,
}

/// Computes the errors of max(roofline, launch overhead) with the peaks of each device, on the test
/// rows of a kind. The keys are those of the devices.
#[must_use]
pub fn evaluate_peaks(kind: Kind, rows: &[Measured]) -> BTreeMap<&'static str, PeakErrors> {
    let latencies = list_latencies(kind, rows);
    let errors = |latencies: &[CleanLatency]| {
        let device: &'static HardwareSpec = latencies[0].row.device;
        let peaks = MeasuredPeaks::from_rows(device, rows);
        let pairs = latencies.iter().filter(|one| one.part == Part::Test && one.is_judged);
        let pairs = pairs.map(|CleanLatency { row, floor_ns, .. }| {
            (peaks.roofline_ns(&row.work).max(*floor_ns), row.latency_ns)
        });
        let measured_peak_gmae_pct = gmae(pairs.clone());
        let errors = PeakErrors { measured_peak_gmae_pct, measured_peak_mape_pct: mape(pairs) };
        (&*device.key, errors)
    };
    latencies.chunk_by(|one, next| one.row.device.key == next.row.device.key).map(errors).collect()
}

#[cfg(test)]
mod tests {
    use kernel_model::{Kind, Measured, Timed, Work};
    use schema::topology::hardware;

    use super::MeasuredPeaks;

    #[test]
    fn peaks_are_the_highest_rates_of_training_rows() {
        let device = hardware("v100").expect("a device");
        let row = |place: u32| {
            let work = Work::new(Kind::LayerNorm, &[1_000 * u64::from(place), 1024]);
            let work = work.expect("a work");
            let latency_ns = 3e9 * work.flops_and_bytes().1 / device.dram;
            Measured { work, device, latency_ns, timed: Timed::Call, place }
        };
        let rows: Vec<Measured> = (1..200).map(row).collect();
        let peaks = MeasuredPeaks::from_rows(device, &rows);
        assert!((0.333..0.334).contains(&(peaks.bytes / device.dram)), "{peaks:?}");
        assert_eq!(peaks.flops, device.peak.f32, "no product was measured");
    }
}
