//! The latency that a forest predicts for a call: baseline times residual.

use schema::HardwareSpec;

use super::baseline::DeviceBaseline;
use super::bins::Bins;
use super::feature::{Features, MOST, physics_ns, roofline_ns};
use super::forest::Forest;
use super::work::Work;

/// A predicted measurement.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    pub ns: f64,
    /// What hides shorter kernels.
    pub floor_ns: f64,
    pub above_floor: f32,
}

/// What trees say of a measurement.
pub fn latency(
    bins: &Bins,
    forest: &Forest,
    work: &Work,
    device: &HardwareSpec,
    baseline: DeviceBaseline,
) -> Latency {
    let features = Features::compute(work, device, baseline);
    let mut placed = [0; MOST];
    bins.place(features.values(), &mut placed);
    let floor_ns = baseline.overhead_ns;
    let base = baseline.line.ns(roofline_ns(work, device), floor_ns);
    let ns = (base * forest.predict(&placed).exp()).max(physics_ns(work, device));
    Latency { ns, floor_ns, above_floor: features.above_floor() }
}
