//! Tests of the planner.
#![expect(clippy::expect_used, reason = "test code fails by panicking")]

mod at_scale;
mod cases;
mod check;
mod comparison;
mod infeasible;
mod launched_steps;
mod placement;
mod published_steps;
mod search;
