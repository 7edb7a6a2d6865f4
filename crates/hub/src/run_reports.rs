//! Reads the reports of runs: the last one of each host about each run. `runs` tells how runs
//! ended, and `active_runs` which of them last.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use arrow_array::{Array, Int32Array, StringArray, TimestampMillisecondArray, UInt32Array};

use crate::columns::RowTable;
use crate::error::Error;
use crate::store::{HOUR_S, Partition, StoreFolder, column};

const COLUMNS: [&str; 13] = [
    "host",
    "seen",
    "scheduler",
    "job",
    "name",
    "workflow",
    "user",
    "state",
    "started",
    "ended",
    "exit_code",
    "exit_signal",
    "processes",
];

/// What one host, or the scheduler in the place of a host, reports about a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunReportRow {
    pub seen_unix_ms: i64,
    /// Name of the job.
    pub name: String,
    pub workflow: String,
    pub user: String,
    /// State by the scheduler; empty if it is unknown.
    pub state: String,
    pub started_unix_s: Option<u64>,
    pub ended_unix_s: Option<u64>,
    pub exit_code: Option<i32>,
    pub exit_signal: Option<u32>,
    /// Processes on this host. The scheduler reports none.
    pub processes: u32,
}

/// The last reports by run, as in `slurm/7`, and by host.
pub type LastReports = BTreeMap<String, BTreeMap<String, RunReportRow>>;

/// Reads the last reports that lie within a range of seconds since 1970.
///
/// # Errors
/// If a file cannot be read.
pub fn read_last(folder: &StoreFolder, seen: &Range<u64>) -> Result<LastReports, Error> {
    let mut reports = LastReports::new();
    let hours = folder.hours(RowTable::Run.folder())?.into_iter();
    for hour in hours.filter(|hour| (hour + 1) * HOUR_S > seen.start && hour * HOUR_S < seen.end) {
        read_hour(folder, hour, seen, &mut reports)?;
    }
    Ok(reports)
}

/// Finds the last report of each host about a run, of whatever age. Also returns the names of all
/// runs in the files that were read, which are all files if the run has no report.
///
/// # Errors
/// If a file cannot be read.
pub fn find_last(
    folder: &StoreFolder,
    run: &str,
) -> Result<(BTreeMap<String, RunReportRow>, BTreeSet<String>), Error> {
    let (mut last, mut names) = (BTreeMap::<String, RunReportRow>::new(), BTreeSet::new());
    // A run is reported once an hour while it lasts, so the newest report is found first, and then
    // only the hours since the begin that it names are read.
    for hour in folder.hours(RowTable::Run.folder())?.into_iter().rev() {
        let begin_s = last.values().filter_map(|report| report.started_unix_s).min();
        if begin_s.is_some_and(|begin_s| (hour + 1) * HOUR_S <= begin_s) {
            break;
        }
        let mut reports = LastReports::new();
        read_hour(folder, hour, &(0..u64::MAX), &mut reports)?;
        // Later hours come first, so what is known already is newer.
        for (host, report) in reports.remove(run).unwrap_or_default() {
            last.entry(host).or_insert(report);
        }
        names.extend(reports.into_keys());
    }
    Ok((last, names))
}

fn read_hour(
    folder: &StoreFolder,
    hour: u64,
    seen: &Range<u64>,
    reports: &mut LastReports,
) -> Result<(), Error> {
    let partition = Partition { hour: Some(hour), table: RowTable::Run.folder() };
    folder.read(partition, &COLUMNS, |batch, path| {
        let texts = |name| column::<StringArray>(batch, name, path);
        let (hosts, schedulers, jobs) = (texts("host")?, texts("scheduler")?, texts("job")?);
        let (names, workflows) = (texts("name")?, texts("workflow")?);
        let (users, states) = (texts("user")?, texts("state")?);
        let times = |name| column::<TimestampMillisecondArray>(batch, name, path);
        let (seen_at, started, ended) = (times("seen")?, times("started")?, times("ended")?);
        let codes: &Int32Array = column(batch, "exit_code", path)?;
        let signals: &UInt32Array = column(batch, "exit_signal", path)?;
        let processes: &UInt32Array = column(batch, "processes", path)?;
        for row in 0..batch.num_rows() {
            let seen_unix_ms = seen_at.value(row);
            if !seen.contains(&u64::try_from(seen_unix_ms / 1000).unwrap_or(0)) {
                continue;
            }
            let run = format!("{}/{}", schedulers.value(row), jobs.value(row));
            let of_run = reports.entry(run).or_default();
            let last = of_run.entry(hosts.value(row).to_owned()).or_default();
            if last.seen_unix_ms > seen_unix_ms {
                continue;
            }
            *last = RunReportRow {
                seen_unix_ms,
                name: names.value(row).to_owned(),
                workflow: workflows.value(row).to_owned(),
                user: users.value(row).to_owned(),
                state: states.value(row).to_owned(),
                started_unix_s: second(started, row),
                ended_unix_s: second(ended, row),
                exit_code: codes.is_valid(row).then(|| codes.value(row)),
                exit_signal: signals.is_valid(row).then(|| signals.value(row)),
                processes: processes.value(row),
            };
        }
        Ok(())
    })
}

fn second(times: &TimestampMillisecondArray, row: usize) -> Option<u64> {
    times.is_valid(row).then(|| u64::try_from(times.value(row) / 1000).unwrap_or(0))
}
