//! What a step's time rests on: measured kernels, kernels of other sizes or devices, formulas.

use serde::Serialize;

use super::Basis;

/// Per cent of a step's time by what it rests on; they add up to 100.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepDomain {
    /// Measured kernels of this device, of sizes within the measured ones.
    pub measured_pct: f64,
    /// Those of this device, of other sizes or shorter than their launches.
    pub extended_pct: f64,
    /// Those of other devices.
    pub other_devices_pct: f64,
    /// Formulas, and all that is no single operation.
    pub formula_pct: f64,
}

impl StepDomain {
    /// Of operations with their times, and the time of the whole step.
    #[must_use]
    pub fn from_ops(ops: impl Iterator<Item = (Basis, f64)>, step_ns: f64) -> Self {
        let mut found = Self::default();
        for (basis, ns) in ops {
            let share = match basis {
                Basis::Measured => &mut found.measured_pct,
                Basis::Extended => &mut found.extended_pct,
                Basis::OtherDevices => &mut found.other_devices_pct,
                Basis::Formula => continue,
            };
            *share += 100.0 * ns / step_ns.max(1.0);
        }
        let rest = 100.0 - found.measured_pct - found.extended_pct - found.other_devices_pct;
        found.formula_pct = rest.max(0.0);
        found
    }

    /// Per cent of the time that is not [`StepDomain::measured_pct`].
    #[must_use]
    pub fn outside_pct(&self) -> f64 {
        (100.0 - self.measured_pct).max(0.0)
    }
}
