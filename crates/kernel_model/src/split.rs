//! Splits rows into training, calibration and test rows by kind and shape, so that a shape is in
//! the same part on all devices.

use schema::random::mix;

use super::work::Work;

/// Part of the train, calibrate and test split to which a row belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// 60 % of the rows, on which models are trained.
    Train,
    /// 20 % of the rows, from which the error intervals of predictions are computed.
    Calibrate,
    /// 20 % of the rows, on which the reported prediction errors are measured. No other computation
    /// uses these rows.
    Test,
}

impl Part {
    /// Assigns an operation to a part by a hash. All element-wise operations of one size share a
    /// part.
    #[must_use]
    pub fn for_work(work: &Work) -> Self {
        match hash(work, 0) % 100 {
            0..60 => Self::Train,
            60..80 => Self::Calibrate,
            _ => Self::Test,
        }
    }
}

/// Hashes kind, sizes and `salt`. The hash does not depend on the device.
pub fn hash(work: &Work, salt: u64) -> u64 {
    let start = mix(work.kind() as u64 + 1) ^ mix(salt.wrapping_add(0x9e37_79b9_7f4a_7c15));
    work.sizes().iter().fold(start, |hash, size| mix(hash.wrapping_mul(31).wrapping_add(*size)))
}
