//! Finds GPUs that runs hold without work, from the rows of GPUs.
//!
//! For each GPU the time is known since which it was seen to be idle. Only observed time counts. A
//! row with work, another holder, or a long time that nobody observed begins the time anew. Rows
//! are in the order of time for each GPU, because agents send them so. Rows of hours that are over
//! are added once; those of the last two hours are added again at each look.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, Float64Array, RecordBatch, StringArray, StructArray, TimestampMillisecondArray,
    UInt32Array,
};
use serde::{Deserialize, Serialize};

use crate::columns::{FURTHER_RUNS, RowTable};
use crate::error::Error;
use crate::store::{HOUR_S, Partition, StoreFolder, column};
use crate::sums::IDLE_BUSY_MAX;
use crate::time::DAY_S;

/// Seconds that nobody observed, after which a GPU may have worked.
const GAP_S: u64 = 600;
/// Seconds after the end of its last row for which a GPU counts as held, at least.
const FRESH_S: u64 = 300;
/// Hours before the start of the hub whose rows are read, so that GPUs which have been idle for
/// longer than the hub runs are known.
const HISTORY_H: u64 = 24;
/// Columns with the names of a run, in the order of [`RunNames`].
const NAMES: [&str; 5] = ["run", "user", "workflow", "account", "partition"];
const COLUMNS: [&str; 13] = [
    "host",
    "start",
    "length_s",
    "index",
    "observed_s",
    "run",
    "user",
    "workflow",
    "account",
    "partition",
    "busy_s",
    "instance",
    FURTHER_RUNS,
];

/// The names of a run.
type RunNames = [String; NAMES.len()];

/// A run that holds GPUs of which some are idle.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleRun {
    /// Scheduler and job, as in `slurm/7`.
    pub run: String,
    pub user: String,
    pub workflow: String,
    pub account: String,
    pub partition: String,
    /// Number of GPUs of the run that report rows, and of those that are idle for long enough.
    pub gpus: u64,
    pub idle_gpus: u64,
    /// Observed seconds without work of these idle GPUs. Runs that share a GPU have equal shares.
    pub idle_gpu_s: f64,
    /// Since when the first of these GPUs is idle, in seconds since 1970.
    pub since_unix_s: u64,
    /// When the last GPU of the run worked, or became observed, in seconds since 1970.
    pub worked_unix_s: u64,
    /// Hosts of the idle GPUs.
    pub hosts: BTreeSet<String>,
}

/// The state of all GPUs after the rows of some hours.
#[derive(Clone, Debug, Default)]
pub struct IdleGpus {
    /// The next hour that is not over. 0 before the first look.
    next: u64,
    over: GpuStates,
}

/// The state of each GPU by host and index.
#[derive(Clone, Debug, Default)]
struct GpuStates(HashMap<String, HashMap<u32, GpuState>>);

/// Who holds a GPU, and for how long it is idle.
#[derive(Clone, Debug)]
struct GpuState {
    holders: Arc<[RunNames]>,
    /// End of the last row, and of the last observed one, in seconds since 1970.
    until_s: u64,
    observed_until_s: u64,
    /// Length of the last row in seconds.
    length_s: u64,
    /// Since when no work was seen, and the observed seconds since then.
    since_s: u64,
    idle_s: f64,
}

/// What a row says about a GPU.
#[derive(Clone, Copy, Debug)]
struct GpuRow {
    start_s: u64,
    length_s: u64,
    /// Observed seconds. 0 if the activity is unknown.
    observed_s: f64,
    is_idle: bool,
}

impl IdleGpus {
    /// Reads the rows since the last look, and lists the runs with GPUs that are idle for `after_s`
    /// observed seconds. The run that wastes most comes first.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn look(
        &mut self,
        folder: &StoreFolder,
        after_s: f64,
        now_s: u64,
    ) -> Result<Vec<IdleRun>, Error> {
        let hour = now_s / HOUR_S;
        if self.next == 0 {
            self.next = hour.saturating_sub(HISTORY_H);
        }
        while self.next + 1 < hour {
            let mut states = self.over.clone();
            states.add_hour(folder, self.next)?;
            (self.over, self.next) = (states, self.next + 1);
        }
        self.over.forget(now_s);
        let mut states = self.over.clone();
        // A host whose clock is ahead has rows in the next hour.
        for hour in self.next..=hour + 1 {
            states.add_hour(folder, hour)?;
        }
        Ok(states.idle_runs(after_s, now_s))
    }
}

impl GpuStates {
    fn add_hour(&mut self, folder: &StoreFolder, hour: u64) -> Result<(), Error> {
        let partition = Partition { hour: Some(hour), table: RowTable::Gpu.folder() };
        folder.read(partition, &COLUMNS, |batch, path| self.add(batch, path))
    }

