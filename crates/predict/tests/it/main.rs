//! Tests that compare predictions with recordings and with programs computed by hand.
#![expect(clippy::expect_used, reason = "test code fails by panicking")]

mod cpu;
mod edits;
mod embedding;
mod execution;
mod faults;
mod finding_savings;
mod fixture;
mod hosts;
mod intervals;
mod random;
mod ranks;
mod rebuilt;
mod recording_cost;
mod replay;
mod shapes;
mod steady;
mod step;
mod step_conditions;
mod transforms;
