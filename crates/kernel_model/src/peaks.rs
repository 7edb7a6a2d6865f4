//! The roofline of arXiv:2201.07821 with measured peaks, the highest rates that rows of a table
//! reached.

use std::collections::BTreeMap;

use schema::HardwareSpec;

use super::measured::Measured;
use super::split::Part;
use super::work::{Kind, Work};

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

/// Finds the peaks of every device that occurs in the rows.
pub fn peaks_by_device(rows: &[Measured]) -> BTreeMap<&'static str, MeasuredPeaks> {
    let mut peaks = BTreeMap::new();
    for row in rows {
        let device: &'static HardwareSpec = row.device;
        peaks.entry(&*device.key).or_insert_with(|| MeasuredPeaks::from_rows(device, rows));
    }
    peaks
}
