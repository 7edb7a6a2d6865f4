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
    /// The observer ended the search before it found a plan that fits into memory.
    #[error("the search was ended before it found a plan")]
    Ended,
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

/// Memory that the plan with the least memory lacks, and the smallest changes with which the search
/// finds a plan that fits.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryShortage {
    /// Fullest rank of the plan with the least memory.
    pub rank: u32,
    /// Largest part of the rank's memory.
    pub kind: &'static str,
    /// Bytes that the rank needs, and bytes of the device.
    pub needed: u64,
    pub memory: u64,
    /// Bytes that the constraints reserve on each rank.
    pub reserved: u64,
    /// Largest reserve with which a plan fits, if the reserve of the constraints is the cause.
    pub reserve: Option<u64>,
    /// Constraints on layouts, ranks and pinned tables without which a plan fits.
    pub constraints: Option<BindingConstraints>,
    /// Batch of all ranks with which a plan fits, and nearly the largest one.
    pub batch: Option<usize>,
    /// Least number of hosts on which a plan fits.
    pub hosts: Option<u32>,
}

/// Names a part of a rank's memory for people. The reserve of the device is not that of `[plan]`.
#[must_use]
pub fn name_part(kind: &'static str) -> &'static str {
    if kind == "reserve" { "the context of the device and its libraries" } else { kind }
}

/// Rounds bytes up to a tenth of the unit in which they are printed, so that what is printed is
/// enough.
fn round_up(bytes: u64) -> Bytes {
    let unit = 1u64 << (10 * (bytes.max(1).ilog2() / 10));
    let tenths = u128::from(bytes) * 10;
    let rounded = tenths.div_ceil(u128::from(unit)) * u128::from(unit);
    Bytes(u64::try_from(rounded.div_ceil(10)).unwrap_or(u64::MAX))
}

impl std::fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let capacity = Bytes(self.memory.saturating_sub(self.reserved));
        let lacking = self.needed.saturating_add(self.reserved).saturating_sub(self.memory);
        write!(f, "memory of rank {}: expected at most {capacity}", self.rank)?;
        if self.reserved > 0 {
            write!(f, " beside the {} of plan.reserve_bytes", Bytes(self.reserved))?;
        }
        let constraints = self.constraints.as_ref().map(|binding| match binding {
            BindingConstraints::Table(name) => format!("no constraints on table {name:?}"),
            BindingConstraints::Several => "no constraints on tables".to_owned(),
        });
        let changes: Vec<String> = [
            Some(format!("{} more memory per rank", round_up(lacking))),
            // The bytes are typed, so they are not rounded.
            self.reserve.map(|reserve| format!("plan.reserve_bytes = {reserve}")),
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
