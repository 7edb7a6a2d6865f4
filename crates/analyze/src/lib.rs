//! Analyzes what happened in a recorded job, in exact nanoseconds.
//!
//! The folders build on each other. `facts` computes facts of a rank or a job, `tables` lists them,
//! `graph` finds dependencies, critical paths and what-if answers, and `findings` names causes of
//! waste. [`Scope`] selects the window and the device rows of one rank. [`JobFacts`] computes facts
//! that several analyses share, each only once. All analyses are pure functions: they read no file,
//! clock or environment, and the same input gives the same bytes. Hardware prices and pictures
//! belong to other crates.

mod error;
mod facts;
pub mod findings;
pub mod graph;
mod percent;
mod tables;
mod text;

pub use error::Error;
pub use facts::classify::{Classifier, WorkClass};
pub use facts::job::JobFacts;
pub use facts::links::Links;
pub use facts::scope::Scope;
pub use facts::window::{StepMark, TimeWindow, TrainingStep, WindowRule};
pub use facts::{
    attribution, back_pressure, calls, classify, clock, collectives, coverage, cpu_run,
    device_step, distribution, disturbance, frames, interval, job, links, quality, refuted, scope,
    skew, tree, window, writer,
};
pub use graph::{critical_path, what_if};
pub use percent::percent;
pub use tables::{
    annotations, bandwidth, breakdown, diff, idle, kernels, launches, memory, occupancy, ops,
    overlap, queue, sequences, steps, stragglers, summary,
};
