//! Predictions against recordings.
#![expect(clippy::expect_used, reason = "test code fails by panicking")]

mod faults;
mod fixture;
mod replay;
