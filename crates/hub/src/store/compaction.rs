//! Merges the small files of an hour. A merged file appears whole before the files that it replaces
//! are removed, so a kill at any moment leaves a readable store.

use std::time::{Duration, SystemTime};

use super::{HOUR_S, PartFile, Partition, StoreFolder, read_file, read_schema};
use crate::error::Error;

/// Number of files of one commit each that are merged while their hour is not over.
pub const SINGLES_MAX: usize = 64;
/// Time after the end of an hour, and after its newest file, before all its files are merged.
pub const SETTLE: Duration = Duration::from_secs(120);

/// Which files of a partition to merge now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeScope {
    /// All files, because the hour is over and no row arrived lately.
    All,
    /// Files of one commit, if there are many.
    Singles,
}

impl MergeScope {
    /// Decides by the time and the age of the newest file.
    ///
    /// # Errors
    /// If the files cannot be listed.
    pub fn choose(
        folder: &StoreFolder,
        partition: Partition,
        now: SystemTime,
    ) -> Result<Self, Error> {
        let newest = folder.list(partition)?.parts.last().map(PartFile::modified);
        let end_s = partition.hour.map(|hour| (hour + 1) * HOUR_S);
        let end = end_s.map(|end_s| SystemTime::UNIX_EPOCH + Duration::from_secs(end_s));
        let settled = newest.max(end).is_none_or(|last| last + SETTLE <= now);
        Ok(if settled { Self::All } else { Self::Singles })
    }
}

/// Merges files of a partition, and removes files that an earlier merge replaced. Returns whether
/// files were merged.
///
/// # Errors
/// If a file cannot be read or written. The store stays readable.
pub fn merge(folder: &StoreFolder, partition: Partition, scope: MergeScope) -> Result<bool, Error> {
    let list = folder.list(partition)?;
    for path in &list.replaced {
        folder.remove_local(path)?;
    }
    let mut parts = list.parts;
    if scope == MergeScope::Singles {
        let singles = parts.iter().rev().take_while(|part| part.first == part.last).count();
        parts.drain(..parts.len() - singles);
        if parts.len() < SINGLES_MAX {
            return Ok(false);
        }
    }
    let [first, .., last] = &parts[..] else { return Ok(false) };
    let schema = read_schema(folder.open_part(first)?, &first.path)?;
    folder.write(partition, first.first..=last.last, schema, |writer| {
        for part in &parts {
            read_file(folder.open_part(part)?, &part.path, &[], None, |batch| {
                writer.write(batch).map_err(Error::parquet(&part.path))
            })?;
        }
        Ok(())
    })?;
    for part in &parts {
        folder.remove_local(&part.path)?;
    }
    Ok(true)
}
