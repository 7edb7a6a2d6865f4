//! Tests of the planner.
#![expect(clippy::expect_used, reason = "test code fails by panicking")]

mod at_scale;
mod cases;
mod check;
mod comparison;
mod infeasible;
mod placement;
mod search;
