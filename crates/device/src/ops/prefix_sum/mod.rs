//! Exclusive sums of whole numbers: bag lengths become offsets, digit counts become places. On a
//! CPU these are a loop where they are needed; a device has them as an operation.

pub mod cuda;
pub mod scalar;
