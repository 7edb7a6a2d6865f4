//! Finds the runs that last, with the hosts on which their processes are, from the reports of the
//! last two hours. Agents report each run at least once an hour while it lasts.

use std::collections::{BTreeMap, BTreeSet};

use arrow_array::{Array, StringArray, TimestampMillisecondArray, UInt32Array};

use crate::columns::RowTable;
use crate::error::Error;
use crate::store::{HOUR_S, Partition, StoreFolder, column};

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

impl ActiveRun {
    /// Whether a person means this run: by its job, or by its scheduler and job.
    pub fn is_named(&self, name: &str) -> bool {
        self.run == name || self.run.split_once('/').is_some_and(|(_, job)| job == name)
    }
}

/// The last report of a run by one host.
struct LastReport {
    seen: i64,
    is_there: bool,
    workflow: String,
    user: String,
}

/// Lists the runs that last at a time in seconds since 1970.
///
/// # Errors
/// If a file cannot be read.
pub fn active_runs(folder: &StoreFolder, now_unix_s: u64) -> Result<Vec<ActiveRun>, Error> {
    let mut reports: BTreeMap<(String, String), LastReport> = BTreeMap::new();
    let hour = now_unix_s / HOUR_S;
    // A host whose clock is ahead reports in the next hour.
    for hour in hour.saturating_sub(HOURS)..=hour + 1 {
        let partition = Partition { hour: Some(hour), table: RowTable::Run.folder() };
        let columns = ["host", "seen", "scheduler", "job", "name", "user", "ended", "processes"];
        folder.read(partition, &columns, |batch, path| {
            let text = |name| column::<StringArray>(batch, name, path);
            let (hosts, schedulers, jobs) = (text("host")?, text("scheduler")?, text("job")?);
            let (workflows, users) = (text("name")?, text("user")?);
            let seen: &TimestampMillisecondArray = column(batch, "seen", path)?;
            let ended: &TimestampMillisecondArray = column(batch, "ended", path)?;
            let processes: &UInt32Array = column(batch, "processes", path)?;
            for row in 0..batch.num_rows() {
                let run = format!("{}/{}", schedulers.value(row), jobs.value(row));
                let key = (run, hosts.value(row).to_owned());
                if reports.get(&key).is_some_and(|last| last.seen > seen.value(row)) {
                    continue;
                }
                let report = LastReport {
                    seen: seen.value(row),
                    // Slurm reports runs in the place of a host, without processes.
                    is_there: ended.is_null(row) && processes.value(row) > 0,
                    workflow: workflows.value(row).to_owned(),
                    user: users.value(row).to_owned(),
                };
                reports.insert(key, report);
            }
            Ok(())
        })?;
    }
    // A host that names another user for a run must not change whose the run is on other hosts.
    let mut runs: BTreeMap<(String, String), ActiveRun> = BTreeMap::new();
    for ((run, host), report) in reports.into_iter().filter(|(_, report)| report.is_there) {
        let LastReport { workflow, user, .. } = report;
        let active = runs.entry((run.clone(), user.clone())).or_default();
        active.hosts.insert(host);
        (active.run, active.workflow, active.user) = (run, workflow, user);
    }
    Ok(runs.into_values().collect())
}
