//! The evidence behind a step's time: measured kernels, kernels of other sizes or devices, or
//! formulas.

use schema::CellType;
use serde::Serialize;

use super::Basis;

/// Shares of a step's time by the evidence behind them, in percent. The shares add up to 100.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, CellType)]
pub struct StepDomain {
    /// Share of measured kernels of this device, within the measured sizes.
    pub measured_pct: f64,
    /// Share of measured kernels of this device that lie outside the measured sizes or are shorter
    /// than their launches.
    pub extended_pct: f64,
    /// Share that is predicted from measured kernels of other devices.
    pub other_devices_pct: f64,
    /// Share that is computed from formulas, including all time outside single operations.
    pub formula_pct: f64,
}

impl StepDomain {
    /// Sums the times of operations by evidence, relative to the time of the step.
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

    /// Returns the share that is not based on measured kernels of this device.
    #[must_use]
    pub fn outside_pct(&self) -> f64 {
        (100.0 - self.measured_pct).max(0.0)
    }
}
