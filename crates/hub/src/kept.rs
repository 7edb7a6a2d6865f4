//! The files that are kept of each hour beside its rows: their names, whether they are up to date,
//! and how the hours of a query are divided among threads. `rollup` and `faults` know what they
//! hold.
//!
//! A kept file is named like a merged file of rows: by the commits whose rows it holds.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use arrow_array::RecordBatch;

use crate::columns::{KeptTable, RowTable};
use crate::error::Error;
use crate::store::{HOUR_S, Partition, StoreFolder};
use crate::trees::{ResourceTree, TreeDescription};

/// Largest number of threads that read for one query.
const THREADS_MAX: usize = 8;
/// Number of parts into which the hours of a query are divided. It does not depend on the number of
/// threads, so that sums are added in the same order on every machine.
const CHUNKS: usize = 32;

/// Writes what is kept of the rows of an hour, up to the commit `last`, in place of an earlier
/// file.
///
/// # Errors
/// If a file cannot be written.
pub fn write_kept(
    folder: &StoreFolder,
    partition: Partition,
    last: u64,
    batch: &RecordBatch,
) -> Result<(), Error> {
    let path = folder.path(partition);
    folder.write(partition, 0..=last, batch.schema(), |writer| {
        writer.write(batch).map_err(Error::parquet(&path))
    })?;
    for path in folder.list(partition)?.replaced {
        folder.remove_local(&path)?;
    }
    Ok(())
}

/// Whether a kept file of an hour holds all rows of its sources. Rows may be deleted earlier than
/// what is kept of them, and those of one source earlier than those of another.
///
/// # Errors
/// If a folder cannot be read.
pub fn is_current(folder: &StoreFolder, hour: u64, table: KeptTable) -> Result<bool, Error> {
    let kept = folder.last_commit(Partition { hour: Some(hour), table: table.folder })?;
    Ok(kept.is_some() && kept >= last_commit(folder, hour, table.sources)?)
}

/// Returns the number of the last commit that the rows of some tables in an hour hold.
///
/// # Errors
/// If a folder cannot be read.
pub fn last_commit(
    folder: &StoreFolder,
    hour: u64,
    tables: &[RowTable],
) -> Result<Option<u64>, Error> {
    let mut last = None;
    for table in tables {
        let partition = Partition { hour: Some(hour), table: table.folder() };
        last = last.max(folder.last_commit(partition)?);
    }
    Ok(last)
}

/// Returns the hours of a range that have rows or sums of a tree, in ascending order.
///
/// # Errors
/// If a folder cannot be read.
pub fn hours_within(
    folder: &StoreFolder,
    tree: ResourceTree,
    range: &Range<u64>,
) -> Result<Vec<u64>, Error> {
    let TreeDescription { sources, kept, .. } = tree.description();
    let mut hours: BTreeSet<u64> = folder.hours(kept)?.into_iter().collect();
    // Each hour with an interval of the tree has a row of the first table.
    hours.extend(folder.hours(sources[0].folder())?);
    hours.retain(|hour| (hour + 1) * HOUR_S > range.start && hour * HOUR_S < range.end);
    Ok(hours.into_iter().collect())
}

/// Calls `work` for the hours of a range that have rows or sums of a tree, a part of them at a
/// time, on several threads. Returns the results in the order of the hours.
///
/// # Errors
/// If a folder cannot be read or `work` fails.
pub fn over_hours<T: Send>(
    folder: &StoreFolder,
    tree: ResourceTree,
    range: &Range<u64>,
    work: impl Fn(&[u64]) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let hours = hours_within(folder, tree, range)?;
    let chunks: Vec<&[u64]> = hours.chunks(hours.len().div_ceil(CHUNKS).max(1)).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(hours) = chunks.get(at) else { return Ok(results) };
            results.push((at, work(hours)?));
        }
    };
    let results: Result<Vec<_>, Error> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut results: Vec<(usize, T)> = results?.into_iter().flatten().collect();
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}
