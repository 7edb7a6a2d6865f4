//! What the reports of runs tell: when each run began and ended, whether it failed, and which
//! failed run it repeats.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow_array::{Array, Int32Array, StringArray, TimestampMillisecondArray, UInt32Array};
use serde::Serialize;

use crate::columns::RowTable;
use crate::error::Error;
use crate::store::{HOUR_S, Partition, StoreFolder, column};

/// Seconds before a time from which reports are read, so that the beginnings of its runs and the
/// failures before them are known.
const BEFORE_S: u64 = 7 * 86_400;
/// Longest time in seconds between a failure and the begin of the run that repeats it.
const REPEAT_S: u64 = 86_400;
const COLUMNS: [&str; 11] = [
    "host",
    "seen",
    "scheduler",
    "job",
    "name",
    "user",
    "state",
    "started",
    "ended",
    "exit_code",
    "exit_signal",
];
/// States by the scheduler of runs that failed, and of runs that ended otherwise.
const FAILED: [&str; 6] =
    ["boot_fail", "deadline", "failed", "node_fail", "out_of_memory", "timeout"];
const NOT_FAILED: [&str; 3] = ["cancelled", "completed", "preempted"];

/// What is known about a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunState {
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    user: String,
    /// State by the scheduler; empty if it is unknown.
    pub state: String,
    pub started_unix_s: Option<u64>,
    /// Absent while the run lasts.
    pub ended_unix_s: Option<u64>,
    pub exit_code: Option<i32>,
    pub exit_signal: Option<u32>,
    pub is_failed: bool,
    /// The failed run that this one repeats: the last one of the same user and name that ended at
    /// most a day before this one began, with no other begin between them.
    pub repeats: Option<String>,
}

/// Reads what is known about runs at the end of a range, by scheduler and job as in `slurm/123`.
///
/// # Errors
/// If a file cannot be read.
pub fn read(folder: &StoreFolder, range: &Range<u64>) -> Result<BTreeMap<String, RunState>, Error> {
    // The last report of each host about each run, with its time.
    let mut reports = BTreeMap::<(String, String), (i64, RunState)>::new();
    let since = range.start.saturating_sub(BEFORE_S);
    let table = RowTable::Run.folder();
    let hours = folder.hours(table)?.into_iter();
    let hours = hours.filter(|hour| (hour + 1) * HOUR_S > since && hour * HOUR_S < range.end);
    for hour in hours {
        folder.read(Partition { hour: Some(hour), table }, &COLUMNS, |batch, path| {
            let texts = |name| column::<StringArray>(batch, name, path);
            let times = |name| column::<TimestampMillisecondArray>(batch, name, path);
            let (hosts, schedulers, jobs) = (texts("host")?, texts("scheduler")?, texts("job")?);
            let (names, users, states) = (texts("name")?, texts("user")?, texts("state")?);
            let (seen, started, ended) = (times("seen")?, times("started")?, times("ended")?);
            let codes: &Int32Array = column(batch, "exit_code", path)?;
            let signals: &UInt32Array = column(batch, "exit_signal", path)?;
            let second = |array: &TimestampMillisecondArray, row| {
                array.is_valid(row).then(|| u64::try_from(array.value(row) / 1000).unwrap_or(0))
            };
            for row in 0..batch.num_rows() {
                if second(seen, row).is_none_or(|seen| seen >= range.end) {
                    continue;
                }
                let run = format!("{}/{}", schedulers.value(row), jobs.value(row));
                let state = RunState {
                    name: names.value(row).to_owned(),
                    user: users.value(row).to_owned(),
                    state: states.value(row).to_owned(),
                    started_unix_s: second(started, row),
                    ended_unix_s: second(ended, row),
                    exit_code: codes.is_valid(row).then(|| codes.value(row)),
                    exit_signal: signals.is_valid(row).then(|| signals.value(row)),
                    ..RunState::default()
                };
                let key = (run, hosts.value(row).to_owned());
                let last = reports.entry(key).or_insert((i64::MIN, RunState::default()));
                if last.0 <= seen.value(row) {
                    *last = (seen.value(row), state);
                }
            }
            Ok(())
        })?;
    }
    let mut runs = BTreeMap::<String, RunState>::new();
    for ((run, _), (_, report)) in reports {
        match runs.get_mut(&run) {
            None => drop(runs.insert(run, report)),
            Some(state) => state.merge(report),
        }
    }
    runs.values_mut().for_each(|run| run.is_failed = run.has_failed());
    find_repeats(&mut runs);
    Ok(runs)
}

