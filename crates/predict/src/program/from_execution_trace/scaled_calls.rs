//! Calls of a calibration that are scaled to the sizes of another operator.

use crate::calibration::launches::ApiCall;

/// Factors on the time and on the message bytes of recorded work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub time: f64,
    /// Factor on the bytes of messages that collectives exchange.
    pub bytes: f64,
}

impl Scale {
    /// Scale of calls that do exactly the recorded work.
    pub const ONE: Self = Self { time: 1.0, bytes: 1.0 };
}

/// Calls, each with the scale of the work that it launches.
pub type ScaledCalls = Vec<(ApiCall, Scale)>;
