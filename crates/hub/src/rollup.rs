//! Keeps the sums of each minute and of each hour in files, and answers queries from them.
//!
//! A file of sums is named like a merged file of rows: by the commits whose rows it holds. It
//! counts only while these are all rows of its hour; otherwise the rows themselves are read.
//! Queries are therefore exact at any moment, whether or not sums have been computed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::SystemTime;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, TimestampMillisecondArray};

use crate::aggregate::{Aggregation, BucketSums, COLUMNS, MINUTE_S, merge_buckets};
use crate::columns::{RowTable, text, timestamps};
use crate::config::Pools;
use crate::error::Error;
use crate::store::compaction::{MergeScope, merge};
use crate::store::{HOUR_S, Partition, StoreFolder, column};
use crate::sums::{Dimension, FleetSums, SumKey};

/// Folder of the sums of each minute.
const BY_MINUTE: &str = "by_minute";
/// Folder of the sums of each hour.
const BY_HOUR: &str = "by_hour";
/// Names of the columns that tell the part of the fleet.
const KEYS: [&str; 5] = ["pool", "model", "workflow", "user", "run"];

/// Largest number of hours that a query reads at the same time.
const THREADS_MAX: usize = 8;

/// Sums by the member of a dimension, such as the name of a user.
pub type GroupSums = BTreeMap<String, FleetSums>;

/// Merges the files of all hours that need it, and computes the sums of hours that are over.
/// Returns the number of merged partitions.
///
/// # Errors
/// If a file cannot be read or written.
pub fn maintain(folder: &StoreFolder, pools: &Pools, now: SystemTime) -> Result<u64, Error> {
    let mut merged = 0;
    for table in RowTable::ALL {
        let hours: Vec<Option<u64>> = match table {
            RowTable::Order => vec![None],
            _ => folder.hours(table.folder())?.into_iter().map(Some).collect(),
        };
        for hour in hours {
            let partition = Partition { hour, table: table.folder() };
            let scope = MergeScope::choose(folder, partition, now)?;
            merged += u64::from(merge(folder, partition, scope)?);
            if let (RowTable::Gpu, Some(hour), MergeScope::All) = (table, hour, scope) {
                write_sums(folder, pools, hour)?;
            }
        }
    }
    Ok(merged)
}

/// Computes the sums of an hour from its rows and writes them, unless they are up to date.
fn write_sums(folder: &StoreFolder, pools: &Pools, hour: u64) -> Result<(), Error> {
    let Some(last) = last_commit(folder, hour, RowTable::Gpu.folder())? else { return Ok(()) };
    let is_current = |table| last_commit(folder, hour, table).map(|sums| sums == Some(last));
    if is_current(BY_MINUTE)? && is_current(BY_HOUR)? {
        return Ok(());
    }
    let minutes = sum_rows(folder, pools, hour)?;
    for (table, sums) in [(BY_MINUTE, &minutes), (BY_HOUR, &merge_buckets(&minutes, HOUR_S))] {
        let partition = Partition { hour: Some(hour), table };
        let batch = encode(sums)?;
        let path = folder.path(partition);
        folder.write(partition, 0..=last, batch.schema(), |writer| {
            writer.write(&batch).map_err(Error::parquet(&path))
        })?;
        for path in folder.list(partition)?.replaced {
            fs::remove_file(&path).map_err(Error::io(&path, "remove"))?;
        }
    }
    Ok(())
}

/// Returns the number of the last commit that the files of an hour hold.
fn last_commit(folder: &StoreFolder, hour: u64, table: &'static str) -> Result<Option<u64>, Error> {
    let list = folder.list(Partition { hour: Some(hour), table })?;
    Ok(list.parts.last().map(|part| part.last))
}

/// Computes the sums of each minute of an hour from its rows.
///
/// # Errors
/// If a file cannot be read.
pub fn sum_rows(folder: &StoreFolder, pools: &Pools, hour: u64) -> Result<BucketSums, Error> {
    let partition = Partition { hour: Some(hour), table: RowTable::Gpu.folder() };
    let mut aggregation = Aggregation::new(pools);
    folder.read(partition, &COLUMNS, |batch, path| aggregation.add(batch, path))?;
    Ok(aggregation.finish())
}