impl RunState {
    /// Adds the report of another host. What the scheduler says counts more than what agents saw.
    fn merge(&mut self, other: Self) {
        let first = [self.started_unix_s, other.started_unix_s].into_iter().flatten().min();
        if self.state.is_empty() && !other.state.is_empty() {
            *self = other;
        } else if self.state.is_empty() {
            // A run lasts as long as it lasts on one host.
            let both = self.ended_unix_s.zip(other.ended_unix_s);
            self.ended_unix_s = both.map(|(one, another)| one.max(another));
            self.exit_code = self.exit_code.max(other.exit_code);
            self.exit_signal = self.exit_signal.max(other.exit_signal);
        }
        self.started_unix_s = first;
    }

    fn has_failed(&self) -> bool {
        let state = self.state.as_str();
        let has_error = self.exit_code.is_some_and(|code| code != 0) || self.exit_signal.is_some();
        self.ended_unix_s.is_some()
            && (FAILED.contains(&state) || has_error && !NOT_FAILED.contains(&state))
    }
}

fn find_repeats(runs: &mut BTreeMap<String, RunState>) {
    // The runs of each user and name, in the order of their begins.
    let mut begins = BTreeMap::<(String, String), Vec<(u64, usize, String)>>::new();
    for (run, state) in runs.iter() {
        if let Some(started) = state.started_unix_s {
            let same = begins.entry((state.user.clone(), state.name.clone())).or_default();
            // Numbers of jobs ascend, so shorter ones are older.
            same.push((started, run.len(), run.clone()));
        }
    }
    begins.values_mut().for_each(|same| same.sort_unstable());
    let failed = runs.iter().filter(|(_, state)| state.is_failed);
    let mut repeats: Vec<(u64, String, String)> = Vec::new();
    for (failed, state) in failed {
        let Some(ended) = state.ended_unix_s else { continue };
        let Some(same) = begins.get(&(state.user.clone(), state.name.clone())) else { continue };
        let mut later = same.iter().filter(|(started, ..)| *started >= ended);
        let next = later.find(|(.., run)| run != failed);
        if let Some((_, _, run)) = next.filter(|(started, ..)| *started <= ended + REPEAT_S) {
            repeats.push((ended, run.clone(), failed.clone()));
        }
    }
    repeats.sort_unstable();
    for (_, run, failed) in repeats {
        if let Some(state) = runs.get_mut(&run) {
            state.repeats = Some(failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{RunState, find_repeats};

    #[test]
    fn the_next_run_of_a_user_and_name_repeats_a_failed_one() {
        let run = |name: &str, started, ended: u64, exit_code| {
            let mut run = RunState {
                name: name.to_owned(),
                started_unix_s: Some(started),
                ended_unix_s: Some(ended),
                exit_code: Some(exit_code),
                ..RunState::default()
            };
            run.is_failed = run.has_failed();
            run
        };
        let cancelled = |mut run: RunState| {
            run.state = "cancelled".to_owned();
            run.is_failed = run.has_failed();
            run
        };
        let runs = [
            ("slurm/8", run("a", 0, 100, 1)),
            ("slurm/9", run("b", 110, 200, 1)),
            ("slurm/10", run("a", 110, 150, 1)),
            ("slurm/11", run("a", 150, 300, 0)),
            ("slurm/12", run("a", 160, 300, 0)),
            ("slurm/13", run("b", 200 + 86_401, 90_000, 0)),
            ("slurm/14", cancelled(run("c", 0, 10, 1))),
            ("slurm/15", run("c", 10, 20, 0)),
        ];
        let mut runs: BTreeMap<_, _> = runs.map(|(name, run)| (name.to_owned(), run)).into();
        find_repeats(&mut runs);
        let repeats: Vec<(&str, &str)> = runs
            .iter()
            .filter_map(|(run, state)| Some((run.as_str(), state.repeats.as_deref()?)))
            .collect();
        assert_eq!(repeats, [("slurm/10", "slurm/8"), ("slurm/11", "slurm/10")]);
    }
}
