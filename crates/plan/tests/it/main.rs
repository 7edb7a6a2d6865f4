//! Tests of the planner.

mod placement;
