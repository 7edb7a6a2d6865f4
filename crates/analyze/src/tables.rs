//! Turns facts into tables, with one module per analysis, each of which returns flat rows. Tables
//! draw no conclusions from the facts; [`crate::findings`] does.

pub mod annotations;
pub mod bandwidth;
pub mod breakdown;
pub mod diff;
pub mod idle;
pub mod kernels;
pub mod launches;
pub mod memory;
pub mod occupancy;
pub mod ops;
pub mod overlap;
pub mod queue;
pub mod sequences;
pub mod steps;
pub mod stragglers;
pub mod summary;
