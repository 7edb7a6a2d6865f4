//! Compares the results of the analyses on real traces with recorded expected values.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod advice;
mod attribution;
mod cases;
mod causes;
mod collectives;
mod counts;
mod critical_path;
mod cut;
mod diff;
mod exact;
mod faults;
mod findings;
mod fixture;
mod frames;
mod graph;
mod guards;
mod hole;
mod host_time;
mod idle;
mod judged;
mod launches;
mod on_demand;
mod painted;
mod pairs;
mod quality;
mod simulation;
mod tree;
