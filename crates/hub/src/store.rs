//! The files of the store: their names, how one is written whole, and how the files of an hour are
//! read. Which rows are new is decided by [`ingest`], and [`compaction`] merges small files.
//!
//! A file is named by the numbers of the commits that it holds, such as `0000000003-0000000007`. A
//! merged file holds a range of commits and replaces the files within that range. A reader ignores
//! replaced files, so a merge that is killed before it removed them duplicates nothing.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use arrow_array::cast::AsArray;
use arrow_array::{Array, BooleanArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use chrono::{DateTime, NaiveDate, Timelike, Utc};
use parquet::arrow::arrow_reader::{
    ArrowPredicateFn, ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
    RowFilter,
};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::{KeyValue, ParquetMetaData, RowGroupMetaData};
use parquet::file::properties::WriterProperties;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnPath;

use crate::bucket::{BucketConfig, StoreBucket};
use crate::columns::RowTable;
use crate::error::Error;

pub mod compaction;
pub mod copies;
pub mod ingest;
pub mod retention;
#[cfg(test)]
mod tests;

/// Seconds of an hour, the time that one partition covers.
pub const HOUR_S: u64 = 3600;
const HOURS_OF_DAY: u64 = 24;
/// Key of a file's metadata that has the version of the columns.
const VERSION_KEY: &str = "rowmill-hub";
const VERSION: &str = "2";
/// Largest number of rows of a row group, which is kept in memory while it is written.
const GROUP_ROWS: usize = 1 << 17;
/// Number of rows that are read at a time.
const BATCH_ROWS: usize = 8192;
/// Number of rows with coded texts that are read at a time. They are small, and their different
/// texts are looked up once for all of them.
const CODED_BATCH_ROWS: usize = 1 << 15;
/// Ending of the mark of a file that the bucket has.
const MARK: &str = ".bucket";
/// Folder of the orders, with one folder for each order and its traces.
const ORDERS: &str = "trace";
/// Number of attempts to open the files of a partition while a compaction replaces them.
const ATTEMPTS: usize = 10;

/// The folder of a store. Only one process may write to it.
#[derive(Debug)]
pub struct StoreFolder {
    root: PathBuf,
    /// The lock is released when the file is closed, even by a kill. Readers hold no lock.
    _lock: Option<File>,
    temporary: AtomicU64,
    /// Where files that are not on the local disk lie.
    bucket: Option<StoreBucket>,
}

/// The rows of one table in one hour, or all rows of a table without times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition {
    /// Number of hours since 1970.
    pub hour: Option<u64>,
    pub table: &'static str,
}

/// Decides from some columns which rows are read, before the other columns are decoded.
#[derive(Clone)]
pub struct RowChoice {
    pub columns: &'static [&'static str],
    pub is_chosen: Arc<dyn Fn(&RecordBatch) -> BooleanArray + Send + Sync>,
}

impl RowChoice {
    /// Chooses rows by the texts of some columns.
    pub fn by_texts(
        columns: &'static [&'static str],
        is_chosen: impl Fn(&[&str]) -> bool + Send + Sync + 'static,
    ) -> Self {
        let choose = move |batch: &RecordBatch| -> BooleanArray {
            let named = |name: &&str| batch.column_by_name(name)?.as_string_opt::<i32>();
            let arrays: Option<Vec<&StringArray>> = columns.iter().map(named).collect();
            let arrays = arrays.unwrap_or_default();
            let mut texts: Vec<&str> = Vec::new();
            let row = |row| {
                texts.clear();
                // A missing value has an empty text.
                texts.extend(arrays.iter().map(|array| array.value(row)));
                Some(texts.len() == columns.len() && is_chosen(&texts))
            };
            (0..batch.num_rows()).map(row).collect()
        };
        Self { columns, is_chosen: Arc::new(choose) }
    }
}

/// A file of a partition, with the numbers of the first and the last commit that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartFile {
    pub first: u64,
    pub last: u64,
    /// Path on the local disk, where a copied file may be missing.
    pub path: PathBuf,
    /// Whether the bucket has the file.
    pub is_copied: bool,
}

