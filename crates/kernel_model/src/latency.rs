//! Predicts the latency of a call as the baseline times the residual of a forest.

use schema::HardwareSpec;

use super::baseline::DeviceBaseline;
use super::bins::Bins;
use super::feature::{Features, physics_ns, roofline_ns};
use super::forest::Forest;
use super::work::Work;

/// A predicted latency of a call, with the launch overhead that it contains.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    pub ns: f64,
    /// Launch overhead, which hides shorter kernels. The overhead is 0 for devices whose kernels
    /// were timed alone.
    pub floor_ns: f64,
    pub above_floor: f32,
    /// Time of the kernel, if it is predicted apart from the launch overhead.
    pub kernel_ns: Option<f64>,
}

impl Latency {
    /// Multiplies latency and kernel by a factor. The latency stays above the launch overhead.
    pub fn times(self, factor: f64) -> Self {
        let ns = (self.ns * factor).max(self.floor_ns.min(self.ns));
        Self { ns, kernel_ns: self.kernel_ns.map(|ns| ns * factor), ..self }
    }
}

/// Predicts the latency of a call: the baseline times the residual that the forest predicts. The
/// prediction is never below the physical limit.
pub fn latency(
    bins: &Bins,
    forest: &Forest,
    work: &Work,
    device: &HardwareSpec,
    baseline: DeviceBaseline,
) -> Latency {
    let features = Features::compute(work, device, baseline);
    let floor_ns = baseline.overhead_ns;
    let base = baseline.line.ns(roofline_ns(work, device), floor_ns);
    let ns = (base * forest.predict(bins, features.as_ref()).exp()).max(physics_ns(work, device));
    Latency { ns, floor_ns, above_floor: features.above_floor(), kernel_ns: None }
}
