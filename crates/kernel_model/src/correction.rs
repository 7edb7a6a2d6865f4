//! Correction of the shared forest for one device, found from a few of its rows.

use super::latency::Latency;

/// Distance above the launch overhead, in factors of e, from which a latency is all kernel time.
const FREE_OF_FLOOR: f64 = 0.4;

/// What a device's kernels are off by: a line through the logarithm of how far they lie above the
/// floor, which counts for nothing at the floor itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correction {
    /// Where the line is `shift`.
    pub middle: f64,
    pub shift: f64,
    pub slope: f64,
}

impl Correction {
    /// A prediction of all devices' trees, corrected.
    pub fn applied(&self, found: Latency) -> Latency {
        let share = share(&found);
        let line = self.shift + self.slope * (f64::from(found.above_floor) - self.middle);
        Latency { ns: (found.ns * (share * line).exp()).max(found.floor_ns.min(found.ns)), ..found }
    }
}

/// How much of a measurement is the kernel's: none at the floor, all from some factor above.
pub fn share(found: &Latency) -> f64 {
    ((found.ns / found.floor_ns).ln() / FREE_OF_FLOOR).clamp(0.0, 1.0)
}
