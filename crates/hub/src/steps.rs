//! Reads how many steps per second runs take, from the rows of their processes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use arrow_array::{StringArray, TimestampMillisecondArray, UInt32Array, UInt64Array};

use crate::columns::RowTable;
use crate::error::Error;
use crate::store::{HOUR_S, Partition, RowChoice, StoreFolder, column};

const COLUMNS: [&str; 5] = ["start", "length_s", "scheduler", "job", "steps"];

/// Reads the mean steps per second of a process of each run, in a range of seconds since 1970. Runs
/// without rows of steps are left out.
///
/// # Errors
/// If a file cannot be read.
pub fn read_rates(
    folder: &StoreFolder,
    range: &Range<u64>,
    runs: BTreeSet<String>,
) -> Result<BTreeMap<String, f64>, Error> {
    if runs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let is_chosen = move |texts: &[&str]| runs.contains(&run_name(texts[0], texts[1]));
    let choice = RowChoice::by_texts(&["scheduler", "job"], is_chosen);
    let mut sums = BTreeMap::<String, (u64, u64)>::new();
    let table = RowTable::Step.folder();
    for hour in folder.hours(table)? {
        if (hour + 1) * HOUR_S <= range.start || hour * HOUR_S >= range.end {
            continue;
        }
        folder.read_chosen(
            Partition { hour: Some(hour), table },
            &COLUMNS,
            &choice,
            |batch, path| {
                let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
                let lengths: &UInt32Array = column(batch, "length_s", path)?;
                let steps: &UInt64Array = column(batch, "steps", path)?;
                let texts = |name| column::<StringArray>(batch, name, path);
                let (schedulers, jobs) = (texts("scheduler")?, texts("job")?);
                for row in 0..batch.num_rows() {
                    if !range.contains(&u64::try_from(starts.value(row) / 1000).unwrap_or(0)) {
                        continue;
                    }
                    let run = run_name(schedulers.value(row), jobs.value(row));
                    let (count, seconds) = sums.entry(run).or_default();
                    *count += steps.value(row);
                    *seconds += u64::from(lengths.value(row));
                }
                Ok(())
            },
        )?;
    }
    let rate = |(count, seconds): (u64, u64)| count as f64 / seconds.max(1) as f64;
    Ok(sums.into_iter().map(|(run, sum)| (run, rate(sum))).collect())
}

fn run_name(scheduler: &str, job: &str) -> String {
    format!("{scheduler}/{job}")
}
