//! Measurements of rowmill on this machine, for `rowmill-bench` and for the commands of `rowmill`
//! that learn from measurements: samples with the conditions they were taken under, generated
//! batches, tables and training steps. The commands of `rowmill-bench` are in its binary.

pub mod batches;
pub mod sample;
pub mod steps;
pub mod tables;
