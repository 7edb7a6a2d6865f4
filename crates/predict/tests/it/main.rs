//! Predictions against recordings.
#![expect(clippy::expect_used, reason = "test code fails by panicking")]

mod edits;
mod embedding;
mod faults;
mod fixture;
mod kernels;
mod random;
mod rebuilt;
mod replay;
