//! Correction of the shared forest for one device, found from a few of its rows.

use serde::{Deserialize, Serialize};

use super::latency::Latency;

/// Distance above the launch overhead, in factors of e, from which a latency is all kernel time.
const FREE_OF_FLOOR: f64 = 0.4;

/// Corrects the shared forest for one device: a linear function of how far a latency lies above the
/// launch overhead, in logarithms. It fades to zero at the launch overhead, where a latency
/// contains no kernel time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Correction {
    /// Height above the launch overhead at which the correction equals `shift`.
    pub middle: f64,
    pub shift: f64,
    pub slope: f64,
}

impl Correction {
    /// Returns a predicted latency with the correction applied.
    pub fn applied(&self, found: Latency) -> Latency {
        let share = share(&found);
        let line = self.shift + self.slope * (f64::from(found.above_floor) - self.middle);
        Latency { ns: (found.ns * (share * line).exp()).max(found.floor_ns.min(found.ns)), ..found }
    }
}

/// Computes the share of a latency that is kernel time: 0 at the launch overhead, 1 from a fixed
/// factor above it.
pub fn share(found: &Latency) -> f64 {
    ((found.ns / found.floor_ns).ln() / FREE_OF_FLOOR).clamp(0.0, 1.0)
}
