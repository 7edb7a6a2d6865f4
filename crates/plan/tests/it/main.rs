//! Tests of the planner.

mod cases;
mod comparison;
mod infeasible;
mod placement;
mod search;
