//! Exclusive sums of whole numbers: bag lengths become offsets, digit counts become places. On a
//! CPU these are inline loops; a GPU has an operation for them.

pub mod cuda;
pub mod scalar;
