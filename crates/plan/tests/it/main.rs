//! Tests of the planner.

mod at_scale;
mod cases;
mod comparison;
mod infeasible;
mod placement;
mod search;
