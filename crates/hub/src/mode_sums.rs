//! Computes the sums of a tree from rows of hosts that have seconds by mode, such as those of CPUs.
//! [`crate::aggregate`] computes the sums of GPUs.
//!
//! The capacity of a host is the sum of all modes in a second. A host is busy in an interval if a
//! run holds one of its GPUs, or if the control group of a run used CPU time.

use std::collections::HashMap;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{
    Float64Array, MapArray, RecordBatch, StringArray, TimestampMillisecondArray, UInt32Array,
};

use crate::columns::RowTable;
use crate::config::Pools;
use crate::error::Error;
use crate::grouping::{GroupKey, GroupedSums, TextColumn};
use crate::nodes::NodeStates;
use crate::store::{HOUR_S, Partition, StoreFolder, column};
use crate::sums::{DIMENSIONS, Dimension, FleetSums, IDLE_BUSY_MAX};
use crate::trees::ModeColumn;

/// Column of the seconds that control groups of runs used.
const GROUPS: &str = "group_cpu_s";

/// The seconds of an hour at which intervals with an allocated GPU begin, by host.
#[derive(Debug, Default)]
struct HeldSeconds(HashMap<String, Vec<bool>>);

/// One row of a host.
struct ModeRow<'a> {
    host: &'a str,
    start_unix_s: u64,
    length_s: f64,
    observed_s: f64,
    /// Seconds of all modes, of the busy ones, and of the innermost ones.
    modes_s: [f64; 3],
    has_groups: bool,
}

impl HeldSeconds {
    fn read(folder: &StoreFolder, hour: u64) -> Result<Self, Error> {
        let mut held = Self::default();
        let partition = Partition { hour: Some(hour), table: RowTable::Gpu.folder() };
        folder.read_coded(partition, &["host", "start", "run"], &[], |batch, path| {
            let mut names: Vec<String> = Vec::new();
            let number = |host: &str| {
                names.push(host.to_owned());
                u32::try_from(names.len() - 1).unwrap_or(0)
            };
            let hosts = TextColumn::new(batch, "host", path, number)?;
            let runs = TextColumn::new(batch, "run", path, |_| 0)?;
            let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
            for row in (0..batch.num_rows()).filter(|row| !runs.is_missing(*row)) {
                let second = u64::try_from(starts.value(row) / 1000).unwrap_or(0);
                let name = &names[hosts.number(row) as usize];
                if !held.0.contains_key(name) {
                    held.0.insert(name.clone(), vec![false; HOUR_S as usize]);
                }
                if let Some(seconds) = held.0.get_mut(name)
                    && let Some(is_held) = seconds.get_mut((second % HOUR_S) as usize)
                {
                    *is_held = true;
                }
            }
            Ok(())
        })?;
        Ok(held)
    }

    fn is_held(&self, host: &str, second: u64) -> bool {
        let seconds = self.0.get(host);
        seconds.is_some_and(|seconds| seconds[(second % HOUR_S) as usize])
    }
}

