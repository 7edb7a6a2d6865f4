//! Finds the runs that last, with the hosts on which their processes are, from the reports of the
//! last two hours. Agents report each run at least once an hour while it lasts.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Error;
use crate::run_reports;
use crate::store::{HOUR_S, StoreFolder};

/// Number of hours whose reports are read, beside the current one.
const HOURS: u64 = 2;

/// A run that lasts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActiveRun {
    /// Scheduler and job, as in `slurm/7`.
    pub run: String,
    pub workflow: String,
    pub user: String,
    /// Hosts on which the run has processes.
    pub hosts: BTreeSet<String>,
}

/// Whether a person means a run such as `slurm/7`: by its job, or by its scheduler and job.
pub fn is_named(run: &str, name: &str) -> bool {
    run == name || run.split_once('/').is_some_and(|(_, job)| job == name)
}

/// Lists the runs that last at a time in seconds since 1970.
///
/// # Errors
/// If a file cannot be read.
pub fn active_runs(folder: &StoreFolder, now_unix_s: u64) -> Result<Vec<ActiveRun>, Error> {
    let hour = now_unix_s / HOUR_S;
    // A host whose clock is ahead reports in the next hour.
    let seen = hour.saturating_sub(HOURS) * HOUR_S..(hour + 2) * HOUR_S;
    // A host that names another user for a run must not change whose the run is on other hosts.
    let mut runs: BTreeMap<(String, String), ActiveRun> = BTreeMap::new();
    for (run, reports) in run_reports::read_last(folder, &seen)? {
        // Slurm reports runs in the place of a host, without processes.
        let lasting = reports
            .into_iter()
            .filter(|(_, report)| report.ended_unix_s.is_none() && report.processes > 0);
        for (host, report) in lasting {
            let active = runs.entry((run.clone(), report.user.clone())).or_default();
            active.hosts.insert(host);
            active.run.clone_from(&run);
            (active.workflow, active.user) = (report.name, report.user);
        }
    }
    Ok(runs.into_values().collect())
}
