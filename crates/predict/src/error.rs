//! Why a step cannot be predicted.

use analyze::graph::Cycle;
use schema::unit::counted;

/// What cannot be predicted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A rank without host rows.
    #[error("rank {rank}: expected operators or calls of the host in the step, got none")]
    NoHostRows { rank: u32 },
    /// A rank without a step.
    #[error("rank {rank}: expected at least {}, got {got}", counted(*expected as u64, "step"))]
    TooFewSteps {
        rank: u32,
        /// How many are needed.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// A job of too few ranks.
    #[error("expected the traces of at least {}, got {got}", counted(*expected as u64, "rank"))]
    TooFewRanks {
        /// How many are needed.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// A program that waits for itself.
    #[error("program: {what} waits for itself: {source}")]
    Cycle {
        /// The first thing on the cycle.
        what: String,
        source: Cycle,
    },
    /// An edit that selects nothing.
    #[error(
        "edit {number} ({kind}): {what}: expected a name in the program, got {got:?}{}",
        nearest(names)
    )]
    NothingSelected {
        /// Which edit, from 1 on.
        number: usize,
        kind: &'static str,
        what: &'static str,
        got: String,
        /// Names that are like it.
        names: Vec<String>,
    },
    /// An edit that cannot be made.
    #[error("edit {number} ({kind}): expected {expected}, got {got}")]
    Edit {
        /// Which edit, from 1 on.
        number: usize,
        kind: &'static str,
        expected: String,
        got: String,
    },
    /// A step that the trainer makes otherwise than is known here.
    #[error("workload: expected {expected}, got {got}")]
    Workload { expected: String, got: String },
    /// An execution trace that no program follows from.
    #[error("execution trace of rank {rank}: expected {expected}, got {got}")]
    Execution { rank: u32, expected: String, got: String },
    /// A step without the profiler that no recording with it can be of.
    #[error("unrecorded step: expected {expected}, got {got}")]
    Unrecorded { expected: String, got: String },
    /// A file that is no calibration.
    #[error("calibration: expected {expected}, got {got}")]
    Calibration { expected: String, got: String },
}

fn nearest(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; like it: {}", names.join(", ")) }
}
