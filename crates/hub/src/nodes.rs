//! The states of hosts by their scheduler, from the events `node`, which are written at changes and
//! once an hour.

use std::collections::HashMap;

use arrow_array::{StringArray, TimestampMillisecondArray};
use serde::{Deserialize, Serialize};

use crate::columns::RowTable;
use crate::error::Error;
use crate::store::{Partition, StoreFolder, column};

/// Kind of the events.
pub const NODE: &str = "node";
/// Hours before an hour whose events are read too. An unchanged state is written an hour after the
/// last time, and up to one interval of the poll later.
const HOURS_BEFORE: u64 = 2;
/// States and flags of nodes on which jobs may start.
const SCHEDULABLE: [&str; 7] =
    ["allocated", "cloud", "completing", "idle", "mixed", "planned", "reserved"];

/// The state of a host by its scheduler, as in the details of an event `node`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// States and flags in lowercase, such as `idle` and `drain`.
    pub state: Vec<String>,
    pub reason: String,
    pub gpus: u64,
    pub gpus_used: u64,
}

impl NodeState {
    /// Whether jobs may start on the node.
    pub fn is_schedulable(&self) -> bool {
        self.state.iter().all(|state| SCHEDULABLE.contains(&state.as_str()))
    }
}

/// When jobs may start on each host, in one hour.
#[derive(Debug, Default)]
pub struct NodeStates {
    /// Times in milliseconds since 1970, from which jobs may start or not, in ascending order.
    changes: HashMap<String, Vec<(i64, bool)>>,
}

impl NodeStates {
    /// Reads the states that held in an hour.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(folder: &StoreFolder, hour: u64) -> Result<Self, Error> {
        let mut changes = HashMap::<String, Vec<(i64, bool)>>::new();
        for hour in hour.saturating_sub(HOURS_BEFORE)..=hour {
            let partition = Partition { hour: Some(hour), table: RowTable::Event.folder() };
            folder.read(partition, &["host", "kind", "start", "details"], |batch, path| {
                let hosts: &StringArray = column(batch, "host", path)?;
                let kinds: &StringArray = column(batch, "kind", path)?;
                let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
                let details: &StringArray = column(batch, "details", path)?;
                for row in (0..batch.num_rows()).filter(|row| kinds.value(*row) == NODE) {
                    if let Ok(node) = serde_json::from_str::<NodeState>(details.value(row)) {
                        let change = (starts.value(row), node.is_schedulable());
                        changes.entry(hosts.value(row).to_owned()).or_default().push(change);
                    }
                }
                Ok(())
            })?;
        }
        changes.values_mut().for_each(|changes| changes.sort_unstable());
        Ok(Self { changes })
    }

    /// Whether jobs may start on a host at a second since 1970. A host without a state may be used.
    pub fn is_schedulable(&self, host: &str, second: u64) -> bool {
        let Some(changes) = self.changes.get(host) else { return true };
        let before = changes.partition_point(|(ms, _)| *ms / 1000 <= second.cast_signed());
        before.checked_sub(1).is_none_or(|last| changes[last].1)
    }
}
