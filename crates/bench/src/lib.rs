//! Measurements of rowmill on this machine, for `rowmill-bench` and for the commands of `rowmill`
//! that learn from measurements. The crate provides samples with the conditions under which they
//! were taken, generated batches, tables and training steps. It also has the errors of kernel
//! models beside those of simple predictions. The commands of `rowmill-bench` are in
//! its binary.

pub mod batches;
pub mod left_out_devices;
pub mod sample;
pub mod simple_predictions;
pub mod steps;
pub mod tables;
