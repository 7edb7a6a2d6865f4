//! What happened: everything a trace shows, in exact nanoseconds.
//!
//! [`Scope`] selects the window and the device rows of one rank; each analysis is a module with a
//! function `of` that turns scopes into plain rows. Pure: no file, clock or environment, and the
//! same input gives the same bytes. Knows no prices and draws no pictures.

pub mod annotations;
pub mod antipattern;
pub mod attribution;
pub mod bandwidth;
pub mod breakdown;
pub mod calls;
mod captures;
pub mod classify;
pub mod clock;
pub mod collectives;
pub mod coverage;
pub mod critical_path;
pub mod device_step;
pub mod diff;
pub mod distribution;
pub mod disturbance;
pub mod frames;
pub mod graph;
pub mod hta;
pub mod idle;
pub mod interval;
pub mod job;
pub mod kernels;
pub mod launches;
pub mod links;
pub mod memory;
mod named;
pub mod occupancy;
pub mod ops;
pub mod overlap;
pub mod pool;
pub mod pressure;
pub mod quality;
pub mod queue;
pub mod refuted;
pub mod scope;
pub mod sequences;
pub mod skew;
pub mod steps;
pub mod stragglers;
pub mod summary;
pub mod tree;
pub mod what_if;
pub mod window;
pub mod writer;

pub use classify::{Classifier, WorkClass};
pub use job::JobFacts;
pub use links::Links;
pub use scope::Scope;
pub use window::{StepMark, TimeWindow, TrainingStep, WindowRule};

/// Invalid requests of a user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A pattern that is no regular expression.
    #[error("pattern {pattern:?}: {source}")]
    Pattern {
        /// As it was given.
        pattern: String,
        /// What is wrong with it.
        source: regex::Error,
    },
    /// A what-if that cannot be read.
    #[error("what-if {edit:?}: expected {expected}, got {got:?}")]
    Edit {
        /// As it was given.
        edit: String,
        /// What would have been right in its place.
        expected: &'static str,
        got: String,
    },
    /// Settings of rules that cannot be used.
    #[error("rules: {place}: expected {expected}, got {got:?}")]
    Rules {
        /// Where in the settings.
        place: String,
        /// What would have been right there.
        expected: String,
        got: String,
    },
}

/// `100·part/whole` with four decimals; `None` of nothing.
pub fn percent(part: i64, whole: i64) -> Option<f64> {
    let percent = 100.0 * part as f64 / whole as f64;
    (whole != 0).then(|| (percent * 1e4).round() / 1e4)
}
