//! Corrects the shared forest for one device by a line that was fitted to a few of its
//! measurements.

use serde::{Deserialize, Serialize};

use super::latency::Latency;

/// Logarithm of latency over launch overhead from which a latency counts as kernel time entirely.
const FREE_OF_FLOOR: f64 = 0.4;

/// Corrects the shared forest for one device. The correction is a linear function of the height,
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
        Latency { ns: (found.ns * (share * line).exp()).max(found.floor_ns.min(found.ns)), ..found }
    }
}

/// Computes the share of a latency that is kernel time. The share is 0 at the launch overhead and
/// reaches 1 a fixed factor above it.
pub fn share(found: &Latency) -> f64 {
    ((found.ns / found.floor_ns).ln() / FREE_OF_FLOOR).clamp(0.0, 1.0)
}
