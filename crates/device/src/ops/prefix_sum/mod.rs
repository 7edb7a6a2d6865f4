//! Exclusive sums of whole numbers: they convert bag lengths to offsets and digit counts to places.
//! On a CPU they are inline loops; on a GPU they are operations.

pub mod cuda;
pub mod scalar;
