//! Deletes days whose time has ended, by the kind of their files.
//!
//! Rows of GPUs and hosts are deleted only when their sums are on disk. A row that arrives later
//! than its kind is kept is confirmed but not stored, because its day may be gone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{HOURS_OF_DAY, Partition, StoreFolder, copies};
use crate::columns::{FINDINGS, KEPT, RowTable};
use crate::config::{DAY_S, Retention};
use crate::error::Error;

/// Tables whose rows are deleted only when what is kept of them is on disk.
const SOURCES: [RowTable; 2] = [RowTable::Gpu, RowTable::Host];
/// Time after which a day that receives no rows any more is deleted. A commit that began before the
/// end of the day's time is on disk by then.
const MARGIN_S: u64 = 3600;

/// Whether the time for which a day is kept has ended. `day` is a number of days since 1970.
pub fn is_over(day: u64, kept: Duration, now_unix_s: u64) -> bool {
    (day + 1).saturating_mul(DAY_S).saturating_add(kept.as_secs()) <= now_unix_s
}

/// Removes the days of all tables whose time has ended. Returns the number of removed days.
///
/// # Errors
/// If a folder cannot be read or removed.
pub fn remove_old_days(
    folder: &StoreFolder,
    retention: &Retention,
    now: SystemTime,
) -> Result<u64, Error> {
    let now_unix_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut removed = 0;
    // Rows come before their sums, so that no sums are missing while their rows exist.
    let tables = RowTable::ALL.map(RowTable::folder).into_iter().chain([FINDINGS]);
    for table in tables.chain(KEPT.map(|table| table.folder)) {
        let Some(kept) = retention.kept(table) else { continue };
        for day in folder.days(table)? {
            let is_needed = !is_over(day, kept, now_unix_s.saturating_sub(MARGIN_S));
            let is_source = SOURCES.iter().any(|source| source.folder() == table);
            if is_needed || is_source && !has_sums(folder, day)? {
                continue;
            }
            copies::delete_day(folder, table, day)?;
            folder.remove_day(table, day)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Whether the sums of all rows of a day are on disk.
fn has_sums(folder: &StoreFolder, day: u64) -> Result<bool, Error> {
    for hour in (0..HOURS_OF_DAY).map(|hour| Some(day * HOURS_OF_DAY + hour)) {
        let last = |table| folder.last_commit(Partition { hour, table });
        for table in KEPT {
            let kept = last(table.folder)?;
            for source in table.sources {
                if last(source.folder())? > kept {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}
