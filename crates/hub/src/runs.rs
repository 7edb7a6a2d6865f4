//! What the reports of runs tell: when each run began and ended, whether it failed, and which
//! failed run it repeats.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;

use crate::error::Error;
use crate::run_reports::{self, RunReportRow};
use crate::store::StoreFolder;

/// Seconds before a time from which reports are read, so that the beginnings of its runs and the
/// failures before them are known.
const BEFORE_S: u64 = 7 * 86_400;
/// Longest time in seconds between a failure and the begin of the run that repeats it.
const REPEAT_S: u64 = 86_400;
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
    pub user: String,
    #[serde(skip)]
    pub workflow: String,
    /// Time of the last report.
    #[serde(skip)]
    pub seen_unix_s: u64,
    /// Hosts whose agents reported processes of the run when they last reported it.
    #[serde(skip)]
    pub hosts: BTreeSet<String>,
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
    let seen = range.start.saturating_sub(BEFORE_S)..range.end;
    let reports = run_reports::read_last(folder, &seen)?.into_iter();
    let mut runs: BTreeMap<String, RunState> =
        reports.filter_map(|(run, reports)| Some((run, RunState::merge(reports)?))).collect();
    find_repeats(&mut runs);
    Ok(runs)
}

impl From<RunReportRow> for RunState {
    fn from(report: RunReportRow) -> Self {
        Self {
            // Only schedulers and `ROWMILL_WORKFLOW` name a job.
            workflow: if report.name.is_empty() { report.workflow } else { report.name.clone() },
            name: report.name,
            user: report.user,
            state: report.state,
            started_unix_s: report.started_unix_s,
            ended_unix_s: report.ended_unix_s,
            seen_unix_s: u64::try_from(report.seen_unix_ms / 1000).unwrap_or(0),
            exit_code: report.exit_code,
            exit_signal: report.exit_signal,
            ..Self::default()
        }
    }
}

impl RunState {
    /// Merges the last reports of all hosts about a run. What the scheduler says counts more than
    /// what agents saw. Returns `None` without a report.
    pub fn merge(reports: BTreeMap<String, RunReportRow>) -> Option<Self> {
        let mut merged: Option<Self> = None;
        for (host, report) in reports {
            let has_processes = report.processes > 0;
            let mut other = Self::from(report);
            if has_processes {
                other.hosts.insert(host);
            }
            merged = Some(match merged {
                None => other,
                Some(state) => state.and(other),
            });
        }
        let mut state = merged?;
        state.is_failed = state.has_failed();
        Some(state)
    }

    /// Adds the report of another host.
    fn and(mut self, mut other: Self) -> Self {
        let first = [self.started_unix_s, other.started_unix_s].into_iter().flatten().min();
        let last_seen = self.seen_unix_s.max(other.seen_unix_s);
        let mut hosts = std::mem::take(&mut self.hosts);
        hosts.append(&mut other.hosts);
        if self.state.is_empty() && !other.state.is_empty() {
            self = other;
        } else if self.state.is_empty() {
            // A run lasts as long as it lasts on one host.
            let both = self.ended_unix_s.zip(other.ended_unix_s);
            self.ended_unix_s = both.map(|(one, another)| one.max(another));
            self.exit_code = self.exit_code.max(other.exit_code);
            self.exit_signal = self.exit_signal.max(other.exit_signal);
        }
        (self.started_unix_s, self.seen_unix_s, self.hosts) = (first, last_seen, hosts);
        self
    }

    fn has_failed(&self) -> bool {
        self.ended_unix_s.is_some()
            && Self::is_failure(&self.state, self.exit_code, self.exit_signal)
    }

    /// Whether a run or an attempt that ended like this has failed.
    pub fn is_failure(state: &str, exit_code: Option<i32>, exit_signal: Option<u32>) -> bool {
        let has_error = exit_code.is_some_and(|code| code != 0) || exit_signal.is_some();
        FAILED.contains(&state) || has_error && !NOT_FAILED.contains(&state)
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
