//! Reads the events of one kind from the table `event`.

use std::ops::Range;

use arrow_array::{
    Array, BooleanArray, Float64Array, StringArray, TimestampMillisecondArray, UInt32Array,
};

use crate::columns::RowTable;
use crate::error::Error;
use crate::store::{HOUR_S, Partition, StoreFolder, column};

const COLUMNS: [&str; 12] = [
    "host",
    "kind",
    "start",
    "length_s",
    "is_over",
    "scheduler",
    "job",
    "name",
    "user",
    "pid",
    "rank",
    "details",
];

/// An event of a host.
#[derive(Clone, Debug)]
pub struct EventRow<'a> {
    pub host: &'a str,
    pub start_unix_s: u64,
    pub length_s: f64,
    pub is_over: bool,
    /// Scheduler and job, as in `slurm/7`; `/` if the event concerns no run.
    pub run: String,
    /// Name of the job; empty if it is unknown.
    pub name: &'a str,
    pub user: &'a str,
    pub pid: Option<u32>,
    pub rank: Option<u32>,
    /// A JSON object whose keys depend on the kind.
    pub details: &'a str,
}

/// Calls a function for each event of a kind that starts within the hours of a range of seconds.
///
/// # Errors
/// If a file cannot be read.
pub fn read_events(
    folder: &StoreFolder,
    kind: &str,
    starts: &Range<u64>,
    mut each: impl FnMut(EventRow<'_>),
) -> Result<(), Error> {
    let table = RowTable::Event.folder();
    let hours = starts.start / HOUR_S..starts.end.div_ceil(HOUR_S);
    for hour in folder.hours(table)?.into_iter().filter(|hour| hours.contains(hour)) {
        folder.read(Partition { hour: Some(hour), table }, &COLUMNS, |batch, path| {
            let text = |name| column::<StringArray>(batch, name, path);
            let [hosts, kinds, schedulers] = [text("host")?, text("kind")?, text("scheduler")?];
            let [jobs, names, users] = [text("job")?, text("name")?, text("user")?];
            let details = text("details")?;
            let times: &TimestampMillisecondArray = column(batch, "start", path)?;
            let lengths: &Float64Array = column(batch, "length_s", path)?;
            let ends: &BooleanArray = column(batch, "is_over", path)?;
            let pids: &UInt32Array = column(batch, "pid", path)?;
            let ranks: &UInt32Array = column(batch, "rank", path)?;
            let number = |array: &UInt32Array, row| array.is_valid(row).then(|| array.value(row));
            for row in (0..batch.num_rows()).filter(|row| kinds.value(*row) == kind) {
                each(EventRow {
                    host: hosts.value(row),
                    start_unix_s: u64::try_from(times.value(row) / 1000).unwrap_or(0),
                    length_s: lengths.value(row),
                    is_over: ends.value(row),
                    run: format!("{}/{}", schedulers.value(row), jobs.value(row)),
                    name: names.value(row),
                    user: users.value(row),
                    pid: number(pids, row),
                    rank: number(ranks, row),
                    details: details.value(row),
                });
            }
            Ok(())
        })?;
    }
    Ok(())
}