/// Adds the sums of the rows of an hour to groups.
///
/// # Errors
/// If a file cannot be read.
pub fn add_hour(
    folder: &StoreFolder,
    pools: &Pools,
    hour: u64,
    modes: &ModeColumn,
    groups: &mut GroupedSums,
) -> Result<(), Error> {
    let (nodes, held) = (NodeStates::read(folder, hour)?, HeldSeconds::read(folder, hour)?);
    // The capacity of a host in an interval that was not observed is that of its last interval.
    let mut capacities = HashMap::<String, f64>::new();
    let partition = Partition { hour: Some(hour), table: RowTable::Host.folder() };
    let columns = ["host", "start", "length_s", "observed_s", modes.column, GROUPS];
    folder.read(partition, &columns, |batch, path| {
        for_each_row(batch, path, modes, |row| {
            let capacity = row.modes_s[0] / row.observed_s;
            if row.observed_s > 0.0 && capacity > 0.0 {
                match capacities.get_mut(row.host) {
                    Some(known) => *known = capacity,
                    None => drop(capacities.insert(row.host.to_owned(), capacity)),
                }
            }
            let Some(&capacity) = capacities.get(row.host) else { return };
            let is_busy = row.has_groups || held.is_held(row.host, row.start_unix_s);
            let is_schedulable = is_busy || nodes.is_schedulable(row.host, row.start_unix_s);
            let sums = compute_sums(&row, capacity, [is_schedulable, is_busy]);
            let mut members = [0; DIMENSIONS];
            let pool = pools.pool_of(row.host);
            for (dimension, name) in [(Dimension::Pool, pool), (Dimension::Host, row.host)] {
                members[dimension as usize] = groups.number(dimension, name);
            }
            let end_unix_s = row.start_unix_s + row.length_s as u64;
            for (start, seconds) in groups.query.divide(row.start_unix_s..end_unix_s) {
                let sums = sums.scale(seconds as f64 / row.length_s);
                groups.add(GroupKey { start, members }, &sums);
            }
        })
    })
}

/// Computes the sums of a row. `is_reached` tells whether its host is schedulable, and whether it
/// is busy.
fn compute_sums(row: &ModeRow, capacity: f64, is_reached: [bool; 2]) -> FleetSums {
    let deployed_s = capacity * row.length_s;
    let [schedulable_s, allocated_s] = is_reached.map(|is| if is { deployed_s } else { 0.0 });
    let mut sums = FleetSums { deployed_s, schedulable_s, ..FleetSums::default() };
    if allocated_s > 0.0 {
        let observed_s = capacity * row.observed_s.min(row.length_s);
        let [_, busy_s, innermost_s] = row.modes_s;
        sums.on_busy_hosts_s = allocated_s;
        sums.allocated_s = allocated_s;
        (sums.busy_s, sums.sm_active_s) = (busy_s, innermost_s);
        (sums.busy_observed_s, sums.sm_observed_s) = (observed_s, observed_s);
        sums.held_idle_s = if busy_s < IDLE_BUSY_MAX * observed_s { observed_s } else { 0.0 };
    }
    sums
}

fn for_each_row(
    batch: &RecordBatch,
    path: &Path,
    modes: &ModeColumn,
    mut visit: impl FnMut(ModeRow),
) -> Result<(), Error> {
    let hosts: &StringArray = column(batch, "host", path)?;
    let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
    let lengths: &UInt32Array = column(batch, "length_s", path)?;
    let observed: &Float64Array = column(batch, "observed_s", path)?;
    let seconds: &MapArray = column(batch, modes.column, path)?;
    let groups: &MapArray = column(batch, GROUPS, path)?;
    let wrong = || Error::Column { path: path.to_owned(), column: modes.column };
    let names: &StringArray = seconds.keys().as_string_opt().ok_or_else(wrong)?;
    let values: &Float64Array =
        seconds.values().as_primitive_opt::<Float64Type>().ok_or_else(wrong)?;
    let range = |map: &MapArray, row: usize| {
        let offsets = map.value_offsets();
        let end = |at: usize| usize::try_from(offsets[at]).unwrap_or(0);
        end(row)..end(row + 1)
    };
    for row in 0..batch.num_rows() {
        let mut modes_s = [0.0; 3];
        for at in range(seconds, row) {
            let (name, value) = (names.value(at), values.value(at));
            let is_in = [true, modes.busy.contains(&name), modes.innermost.contains(&name)];
            for (sum, _) in modes_s.iter_mut().zip(is_in).filter(|(_, is_in)| *is_in) {
                *sum += value;
            }
        }
        visit(ModeRow {
            host: hosts.value(row),
            start_unix_s: u64::try_from(starts.value(row) / 1000).unwrap_or(0),
            length_s: f64::from(lengths.value(row)),
            observed_s: observed.value(row),
            modes_s,
            has_groups: !range(groups, row).is_empty(),
        });
    }
    Ok(())
}
