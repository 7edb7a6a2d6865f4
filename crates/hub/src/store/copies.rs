//! Copies of the store's files in a bucket.
//!
//! Files of hours that are over are copied once they are merged. A file with the same name and the
//! ending `.bucket` says that the bucket has a file, which may then leave the local disk. Queries
//! fetch such files into a folder of limited size.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{
    HOUR_S, HOURS_OF_DAY, PartFile, Partition, StoreFolder, create_folder, mark, names, sync_folder,
};
use crate::bucket::{BucketConfig, StoreBucket};
use crate::columns::{KEPT, RowTable};
use crate::error::Error;

/// Time after the end of an hour before its files are copied, as most late rows have arrived then.
const SETTLED_S: u64 = 3600;
/// Tables of rows that leave the local disk.
const LARGE: [RowTable; 3] = [RowTable::Gpu, RowTable::Host, RowTable::Step];

/// Copies the files that need it, and removes old ones from the local disk. Returns the number of
/// copied files.
///
/// # Errors
/// If a file cannot be copied. The next call goes on with it.
pub fn copy_files(
    folder: &StoreFolder,
    config: &BucketConfig,
    now: SystemTime,
) -> Result<u64, Error> {
    let Some(bucket) = folder.bucket() else { return Ok(0) };
    let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut copied = 0;
    // Sums are copied but stay on the local disk, because they are small.
    let sums = KEPT.map(|table| table.folder);
    for table in RowTable::ALL.map(RowTable::folder).into_iter().chain(sums) {
        let is_large = LARGE.iter().any(|large| large.folder() == table);
        let kept = config.keep_local.filter(|_| is_large);
        for hour in folder.hours(table)? {
            let end_s = (hour + 1) * HOUR_S;
            if end_s + SETTLED_S > now_s {
                continue;
            }
            let list = folder.list(Partition { hour: Some(hour), table })?;
            // Several files are merged first.
            let [part] = &list.parts[..] else { continue };
            if !part.is_copied {
                copy(folder, bucket, part)?;
                copied += 1;
            }
            for path in list.replaced.iter().filter(|path| mark(path).exists()) {
                bucket.delete(&folder.key(path))?;
                fs::remove_file(mark(path)).map_err(Error::io(path, "remove the mark of"))?;
            }
            if kept.is_some_and(|kept| end_s + kept.as_secs() <= now_s) {
                folder.remove_local(&part.path)?;
            }
        }
    }
    Ok(copied)
}

fn copy(folder: &StoreFolder, bucket: &StoreBucket, part: &PartFile) -> Result<(), Error> {
    bucket.put(&folder.key(&part.path), &part.path)?;
    write_mark(&part.path)
}

/// Writes the mark of a file to disk, after which the file itself may be removed.
fn write_mark(path: &Path) -> Result<(), Error> {
    let mark = mark(path);
    let written = File::create(&mark).and_then(|file| file.sync_all());
    written.map_err(Error::io(&mark, "write"))?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Writes the marks of all files of the bucket, after a local disk was lost. Returns their number.
///
/// # Errors
/// If the bucket cannot be listed, or a mark cannot be written.
pub fn restore(folder: &StoreFolder) -> Result<u64, Error> {
    let Some(bucket) = folder.bucket() else { return Ok(0) };
    let mut restored = 0;
    for key in bucket.list()? {
        let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
        if !key.ends_with(".parquet") || !key.split('/').all(is_part) {
            continue;
        }
        let path = folder.root().join(&key);
        if let Some(above) = path.parent() {
            create_folder(above, folder.root())?;
        }
        write_mark(&path)?;
        restored += 1;
    }
    Ok(restored)
}

/// Removes the fetched files that were not used for longest, until the others fit into a size in
/// bytes.
///
/// # Errors
/// If a folder cannot be read.
pub fn limit_cache(folder: &StoreFolder, size_max: u64) -> Result<(), Error> {
    let mut files = Vec::new();
    let mut folders = vec![folder.cache()];
    while let Some(next) = folders.pop() {
        for name in names(&next)? {
            let path = next.join(name);
            // A file may be removed by another program that reads the store.
            let Ok(metadata) = path.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(path);
            } else {
                files.push((metadata.modified().unwrap_or(UNIX_EPOCH), metadata.len(), path));
            }
        }
    }
    files.sort();
    let mut size: u64 = files.iter().map(|(_, size, _)| size).sum();
    for (_, length, path) in files {
        if size <= size_max {
            break;
        }
        let _ = fs::remove_file(path);
        size -= length;
    }
    Ok(())
}

/// Deletes the objects of a day.
///
/// # Errors
/// If the bucket cannot be reached.
pub fn delete_day(folder: &StoreFolder, table: &'static str, day: u64) -> Result<(), Error> {
    let Some(bucket) = folder.bucket() else { return Ok(()) };
    for hour in (0..HOURS_OF_DAY).map(|hour| Some(day * HOURS_OF_DAY + hour)) {
        let list = folder.list(Partition { hour, table })?;
        let parts = list.parts.into_iter().map(|part| part.path);
        for path in parts.chain(list.replaced).filter(|path| mark(path).exists()) {
            bucket.delete(&folder.key(&path))?;
        }
    }
    Ok(())
}

/// The time between two calls of [`copy_files`].
pub fn interval(config: &BucketConfig) -> Duration {
    Duration::from_secs(config.interval_s)
}
