//! Exclusive sums of integers, which convert bag lengths to offsets and digit counts to
//! positions. On a CPU they are inline loops, and on a GPU they are operations.

pub mod cuda;
pub mod scalar;
