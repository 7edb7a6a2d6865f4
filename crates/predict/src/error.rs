//! Causes for which a step cannot be predicted.

use analyze::graph::Cycle;
use schema::unit::counted;

/// Cause for which a step cannot be predicted, an edit cannot be applied, or a calibration cannot
/// be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("rank {rank}: expected operators or calls of the host in the step, got none")]
    NoHostRows { rank: u32 },
    #[error("rank {rank}: expected at least {}, got {got}", counted(*expected as u64, "step"))]
    TooFewSteps { rank: u32, expected: usize, got: usize },
    #[error("expected the traces of at least {}, got {got}", counted(*expected as u64, "rank"))]
    TooFewRanks { expected: usize, got: usize },
    /// The actions of a program wait for each other in a cycle.
    #[error("program: {what} is part of a cycle of waits: {source}")]
    Cycle {
        /// First action or work of the cycle.
        what: String,
        source: Cycle,
    },
    /// The name pattern of an edit matches nothing in the program.
    #[error(
        "{}: {what}: expected a name in the program, got {got:?}{}",
        position(*number, kind),
        nearest(names)
    )]
    NothingSelected {
        number: usize,
        kind: &'static str,
        what: &'static str,
        got: String,
        /// Similar names in the program, which the message suggests.
        names: Vec<String>,
    },
    #[error("{}: expected {expected}, got {got}", position(*number, kind))]
    Edit { number: usize, kind: &'static str, expected: String, got: String },
    /// The trainer cannot run the described workload.
    #[error("workload: expected {expected}, got {got}")]
    Workload { expected: String, got: String },
    #[error("execution trace of rank {rank}: expected {expected}, got {got}")]
    Execution { rank: u32, expected: String, got: String },
    /// The given time of unrecorded steps contradicts the recording.
    #[error("unrecorded step: expected {expected}, got {got}")]
    Unrecorded { expected: String, got: String },
    #[error("calibration: expected {expected}, got {got}")]
    Calibration { expected: String, got: String },
    #[error(transparent)]
    Hardware(schema::topology::HardwareError),
    /// Neither shipped overheads nor a file have this name.
    #[error(
        "overheads {name:?}: expected a file of `rowmill predict calibrate` or shipped overheads; \
         similar names are {near}"
    )]
    Overheads { name: String, near: String },
}

/// Describes an edit by its number in a file. The command `resize` has no file, so its number is 0.
fn position(number: usize, kind: &str) -> String {
    if number == 0 { kind.to_owned() } else { format!("edit {number} ({kind})") }
}

fn nearest(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; similar: {}", names.join(", ")) }
}
