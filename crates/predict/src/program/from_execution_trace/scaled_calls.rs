//! Calls of a calibration, scaled to the sizes of another operator.

use crate::calibration::launches::ApiCall;

/// Factors on recorded work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub time: f64,
    /// Factor on the bytes of messages.
    pub bytes: f64,
}

impl Scale {
    /// Scale of calls that do exactly the recorded work.
    pub const ONE: Self = Self { time: 1.0, bytes: 1.0 };
}

/// Calls with the factor on the work that each launches.
pub type ScaledCalls = Vec<(ApiCall, Scale)>;
