//! Calls of a calibration, scaled to the sizes of another operator.

use crate::calibration::launches::ApiCall;

/// How many times as much as was recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub time: f64,
    /// Bytes of messages.
    pub bytes: f64,
}

impl Scale {
    /// As recorded.
    pub const ONE: Self = Self { time: 1.0, bytes: 1.0 };
}

/// Calls, each with how many times as much as recorded it launches.
pub type ScaledCalls = Vec<(ApiCall, Scale)>;
