//! Causes for which TorchRec's planner finds no plan, or a plan has no form in the other program.

use schema::plan::PlanError;

/// A shard for which no rank has enough memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a {sharding} shard of table {table:?}: expected a rank with {bytes} free bytes, \
     got at most {free}"
)]
pub struct Unplaced {
    pub table: String,
    pub sharding: &'static str,
    pub bytes: u64,
    pub free: u64,
}

/// Error of TorchRec's planner, or of the conversion of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TorchrecError {
    #[error("ranks per host: expected a divisor of the {ranks} ranks, got {ranks_per_host}")]
    Hosts { ranks: u32, ranks_per_host: u32 },
    #[error("table {table:?}: TorchRec's planner has no form for {what}")]
    Unsupported { what: &'static str, table: String },
    #[error("reserved memory: expected at most {memory} bytes, got {needed}")]
    Reservation { memory: u64, needed: u64 },
    #[error("table {table:?}: none of the allowed layouts exists for it on this device")]
    NoOption { table: String },
    /// No proposal fits, although all tables together might.
    #[error("no plan among {proposals} proposals of TorchRec's planner; the last one lacks {last}")]
    NoPlan { proposals: usize, last: Unplaced },
    #[error("table {table:?}: TorchRec has no sharding type for its tiles, because {reason}")]
    Inexpressible { table: String, reason: &'static str },
    #[error("TorchRec's plan files have no form for {0}")]
    PlanForm(&'static str),
    #[error("plan file: expected a sharding of each table, got none of {table:?}")]
    MissingTable { table: String },
    #[error("plan file: expected the tables of the model, got {table:?} as well")]
    UnknownTable { table: String },
    #[error("table {table:?}: two modules of the plan file shard it")]
    TableTwice { table: String },
    #[error("table {table:?}, {what}: expected {expected}, got {got}")]
    Entry { table: String, what: &'static str, expected: String, got: String },
    #[error(transparent)]
    Tiling(#[from] PlanError),
}