/// Computes the sums of a range of time in seconds since 1970, grouped by a dimension. The range is
/// extended to whole minutes.
///
/// # Errors
/// If a file cannot be read.
pub fn query(
    folder: &StoreFolder,
    pools: &Pools,
    range: Range<u64>,
    by: Dimension,
) -> Result<GroupSums, Error> {
    let range = range.start / MINUTE_S * MINUTE_S..range.end.div_ceil(MINUTE_S) * MINUTE_S;
    let mut hours: BTreeSet<u64> = folder.hours(RowTable::Gpu.folder())?.into_iter().collect();
    hours.extend(folder.hours(BY_HOUR)?);
    hours.retain(|hour| (hour + 1) * HOUR_S > range.start && hour * HOUR_S < range.end);
    let hours: Vec<u64> = hours.into_iter().collect();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        while let Some(&hour) = hours.get(next.fetch_add(1, Ordering::Relaxed)) {
            results.push((hour, query_hour(folder, pools, hour, &range, by)?));
        }
        Ok(results)
    };
    let results: Result<Vec<_>, Error> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    // Sums are added in the order of hours, so that any number of threads gives equal results.
    let by_hour: BTreeMap<u64, GroupSums> = results?.into_iter().flatten().collect();
    let mut groups = GroupSums::new();
    for (name, sums) in by_hour.into_values().flatten() {
        groups.entry(name).or_default().merge(&sums);
    }
    Ok(groups)
}

/// Computes the groups of one hour, from its sums if they are up to date.
fn query_hour(
    folder: &StoreFolder,
    pools: &Pools,
    hour: u64,
    range: &Range<u64>,
    by: Dimension,
) -> Result<GroupSums, Error> {
    let is_whole = range.start <= hour * HOUR_S && (hour + 1) * HOUR_S <= range.end;
    let table = if is_whole { BY_HOUR } else { BY_MINUTE };
    let rows = last_commit(folder, hour, RowTable::Gpu.folder())?;
    let sums = last_commit(folder, hour, table)?;
    // Rows may be deleted earlier than their sums.
    let is_current = sums.is_some() && (rows.is_none() || rows == sums);
    let buckets = if is_current {
        read_sums(folder, Partition { hour: Some(hour), table })?
    } else {
        sum_rows(folder, pools, hour)?
    };
    let mut groups = GroupSums::new();
    for ((bucket, key), value) in &buckets {
        if is_whole || range.contains(bucket) {
            groups.entry(key.member(by).to_owned()).or_default().merge(value);
        }
    }
    Ok(groups)
}

fn encode(sums: &BucketSums) -> Result<RecordBatch, Error> {
    let members: [fn(&SumKey) -> &str; 5] =
        [|key| &key.pool, |key| &key.model, |key| &key.workflow, |key| &key.user, |key| &key.run];
    let mut columns = vec![("start", timestamps(sums.keys().map(|(start, _)| *start)))];
    for (name, member) in KEYS.into_iter().zip(members) {
        columns.push((name, text(sums.keys().map(|(_, key)| member(key)))));
    }
    for (at, name) in FleetSums::NAMES.into_iter().enumerate() {
        let values = Float64Array::from_iter_values(sums.values().map(|sums| sums.values()[at]));
        columns.push((name, Arc::new(values) as ArrayRef));
    }
    let columns = columns.into_iter().map(|(name, array)| (name, array, false));
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

fn read_sums(folder: &StoreFolder, partition: Partition) -> Result<BucketSums, Error> {
    let mut sums = BucketSums::new();
    folder.read(partition, &[], |batch, path| {
        let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
        let mut texts: Vec<&StringArray> = Vec::new();
        for name in KEYS {
            texts.push(column(batch, name, path)?);
        }
        let mut values: Vec<&Float64Array> = Vec::new();
        for name in FleetSums::NAMES {
            values.push(column(batch, name, path)?);
        }
        for row in 0..batch.num_rows() {
            let text = |at: usize| texts[at].value(row).to_owned();
            let key = SumKey {
                pool: text(0),
                model: text(1),
                workflow: text(2),
                user: text(3),
                run: text(4),
            };
            let start = u64::try_from(starts.value(row) / 1000).unwrap_or(0);
            let value = FleetSums::from_values(std::array::from_fn(|at| values[at].value(row)));
            sums.entry((start, key)).or_default().merge(&value);
        }
        Ok(())
    })?;
    Ok(sums)
}

#[cfg(test)]
mod tests;