    fn add(&mut self, batch: &RecordBatch, path: &Path) -> Result<(), Error> {
        let hosts: &StringArray = column(batch, "host", path)?;
        let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
        let lengths: &UInt32Array = column(batch, "length_s", path)?;
        let indexes: &UInt32Array = column(batch, "index", path)?;
        let observed: &Float64Array = column(batch, "observed_s", path)?;
        let busy: &Float64Array = column(batch, "busy_s", path)?;
        let names = |name| column::<StringArray>(batch, name, path);
        let names = [
            names(NAMES[0])?,
            names(NAMES[1])?,
            names(NAMES[2])?,
            names(NAMES[3])?,
            names(NAMES[4])?,
        ];
        let instances = batch.column_by_name("instance");
        let further =
            batch.column_by_name(FURTHER_RUNS).and_then(|array| array.as_list_opt::<i32>());
        // Rows of MIG instances are left out, because their whole GPU has a row too.
        let is_whole = |row: usize| instances.is_none_or(|instances| instances.is_null(row));
        for row in (0..batch.num_rows()).filter(|row| is_whole(*row)) {
            let length_s = u64::from(lengths.value(row));
            let is_known = busy.is_valid(row);
            let observed_s = observed.value(row).min(length_s as f64);
            let observed_s = if is_known { observed_s } else { 0.0 };
            let values = GpuRow {
                start_s: u64::try_from(starts.value(row) / 1000).unwrap_or(0),
                length_s,
                observed_s,
                is_idle: is_known && busy.value(row) < IDLE_BUSY_MAX * observed_s,
            };
            let further = further.filter(|list| list.is_valid(row)).map(|list| list.value(row));
            let further = further.as_ref().and_then(|list| list.as_struct_opt());
            let further = further.map(|list| read_names(list, path)).transpose()?;
            let is_held_by = |state: &GpuState| {
                let Some(first) = state.holders.first() else { return names[0].is_null(row) };
                names[0].is_valid(row)
                    && first.iter().zip(names).all(|(name, array)| name == array.value(row))
                    && state.holders[1..] == *further.as_deref().unwrap_or_default()
            };
            let holders = || -> Arc<[RunNames]> {
                let first = names[0].is_valid(row);
                let first = first.then(|| names.map(|array| array.value(row).to_owned()));
                first.into_iter().chain(further.clone().unwrap_or_default()).collect()
            };
            let Some(states) = self.0.get_mut(hosts.value(row)) else {
                let state = GpuState::new(holders(), values);
                let states = HashMap::from([(indexes.value(row), state)]);
                self.0.insert(hosts.value(row).to_owned(), states);
                continue;
            };
            match states.get_mut(&indexes.value(row)) {
                Some(state) if is_held_by(state) => state.add(values),
                // A row that comes too late does not tell who holds the GPU now.
                Some(state) if values.start_s < state.until_s => {}
                _ => drop(states.insert(indexes.value(row), GpuState::new(holders(), values))),
            }
        }
        Ok(())
    }

    /// Forgets GPUs that have had no row for a day.
    fn forget(&mut self, now_s: u64) {
        self.0.retain(|_, gpus| {
            gpus.retain(|_, gpu| gpu.until_s + DAY_S > now_s);
            !gpus.is_empty()
        });
    }

    fn idle_runs(&self, after_s: f64, now_s: u64) -> Vec<IdleRun> {
        // A host that names another user for a run does not change whose the run is elsewhere.
        let mut runs: BTreeMap<(&str, &str), IdleRun> = BTreeMap::new();
        let gpus = self.0.iter().flat_map(|(host, gpus)| gpus.values().map(move |gpu| (host, gpu)));
        for (host, gpu) in gpus {
            let is_fresh = gpu.until_s + FRESH_S.max(2 * gpu.length_s) >= now_s;
            let is_idle = is_fresh && gpu.idle_s >= after_s;
            for [run, user, workflow, account, partition] in gpu.holders.iter() {
                let held = runs.entry((run, user)).or_default();
                if held.gpus == 0 {
                    let names = [run, user, workflow, account, partition].map(String::clone);
                    [held.run, held.user, held.workflow, held.account, held.partition] = names;
                }
                held.gpus += 1;
                held.worked_unix_s = held.worked_unix_s.max(gpu.since_s);
                if is_idle {
                    let is_first = held.idle_gpus == 0 || gpu.since_s < held.since_unix_s;
                    held.since_unix_s = if is_first { gpu.since_s } else { held.since_unix_s };
                    held.idle_gpus += 1;
                    held.idle_gpu_s += gpu.idle_s / gpu.holders.len() as f64;
                    held.hosts.insert(host.clone());
                }
            }
        }
        let mut idle: Vec<IdleRun> = runs.into_values().filter(|run| run.idle_gpus > 0).collect();
        idle.sort_by(|a, b| b.idle_gpu_s.total_cmp(&a.idle_gpu_s));
        idle
    }
}

impl GpuState {
    /// The state after the first row of a holder.
    fn new(holders: Arc<[RunNames]>, row: GpuRow) -> Self {
        let (until_s, observed_until_s) = (row.start_s, row.start_s);
        let (since_s, length_s, idle_s) = (row.start_s, row.length_s, 0.0);
        let mut state = Self { holders, until_s, observed_until_s, length_s, since_s, idle_s };
        state.add(row);
        state
    }

