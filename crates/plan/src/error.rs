//! Causes for which a problem has no plan.

use schema::reference::listed;
use schema::unit::{Bytes, counted};

/// Cause for which no plan was made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Hosts(schema::HostLayoutError),
    /// The workload cannot be priced.
    #[error(transparent)]
    Step(#[from] predict::Error),
    #[error(transparent)]
    Plan(#[from] schema::plan::PlanError),
    #[error(
        "constraints: table {name:?}: expected a name among the {} of the model",
        counted(*tables as u64, "table")
    )]
    UnknownTable { name: String, tables: usize },
    /// No layout of a table satisfies its constraints on this topology. `missing` lists what each
    /// allowed layout needs.
    #[error("table {table:?}: no allowed layout is possible: {missing}; allow the layout table")]
    NoLayout { table: String, missing: String },
    #[error("model: expected tables to place, got none")]
    NoTables,
    #[error("pinned table {table:?}: expected {expected}, got {got}")]
    Pinned { table: String, expected: String, got: String },
    /// The search found no plan that fits into memory.
    #[error("{0}")]
    Memory(MemoryShortage),
}

/// Constraints without which a plan fits into memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingConstraints {
    /// The constraints of one table, given by its name.
    Table(String),
    /// The constraints of several tables, or those on every table.
    Several,
}

/// Memory that the best plan of a search lacks, and the smallest changes that would make it fit.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryShortage {
    /// Rank that lacks most.
    pub rank: u32,
    /// Largest part of the rank's memory.
    pub kind: &'static str,
    /// Bytes that the rank needs, and bytes of the device.
    pub needed: u64,
    pub memory: u64,
    /// Bytes that the constraints reserve on each rank.
    pub reserved: u64,
    /// Reserve that makes the plan fit, if the reserve of the constraints is the cause.
    pub reserve: Option<u64>,
    /// Constraints on layouts, ranks and pinned tables without which a plan fits.
    pub constraints: Option<BindingConstraints>,
    /// Largest batch of all ranks that fits under the plan.
    pub batch: Option<usize>,
    /// Least number of hosts on which a heuristic plan fits.
    pub hosts: Option<u32>,
}

/// Names a part of a rank's memory for people. The reserve of the device is not that of `[plan]`.
#[must_use]
pub fn name_part(kind: &'static str) -> &'static str {
    if kind == "reserve" { "the context of the device and its libraries" } else { kind }
}

impl std::fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let capacity = Bytes(self.memory.saturating_sub(self.reserved));
        let lacking = Bytes(self.needed.saturating_add(self.reserved).saturating_sub(self.memory));
        write!(f, "memory of rank {}: expected at most {capacity}", self.rank)?;
        if self.reserved > 0 {
            write!(f, " beside the {} of plan.reserve_bytes", Bytes(self.reserved))?;
        }
        let constraints = self.constraints.as_ref().map(|binding| match binding {
            BindingConstraints::Table(name) => format!("no constraints on table {name:?}"),
            BindingConstraints::Several => "no constraints on tables".to_owned(),
        });
        let changes: Vec<String> = [
            Some(format!("{lacking} more memory per rank")),
            self.reserve.map(|reserve| format!("{} of plan.reserve_bytes", Bytes(reserve))),
            constraints,
            self.batch.map(|batch| format!("a batch of {batch}")),
            self.hosts.map(|hosts| counted(u64::from(hosts), "host")),
        ]
        .into_iter()
        .flatten()
        .collect();
        write!(
            f,
            ", got {}, of which {} is the largest part; it fits with {}",
            Bytes(self.needed),
            name_part(self.kind),
            listed(&changes)
        )
    }
}