/// The files of a partition, in the order of their commits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartList {
    pub parts: Vec<PartFile>,
    /// Files that a merged file replaces.
    pub replaced: Vec<PathBuf>,
}

impl StoreFolder {
    /// Opens a store for writing. Creates its folder, and removes files that a killed hub left
    /// unfinished.
    ///
    /// # Errors
    /// If another hub uses the store, or the operating system refuses.
    pub fn open(root: &Path) -> Result<Self, Error> {
        fs::create_dir_all(root).map_err(Error::io(root, "create the folder"))?;
        let path = root.join("lock");
        let lock = File::create(&path).map_err(Error::io(&path, "create"))?;
        lock.try_lock().map_err(|_| Error::Locked { path: root.to_owned() })?;
        let temporary = root.join("tmp");
        match fs::remove_dir_all(&temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io(&temporary, "remove")(error));
            }
            _ => fs::create_dir(&temporary).map_err(Error::io(&temporary, "create"))?,
        }
        Ok(Self { _lock: Some(lock), ..Self::new(root) })
    }

    /// Opens a store for reading, while a hub may write to it.
    ///
    /// # Errors
    /// If the folder does not exist.
    pub fn open_for_reading(root: &Path) -> Result<Self, Error> {
        fs::read_dir(root).map_err(Error::io(root, "read the store"))?;
        Ok(Self::new(root))
    }

    fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), _lock: None, temporary: AtomicU64::new(0), bucket: None }
    }

    /// Uses the bucket of a configuration, if there is one.
    ///
    /// # Errors
    /// If the configuration of the bucket is wrong.
    pub fn with_bucket(self, config: Option<&BucketConfig>) -> Result<Self, Error> {
        let bucket = config.map(StoreBucket::open).transpose()?;
        Ok(Self { bucket, ..self })
    }

    /// Returns the bucket that has copies of the files, if there is one.
    pub fn bucket(&self) -> Option<&StoreBucket> {
        self.bucket.as_ref()
    }

    /// Returns the folder of the whole store.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the key of a file in the bucket.
    fn key(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy().into_owned()
    }

    /// Returns the folder of the files that were fetched from the bucket.
    fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// Returns a new path for an unfinished file.
    fn temporary(&self, ending: &str) -> PathBuf {
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        // Other programs that read the store fetch files too.
        let process = std::process::id();
        self.root.join("tmp").join(format!("{process}-{number}.{ending}"))
    }

    /// Removes a file from the local disk, where a copied file may be missing.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn remove_local(&self, path: &Path) -> Result<(), Error> {
        match fs::remove_file(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result.map_err(Error::io(path, "remove")),
        }
    }

    /// Returns the folder of a partition, which may not exist.
    pub fn path(&self, partition: Partition) -> PathBuf {
        let Some(hour) = partition.hour else { return self.root.join(partition.table) };
        let day = self.day_path(partition.table, hour / HOURS_OF_DAY);
        day.join(format!("hour={:02}", time_of(hour).hour()))
    }

    /// Returns the hours of a table that have a folder, in ascending order.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn hours(&self, table: &str) -> Result<Vec<u64>, Error> {
        let mut hours = Vec::new();
        for day in self.days(table)? {
            for hour in names(&self.day_path(table, day))? {
                let number = hour.strip_prefix("hour=").and_then(|text| text.parse::<u64>().ok());
                hours.extend(number.map(|number| day * HOURS_OF_DAY + number));
            }
        }
        hours.sort_unstable();
        Ok(hours)
    }

    /// Returns the days of a table that have a folder, in ascending order, as numbers of days since
    /// 1970.
    fn days(&self, table: &str) -> Result<Vec<u64>, Error> {
        let day = |name: String| {
            let date: NaiveDate = name.strip_prefix("day=")?.parse().ok()?;
            let midnight = date.and_hms_opt(0, 0, 0)?.and_utc().timestamp();
            Some(u64::try_from(midnight).ok()? / (HOUR_S * HOURS_OF_DAY))
        };
        let mut days: Vec<u64> =
            names(&self.root.join(table))?.into_iter().filter_map(day).collect();
        days.sort_unstable();
        Ok(days)
    }

    fn day_path(&self, table: &str, day: u64) -> PathBuf {
        self.root.join(table).join(format!("day={}", time_of(day * HOURS_OF_DAY).date_naive()))
    }

    /// Removes all rows of a day from a table. A kill at any moment leaves all of them or none.
    fn remove_day(&self, table: &str, day: u64) -> Result<(), Error> {
        self.remove_whole(&self.day_path(table, day))
    }

    /// Removes a folder. A kill at any moment leaves all of it or nothing.
    fn remove_whole(&self, path: &Path) -> Result<(), Error> {
        // What a kill leaves in the folder of unfinished files is removed by the next hub.
        let removed = self.temporary("removed");
        fs::rename(path, &removed).map_err(Error::io(path, "remove"))?;
        sync_folder(path.parent().unwrap_or(&self.root))?;
        fs::remove_dir_all(&removed).map_err(Error::io(&removed, "remove"))
    }

    /// Lists the files of a partition.
    ///
    /// # Errors
    /// If its folder cannot be read. A missing folder is an empty partition.
    pub fn list(&self, partition: Partition) -> Result<PartList, Error> {
        let folder = self.path(partition);
        let parts = names(&folder)?.into_iter().filter_map(|name| {
            let copied = name.strip_suffix(MARK);
            let is_copied = copied.is_some();
            let name = copied.unwrap_or(&name);
            let (first, last) = name.strip_suffix(".parquet")?.split_once('-')?;
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            Some(PartFile { first, last, path: folder.join(name), is_copied })
        });
        let mut parts: Vec<PartFile> = parts.collect();
        // The mark of a copied file comes before the file itself.
        parts.sort_by_key(|part| (part.first, Reverse(part.last), !part.is_copied));
        parts.dedup_by(|later, earlier| later.path == earlier.path);
        let mut list = PartList::default();
        for part in parts {
            match list.parts.last() {
                Some(before) if part.last <= before.last => list.replaced.push(part.path),
                _ => list.parts.push(part),
            }
        }
        Ok(list)
    }

    /// Writes one file of a partition. The file appears under its name when it is whole and on
    /// disk.
    ///
    /// # Errors
    /// If the disk is full, or the operating system refuses. Nothing is left then.
    pub fn write(
        &self,
        partition: Partition,
        commits: std::ops::RangeInclusive<u64>,
        schema: SchemaRef,
        fill: impl FnOnce(&mut ArrowWriter<File>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let temporary = self.temporary("parquet");
        let folder = self.path(partition);
        let name = format!("{:010}-{:010}.parquet", commits.start(), commits.end());
        let written = write_whole(&temporary, partition.compression(), schema, fill)
            .and_then(|()| create_folder(&folder, &self.root))
            .and_then(|()| {
                let path = folder.join(name);
                fs::rename(&temporary, &path).map_err(Error::io(&path, "create"))?;
                sync_folder(&folder)
            });
        if written.is_err() {
            // The first error is the one to report. The file may not exist.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Returns the folder of an order with its traces, which may not exist.
    pub fn order_path(&self, id: u64) -> PathBuf {
        self.orders_path().join(id.to_string())
    }

    /// Returns the path of the notices to owners of idle GPUs.
    pub fn notices_path(&self) -> PathBuf {
        self.root.join("notices").join("notices.json")
    }

    /// Returns the folder of all orders.
    pub fn orders_path(&self) -> PathBuf {
        self.root.join(ORDERS)
    }

    /// Creates a folder below the store. Each new folder is on disk before a file appears in it.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn create_folder(&self, folder: &Path) -> Result<(), Error> {
        create_folder(folder, &self.root)
    }

    /// Returns the ids of all orders that have a folder, in ascending order.
    ///
    /// # Errors
    /// If the folder of orders cannot be read.
    pub fn order_ids(&self) -> Result<Vec<u64>, Error> {
        let names = names(&self.orders_path())?;
        let mut ids: Vec<u64> = names.iter().filter_map(|name| name.parse().ok()).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Removes an order with its traces. A kill at any moment leaves all of it or nothing.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn remove_order(&self, id: u64) -> Result<(), Error> {
        self.remove_whole(&self.order_path(id))
    }

    /// Writes a file below the store, in place of an earlier one. The file appears under its name
    /// when it is whole and on disk.
    ///
    /// # Errors
    /// If the disk is full, or the operating system refuses. Nothing is changed then.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), Error> {
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = self.root.join("tmp").join(format!("{number}.file"));
        let folder = path.parent().unwrap_or(&self.root);
        let written = fs::write(&temporary, bytes)
            .and_then(|()| File::open(&temporary)?.sync_all())
            .map_err(Error::io(&temporary, "write"))
            .and_then(|()| create_folder(folder, &self.root))
            .and_then(|()| {
                fs::rename(&temporary, path).map_err(Error::io(path, "create"))?;
                sync_folder(folder)
            });
        if written.is_err() {
            // The first error is the one to report. The file may not exist.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Returns the number of the last commit that the files of a partition hold.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn last_commit(&self, partition: Partition) -> Result<Option<u64>, Error> {
        Ok(self.list(partition)?.parts.last().map(|part| part.last))
    }

    /// Reads some columns of all rows of a partition, in the order of commits. Calls `visit` for
    /// groups of rows.
    ///
    /// # Errors
    /// If a file is damaged or has another version, or if `visit` fails.
    pub fn read(
        &self,
        partition: Partition,
        columns: &[&str],
        mut visit: impl FnMut(&RecordBatch, &Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // All files are opened before one is read, so that a compaction cannot remove them.
        for (file, part) in self.open_parts(partition)? {
            read_file(file, &part.path, columns, None, |batch| visit(batch, &part.path))?;
        }
        Ok(())
    }

    /// Reads some columns as [`Self::read`] does, but only the rows that `choice` names.
    ///
    /// # Errors
    /// If a file is damaged or has another version, or if `visit` fails.
    pub fn read_chosen(
        &self,
        partition: Partition,
        columns: &[&str],
        choice: &RowChoice,
        mut visit: impl FnMut(&RecordBatch, &Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (file, part) in self.open_parts(partition)? {
            read_file(file, &part.path, columns, Some(choice), |batch| visit(batch, &part.path))?;
        }
        Ok(())
    }

    /// Reads some columns as [`Self::read`] does, but texts as dictionaries of their different
    /// values, as the files store them. Columns of `optional` are left out where they have no
    /// value.
    ///
    /// # Errors
    /// If a file is damaged or has another version, or if `visit` fails.
    pub fn read_coded(
        &self,
        partition: Partition,
        columns: &[&str],
        optional: &[&str],
        mut visit: impl FnMut(&RecordBatch, &Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (file, part) in self.open_parts(partition)? {
            let visit = |batch: &RecordBatch| visit(batch, &part.path);
            read_coded_file(file, &part.path, columns, optional, visit)?;
        }
        Ok(())
    }

    /// Opens a file, which is fetched if only the bucket has it.
    fn open_part(&self, part: &PartFile) -> Result<File, Error> {
        match File::open(&part.path) {
            Err(error) if part.is_copied && error.kind() == ErrorKind::NotFound => {
                self.open_copy(&part.path)
            }
            opened => opened.map_err(Error::io(&part.path, "open")),
        }
    }

    /// Opens a file that only the bucket has, after it was fetched.
    fn open_copy(&self, path: &Path) -> Result<File, Error> {
        let key = self.key(path);
        let Some(bucket) = &self.bucket else {
            let expected = "a section [bucket], because only the bucket has this file";
            return Err(Error::Value { what: key, expected, got: "none".to_owned() });
        };
        let cached = self.cache().join(&key);
        if let Ok(file) = File::open(&cached) {
            // The files that were used last stay longest.
            let _ = file.set_modified(SystemTime::now());
            return Ok(file);
        }
        let temporary = self.temporary("fetched");
        for needed in [temporary.parent(), cached.parent()].into_iter().flatten() {
            fs::create_dir_all(needed).map_err(Error::io(needed, "create the folder"))?;
        }
        let fetched = bucket.get(&key, &temporary).and_then(|()| {
            fs::rename(&temporary, &cached).map_err(Error::io(&cached, "create"))?;
            File::open(&cached).map_err(Error::io(&cached, "open"))
        });
        if fetched.is_err() {
            // The first error is the one to report. The file may not exist.
            let _ = fs::remove_file(&temporary);
        }
        fetched
    }

    fn open_parts(&self, partition: Partition) -> Result<Vec<(File, PartFile)>, Error> {
        let mut attempt = 1;
        loop {
            let parts = self.list(partition)?.parts.into_iter();
            let opened: Result<Vec<_>, Error> =
                parts.map(|part| Ok((self.open_part(&part)?, part))).collect();
            match opened {
                Err(error) if error.is_missing() && attempt < ATTEMPTS => attempt += 1,
                opened => return opened,
            }
        }
    }
}

/// Returns the path of the mark of a file.
fn mark(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(MARK);
    name.into()
}

/// Converts a number of hours since 1970 to a time.
fn time_of(hour: u64) -> DateTime<Utc> {
    let seconds = i64::try_from(hour * HOUR_S).unwrap_or(i64::MAX);
    DateTime::from_timestamp(seconds, 0).unwrap_or_default()
}

impl Partition {
    /// Rows are compressed. Sums are small, and a decompressor for each of their columns takes
    /// twice the time of all else in a query over months.
    fn compression(self) -> Compression {
        let is_rows = RowTable::ALL.iter().any(|table| table.folder() == self.table);
        if is_rows { Compression::ZSTD(ZstdLevel::default()) } else { Compression::UNCOMPRESSED }
    }
}

impl PartFile {
    /// Returns the time at which the file was written.
    fn modified(&self) -> SystemTime {
        let metadata = fs::metadata(&self.path);
        metadata.and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// Reads the columns `columns` of a file, or all columns if the list is empty.
fn read_file(
    file: File,
    path: &Path,
    columns: &[&str],
    choice: Option<&RowChoice>,
    mut visit: impl FnMut(&RecordBatch) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut builder =
        ParquetRecordBatchReaderBuilder::try_new(file).map_err(Error::parquet(path))?;
    check_version(builder.metadata(), path)?;
    if let Some(choice) = choice {
        let names = choice.columns.iter().copied();
        let mask = ProjectionMask::columns(builder.parquet_schema(), names);
        let is_chosen = Arc::clone(&choice.is_chosen);
        let predicate = ArrowPredicateFn::new(mask, move |batch| Ok(is_chosen(&batch)));
        builder = builder.with_row_filter(RowFilter::new(vec![Box::new(predicate)]));
    }
    let mask = match columns {
        [] => ProjectionMask::all(),
        columns => ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied()),
    };
    let reader = builder.with_projection(mask).with_batch_size(BATCH_ROWS).build();
    for batch in reader.map_err(Error::parquet(path))? {
        visit(&batch?)?;
    }
    Ok(())
}

fn read_coded_file(
    file: File,
    path: &Path,
    columns: &[&str],
    optional: &[&str],
    mut visit: impl FnMut(&RecordBatch) -> Result<(), Error>,
) -> Result<(), Error> {
    let failed = || Error::parquet(path);
    let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(failed())?;
    check_version(metadata.metadata(), path)?;
    let coded = |field: &Arc<Field>| match field.data_type() {
        DataType::Utf8 => {
            let codes = DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into());
            Arc::new(field.as_ref().clone().with_data_type(codes))
        }
        _ => Arc::clone(field),
    };
    let schema = Schema::new(metadata.schema().fields().iter().map(coded).collect::<Fields>());
    let options = ArrowReaderOptions::new().with_schema(Arc::new(schema));
    let parquet = Arc::clone(metadata.metadata());
    let has_value = |name: &&&str| {
        let chunks = parquet.row_groups().iter().flat_map(RowGroupMetaData::columns);
        let mut chunks = chunks.filter(|chunk| chunk.column_path().parts()[0] == ***name);
        chunks.any(|chunk| {
            let nulls = chunk.statistics().and_then(Statistics::null_count_opt);
            nulls.is_none_or(|nulls| i64::try_from(nulls) != Ok(chunk.num_values()))
        })
    };
    let columns = columns.iter().chain(optional.iter().filter(has_value)).copied();
    let schema = parquet.file_metadata().schema_descr();
    let mask = ProjectionMask::columns(schema, columns);
    let metadata = ArrowReaderMetadata::try_new(Arc::clone(&parquet), options).map_err(failed())?;
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
    let reader = builder.with_projection(mask).with_batch_size(CODED_BATCH_ROWS).build();
    for batch in reader.map_err(failed())? {
        visit(&batch?)?;
    }
    Ok(())
}

/// Checks that a file has the columns of this version.
fn check_version(metadata: &ParquetMetaData, path: &Path) -> Result<(), Error> {
    let pairs = metadata.file_metadata().key_value_metadata();
    let version = pairs.and_then(|pairs| pairs.iter().find(|pair| pair.key == VERSION_KEY));
    let version = version.and_then(|pair| pair.value.as_deref()).unwrap_or("none");
    if version != VERSION {
        let (path, got) = (path.to_owned(), version.to_owned());
        return Err(Error::Version { path, expected: VERSION, got });
    }
    Ok(())
}

/// Reads the columns of a file without its rows.
fn read_schema(file: File, path: &Path) -> Result<SchemaRef, Error> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(Error::parquet(path))?;
    Ok(Arc::clone(builder.schema()))
}

/// Returns a column with its type.
///
/// # Errors
/// If the column is missing or has another type.
pub fn column<'a, A: Array + 'static>(
    batch: &'a RecordBatch,
    column: &'static str,
    path: &Path,
) -> Result<&'a A, Error> {
    let array = batch.column_by_name(column);
    let array = array.and_then(|array| array.as_any().downcast_ref());
    array.ok_or_else(|| Error::Column { path: path.to_owned(), column })
}

fn write_whole(
    path: &Path,
    compression: Compression,
    schema: SchemaRef,
    fill: impl FnOnce(&mut ArrowWriter<File>) -> Result<(), Error>,
) -> Result<(), Error> {
    let version = KeyValue::new(VERSION_KEY.to_owned(), VERSION.to_owned());
    let mut properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_key_value_metadata(Some(vec![version]));
    for field in schema.fields().iter().filter(|field| *field.data_type() == DataType::Float64) {
        // Measured sums seldom repeat, so a dictionary of them costs more than it saves. Their
        // exponents repeat, and are compressed once bytes of one position lie together.
        let name = ColumnPath::from(field.name().as_str());
        properties = properties
            .set_column_dictionary_enabled(name.clone(), false)
            .set_column_encoding(name, Encoding::BYTE_STREAM_SPLIT);
    }
    let properties = properties.build();
    let file = File::create_new(path).map_err(Error::io(path, "create"))?;
    let mut writer =
        ArrowWriter::try_new(file, schema, Some(properties)).map_err(Error::parquet(path))?;
    fill(&mut writer)?;
    let file = writer.into_inner().map_err(Error::parquet(path))?;
    file.sync_all().map_err(Error::io(path, "sync"))
}

/// Creates a folder below `root`. Each new folder is on disk before a file appears in it.
fn create_folder(folder: &Path, root: &Path) -> Result<(), Error> {
    if folder == root || folder.is_dir() {
        return Ok(());
    }
    let Some(above) = folder.parent() else { return Ok(()) };
    create_folder(above, root)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(Error::io(folder, "create the folder")(error))
        }
        _ => sync_folder(above),
    }
}

/// Makes sure that the names of a folder are on disk.
///
/// # Errors
/// If the operating system refuses.
pub fn sync_folder(folder: &Path) -> Result<(), Error> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(Error::io(folder, "sync"))
}

/// Adds up the sizes in bytes of all files below a folder.
///
/// # Errors
/// If a folder cannot be read.
pub fn walk_sizes(folder: &Path) -> Result<u64, Error> {
    let mut total = 0;
    for name in names(folder)? {
        let path = folder.join(name);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => total += walk_sizes(&path)?,
            Ok(metadata) => total += metadata.len(),
            // The file was removed meanwhile.
            Err(_) => {}
        }
    }
    Ok(total)
}

/// Returns the names of the entries of a folder. A missing folder has none.
///
/// # Errors
/// If the folder cannot be read.
pub fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |error| Error::io(folder, "read the folder")(error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
    let names: Result<Vec<_>, _> = names.filter_map(Result::transpose).collect();
    names.map_err(failed)
}