    /// Adds a row of the same holder.
    fn add(&mut self, row: GpuRow) {
        let end_s = row.start_s + row.length_s;
        let is_late = row.start_s < self.until_s;
        let is_observed = row.observed_s > 0.0;
        if is_observed && !row.is_idle {
            // When a late row shows work, later rows do not tell more exactly since when there is
            // none.
            (self.since_s, self.idle_s) = (end_s.max(self.until_s), 0.0);
        } else if is_observed && !is_late {
            if row.start_s > self.observed_until_s + GAP_S {
                (self.since_s, self.idle_s) = (row.start_s, 0.0);
            }
            self.idle_s += row.observed_s;
        }
        if is_observed {
            self.observed_until_s = self.observed_until_s.max(end_s);
        }
        if !is_late {
            (self.until_s, self.length_s) = (end_s, row.length_s);
        }
    }
}

/// Reads the names of the further runs that share a GPU.
fn read_names(list: &StructArray, path: &Path) -> Result<Vec<RunNames>, Error> {
    let mut runs = vec![RunNames::default(); list.len()];
    for (at, name) in NAMES.into_iter().enumerate() {
        let texts = list.column_by_name(name).and_then(|texts| texts.as_string_opt::<i32>());
        let wrong = || Error::Column { path: path.to_owned(), column: FURTHER_RUNS };
        let texts = texts.ok_or_else(wrong)?;
        for (run, text) in runs.iter_mut().zip(texts) {
            run[at] = text.unwrap_or_default().to_owned();
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{GAP_S, GpuRow, GpuState, GpuStates, RunNames};

    fn names(run: &str) -> RunNames {
        [run, "anna", "train", "lab", "gpu"].map(str::to_owned)
    }

    /// A row of 60 s that is idle unless it is busy, and has no observation if it is unknown.
    fn row(start_s: u64, kind: &str) -> GpuRow {
        let observed_s = if kind == "unknown" { 0.0 } else { 50.0 };
        GpuRow { start_s, length_s: 60, observed_s, is_idle: kind == "idle" }
    }

    #[test]
    fn only_observed_time_since_the_last_work_counts() {
        let idle_after = |rows: &[(u64, &str)]| {
            let mut rows = rows.iter().map(|(start_s, kind)| row(*start_s, kind));
            let mut state = GpuState::new([names("slurm/1")].into(), rows.next().unwrap());
            rows.for_each(|row| state.add(row));
            (state.idle_s, state.since_s)
        };
        assert_eq!(idle_after(&[(0, "idle"), (60, "idle")]), (100.0, 0));
        assert_eq!(idle_after(&[(0, "idle"), (60, "busy"), (120, "idle")]), (50.0, 120));
        assert_eq!(idle_after(&[(0, "idle"), (60, "unknown"), (120, "idle")]), (100.0, 0));
        assert_eq!(idle_after(&[(0, "unknown"), (60, "unknown")]), (0.0, 0));
        // What nobody observed for long may have been work.
        assert_eq!(idle_after(&[(0, "idle"), (60 + GAP_S, "idle")]), (100.0, 0));
        assert_eq!(idle_after(&[(0, "idle"), (61 + GAP_S, "idle")]), (50.0, 61 + GAP_S));
        // A late row with work counts, and one without does not.
        assert_eq!(idle_after(&[(0, "idle"), (120, "idle"), (60, "idle")]), (100.0, 0));
        assert_eq!(idle_after(&[(0, "idle"), (120, "idle"), (60, "busy")]), (0.0, 180));
    }

    #[test]
    fn runs_are_listed_with_all_their_gpus_and_shares() {
        let state = |runs: &[&str], rows: &[(u64, &str)]| {
            let mut rows = rows.iter().map(|(start_s, kind)| row(*start_s, kind));
            let holders = runs.iter().map(|run| names(run)).collect();
            let mut state = GpuState::new(holders, rows.next().unwrap());
            rows.for_each(|row| state.add(row));
            state
        };
        let idle = [(0, "idle"), (60, "idle")];
        let gpus = [
            (0, state(&["slurm/1"], &idle)),
            (1, state(&["slurm/1"], &[(0, "idle"), (60, "busy")])),
            (2, state(&["slurm/2", "slurm/3"], &idle)),
            (3, state(&["slurm/4"], &[(0, "unknown"), (60, "unknown")])),
            (4, state(&[], &idle)),
        ];
        let states = GpuStates(HashMap::from([("a".to_owned(), HashMap::from(gpus))]));
        let runs = states.idle_runs(100.0, 120);
        let listed: Vec<_> =
            runs.iter().map(|run| (&*run.run, run.gpus, run.idle_gpus, run.idle_gpu_s)).collect();
        let expected = [("slurm/1", 2, 1, 100.0), ("slurm/2", 1, 1, 50.0), ("slurm/3", 1, 1, 50.0)];
        assert_eq!(listed, expected);
        assert_eq!((runs[0].worked_unix_s, runs[0].account.as_str()), (120, "lab"));
        assert_eq!(states.idle_runs(101.0, 120), []);
        // The rows are too old to tell what the GPUs do now.
        assert_eq!(states.idle_runs(100.0, 421), []);
    }
}
