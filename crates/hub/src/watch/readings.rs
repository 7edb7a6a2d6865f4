//! Reads from the store what runs did in intervals of equal length.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow_array::{
    Array, Float64Array, RecordBatch, StringArray, TimestampMillisecondArray, UInt64Array,
};

use crate::columns::RowTable;
use crate::error::Error;
use crate::store::{HOUR_S, Partition, StoreFolder, column};

/// What a run did in one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunInterval {
    pub start_s: u64,
    /// Scheduler and job of the run.
    pub run: String,
    pub workflow: String,
    pub user: String,
    /// Steps whose time is known, and their time, by host.
    pub steps: BTreeMap<String, StepSum>,
    /// Seconds in which GPUs of the run were busy, and were observed.
    pub busy_s: f64,
    pub observed_s: f64,
}

/// Steps and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepSum {
    pub steps: u64,
    pub time_s: f64,
}

impl RunInterval {
    /// Returns the mean step time in seconds, or `None` if it is unknown.
    pub fn step_time_s(&self) -> Option<f64> {
        let steps: u64 = self.steps.values().map(|sum| sum.steps).sum();
        let time_s: f64 = self.steps.values().map(|sum| sum.time_s).sum();
        (steps > 0).then(|| time_s / steps as f64)
    }

    /// Returns the share of the observed time in which GPUs were busy, or `None` if it is unknown.
    pub fn busy_share(&self) -> Option<f64> {
        (self.observed_s > 0.0).then(|| self.busy_s / self.observed_s)
    }

    /// Returns the host with the slowest steps.
    pub fn host(&self) -> Option<&str> {
        let mean = |sum: &StepSum| sum.time_s / sum.steps.max(1) as f64;
        let slowest = self.steps.iter().max_by(|(_, a), (_, b)| mean(a).total_cmp(&mean(b)));
        slowest.map(|(host, _)| host.as_str())
    }
}

/// Reads the intervals of all runs that start in a range of seconds since 1970, in the order of
/// time. Rows without a run are left out, and so are runs without steps, of which no trace could be
/// ordered.
///
/// # Errors
/// If a file cannot be read.
pub fn read_intervals(
    folder: &StoreFolder,
    range: Range<u64>,
    interval_s: u64,
) -> Result<Vec<RunInterval>, Error> {
    let mut intervals: BTreeMap<(u64, String), RunInterval> = BTreeMap::new();
    for hour in range.start / HOUR_S..=range.end / HOUR_S {
        let partition = |table: RowTable| Partition { hour: Some(hour), table: table.folder() };
        let columns =
            ["host", "start", "scheduler", "job", "name", "user", "timed_steps", "timed_s"];
        folder.read(partition(RowTable::Step), &columns, |batch, path| {
            let texts = |name| column::<StringArray>(batch, name, path);
            let (hosts, schedulers, jobs) = (texts("host")?, texts("scheduler")?, texts("job")?);
            let (workflows, users) = (texts("name")?, texts("user")?);
            let steps: &UInt64Array = column(batch, "timed_steps", path)?;
            let times: &Float64Array = column(batch, "timed_s", path)?;
            for (row, start_s) in rows_within(batch, path, &range)? {
                if jobs.value(row).is_empty() {
                    continue;
                }
                let start_s = start_s / interval_s * interval_s;
                let run = format!("{}/{}", schedulers.value(row), jobs.value(row));
                let interval = intervals.entry((start_s, run)).or_default();
                if interval.run.is_empty() {
                    interval.start_s = start_s;
                    interval.run = format!("{}/{}", schedulers.value(row), jobs.value(row));
                    interval.workflow = workflows.value(row).to_owned();
                    interval.user = users.value(row).to_owned();
                }
                let sum = interval.steps.entry(hosts.value(row).to_owned()).or_default();
                sum.steps += steps.value(row);
                sum.time_s += times.value(row);
            }
            Ok(())
        })?;
        let columns = ["start", "run", "observed_s", "busy_s"];
        folder.read(partition(RowTable::Gpu), &columns, |batch, path| {
            let runs: &StringArray = column(batch, "run", path)?;
            let observed: &Float64Array = column(batch, "observed_s", path)?;
            let busy: &Float64Array = column(batch, "busy_s", path)?;
            for (row, start_s) in rows_within(batch, path, &range)? {
                if runs.is_null(row) || busy.is_null(row) {
                    continue;
                }
                let key = (start_s / interval_s * interval_s, runs.value(row).to_owned());
                if let Some(interval) = intervals.get_mut(&key) {
                    interval.busy_s += busy.value(row);
                    interval.observed_s += observed.value(row);
                }
            }
            Ok(())
        })?;
    }
    Ok(intervals.into_values().collect())
}

/// Lists the rows of a batch that start in a range, with their start in seconds since 1970.
fn rows_within(
    batch: &RecordBatch,
    path: &std::path::Path,
    range: &Range<u64>,
) -> Result<Vec<(usize, u64)>, Error> {
    let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
    let starts = (0..batch.num_rows())
        .map(|row| (row, u64::try_from(starts.value(row) / 1000).unwrap_or(0)));
    Ok(starts.filter(|(_, start_s)| range.contains(start_s)).collect())
}
