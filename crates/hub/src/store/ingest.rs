//! Decides which entries are new, and writes them. Both decisions rest on the files of the entry's
//! hour alone, so a hub that was killed at any moment continues with what the files have.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow_array::{
    Array, BinaryArray, RecordBatch, StringArray, TimestampMillisecondArray, UInt32Array,
    UInt64Array,
};
use fleet::proto::Body;

use super::{HOUR_S, Partition, StoreFolder, column, retention};
use crate::batch::QueuedEntry;
use crate::columns::{RowTable, encode};
use crate::config::{DAY_S, Retention};
use crate::error::Error;
use crate::intervals::IntervalSet;

/// Largest number of hours whose index is kept in memory. An index is small: it stores the
/// consecutive rows of a device as one range.
const INDEXES_MAX: usize = 200;

/// Seconds by which the clock of a host may be ahead of the hub's without a note.
const AHEAD_S: u64 = 60;
/// Seconds after the end of its interval from which a row counts as late. Agents send every row
/// within seconds, unless they were cut off.
const LATE_S: u64 = 120;

/// The store with the indexes of the hours to which rows were added lately.
#[derive(Debug)]
pub struct RowStore {
    folder: Arc<StoreFolder>,
    indexes: HashMap<Option<u64>, HourIndex>,
    retention: Retention,
    /// Number of uses of all indexes, by which the least recently used one is found.
    uses: u64,
}

/// What became of the entries of a commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IngestTally {
    pub stored: u64,
    pub problems: BTreeMap<(Arc<str>, HostProblem), ProblemCount>,
}

/// A problem with the rows of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostProblem {
    /// Entries were sent again after they had been stored. They are stored once.
    RepeatedRows,
    /// Another row of the same device covers the interval. Two agents on one host, or an agent that
    /// lost its queue, cause it. The first row is kept.
    DoubledRows,
    /// The interval begins in the future.
    FutureRows,
    /// Rows arrived long after the end of their interval.
    LateRows,
    /// Rows are older than such rows are kept. They are left out.
    ExpiredRows,
    /// The clock of the host differs from the hub's.
    Clock,
}

/// How often a problem occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProblemCount {
    pub rows: u64,
    /// The largest age of a row, or the largest difference of the clocks, which is positive if the
    /// host's clock is ahead; 0 if the problem has no such size.
    pub worst_s: f64,
}

/// The entries and intervals that the files of one hour have.
#[derive(Debug, Default)]
struct HourIndex {
    sequences: HashMap<Arc<[u8]>, IntervalSet>,
    /// The covered seconds by host and device or process. The device of a host row is empty.
    covered: HashMap<Arc<str>, HashMap<String, IntervalSet>>,
    /// The number of the next commit of each table.
    next: BTreeMap<RowTable, u64>,
    used: u64,
}

impl RowStore {
    /// Creates a store over a folder. Indexes are read when rows of their hour arrive.
    pub fn new(folder: Arc<StoreFolder>) -> Self {
        let retention = Retention::default();
        Self { folder, indexes: HashMap::new(), retention, uses: 0 }
    }

    /// Leaves out entries that are older than their kind is kept.
    pub fn with_retention(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// Stores the entries that are new. When the call returns, all entries are on disk.
    ///
    /// # Errors
    /// If a file cannot be written or read. Some entries may be stored, and are recognized when
    /// they are sent again.
    pub fn append(&mut self, entries: Vec<QueuedEntry>) -> Result<IngestTally, Error> {
        let mut by_hour: BTreeMap<Option<u64>, Vec<QueuedEntry>> = BTreeMap::new();
        let mut tally = IngestTally::default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for entry in entries {
            let moment_s = moment_s(&entry.body);
            if let Some(moment_s) = moment_s
                && !self.check_time(&entry, moment_s, now, &mut tally)
            {
                continue;
            }
            by_hour.entry(moment_s.map(|second| second / HOUR_S)).or_default().push(entry);
        }
        for (hour, entries) in by_hour {
            self.uses += 1;
            // The index leaves the map, so that it is read again from the files if the commit
            // fails.
            let mut index = match self.indexes.remove(&hour) {
                Some(index) => index,
                None => HourIndex::load(&self.folder, hour)?,
            };
            index.append(&self.folder, hour, entries, &mut tally)?;
            index.used = self.uses;
            self.indexes.insert(hour, index);
        }
        while self.indexes.len() > INDEXES_MAX {
            let oldest = self.indexes.iter().min_by_key(|(_, index)| index.used);
            let Some((&hour, _)) = oldest else { break };
            self.indexes.remove(&hour);
        }
        Ok(tally)
    }

    /// Compares the time of an entry with the current time. Returns whether the entry is stored.
    fn check_time(
        &self,
        entry: &QueuedEntry,
        moment_s: u64,
        now_s: u64,
        tally: &mut IngestTally,
    ) -> bool {
        let table = RowTable::from_body(&entry.body);
        let kept = self.retention.kept(table.folder());
        if kept.is_some_and(|kept| retention::is_over(moment_s / DAY_S, kept, now_s)) {
            tally.add(entry, HostProblem::ExpiredRows, now_s.saturating_sub(moment_s));
            return false;
        }
        if moment_s > now_s + AHEAD_S {
            tally.add(entry, HostProblem::FutureRows, moment_s - now_s);
        }
        let end_s = device_interval(&entry.body).map(|row| row.interval.end);
        let late_s = end_s.map_or(0, |end_s| now_s.saturating_sub(end_s));
        if late_s > LATE_S {
            tally.add(entry, HostProblem::LateRows, late_s);
        }
        true
    }
}

impl HostProblem {
    /// All problems, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::RepeatedRows,
        Self::DoubledRows,
        Self::FutureRows,
        Self::LateRows,
        Self::ExpiredRows,
        Self::Clock,
    ];

    /// Returns the name of the problem, which is the kind of its events.
    pub fn word(self) -> &'static str {
        match self {
            Self::RepeatedRows => "repeated_rows",
            Self::DoubledRows => "doubled_rows",
            Self::FutureRows => "future_rows",
            Self::LateRows => "late_rows",
            Self::ExpiredRows => "expired_rows",
            Self::Clock => "clock",
        }
    }
}

impl ProblemCount {
    /// Adds another count of the same problem.
    pub fn add(&mut self, other: Self) {
        self.rows += other.rows;
        if other.worst_s.abs() > self.worst_s.abs() {
            self.worst_s = other.worst_s;
        }
    }
}

impl IngestTally {
    fn add(&mut self, entry: &QueuedEntry, problem: HostProblem, seconds: u64) {
        let count = self.problems.entry((Arc::clone(&entry.host), problem)).or_default();
        count.add(ProblemCount { rows: 1, worst_s: seconds as f64 });
    }
}

impl HourIndex {
    fn load(folder: &StoreFolder, hour: Option<u64>) -> Result<Self, Error> {
        let mut index = Self::default();
        for table in RowTable::ALL {
            let partition = Partition { hour, table: table.folder() };
            if hour.is_some() == (table == RowTable::Order) {
                continue;
            }
            let next = folder.list(partition)?.parts.last().map_or(0, |part| part.last + 1);
            index.next.insert(table, next);
            let mut columns = vec!["queue", "sequence", "host"];
            if table.has_intervals() {
                columns.extend(["start", "length_s"]);
            }
            match table {
                RowTable::Gpu => columns.extend(["index", "uuid", "instance"]),
                RowTable::Step => columns.push("pid"),
                _ => {}
            }
            folder.read(partition, &columns, |batch, path| {
                let queues: &BinaryArray = column(batch, "queue", path)?;
                let sequences: &UInt64Array = column(batch, "sequence", path)?;
                let hosts: &StringArray = column(batch, "host", path)?;
                for row in 0..batch.num_rows() {
                    index.add_sequence(queues.value(row), sequences.value(row));
                }
                if !table.has_intervals() {
                    return Ok(());
                }
                let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
                let lengths: &UInt32Array = column(batch, "length_s", path)?;
                let devices = read_devices(table, batch, path)?;
                for (row, device) in devices.into_iter().enumerate() {
                    let start = u64::try_from(starts.value(row) / 1000).unwrap_or(0);
                    let end = start + u64::from(lengths.value(row));
                    let covered = index.covered(hosts.value(row), device);
                    covered.insert(start..end);
                }
                Ok(())
            })?;
        }
        Ok(index)
    }

    /// Writes the entries that are new to one file per table.
    fn append(
        &mut self,
        folder: &StoreFolder,
        hour: Option<u64>,
        entries: Vec<QueuedEntry>,
        tally: &mut IngestTally,
    ) -> Result<(), Error> {
        let mut new = Vec::with_capacity(entries.len());
        for entry in entries {
            if self.admit(&entry, tally) {
                new.push(entry);
            }
        }
        for table in RowTable::ALL {
            let rows = encode(table, &new)?;
            if rows.num_rows() == 0 {
                continue;
            }
            let next = self.next.entry(table).or_default();
            let partition = Partition { hour, table: table.folder() };
            let path = folder.path(partition);
            folder.write(partition, *next..=*next, rows.schema(), |writer| {
                writer.write(&rows).map_err(Error::parquet(&path))
            })?;
            *next += 1;
            tally.stored += rows.num_rows() as u64;
        }
        Ok(())
    }

    /// Whether an entry is new. A new entry is added to the index.
    fn admit(&mut self, entry: &QueuedEntry, tally: &mut IngestTally) -> bool {
        let number = entry.sequence..entry.sequence + 1;
        if self.sequences.get(&entry.queue).is_some_and(|known| known.overlaps(&number)) {
            tally.add(entry, HostProblem::RepeatedRows, 0);
            return false;
        }
        if let Some(DeviceInterval { device, interval }) = device_interval(&entry.body) {
            let covered = self.covered(&entry.host, device);
            if covered.overlaps(&interval) {
                tally.add(entry, HostProblem::DoubledRows, 0);
                return false;
            }
            covered.insert(interval);
        }
        self.add_sequence(&entry.queue, entry.sequence);
        true
    }

    fn add_sequence(&mut self, queue: &[u8], sequence: u64) {
        let range = sequence..sequence + 1;
        match self.sequences.get_mut(queue) {
            Some(known) => known.insert(range),
            None => self.sequences.entry(queue.into()).or_default().insert(range),
        }
    }

    fn covered(&mut self, host: &str, device: String) -> &mut IntervalSet {
        if !self.covered.contains_key(host) {
            self.covered.insert(host.into(), HashMap::new());
        }
        self.covered.entry(host.into()).or_default().entry(device).or_default()
    }
}

/// The seconds since 1970 that a row covers, and the device or process that it describes.
struct DeviceInterval {
    device: String,
    interval: Range<u64>,
}

/// Returns the time in seconds since 1970 by which an entry is assigned to an hour, or `None` for
/// the state of an order.
fn moment_s(body: &Body) -> Option<u64> {
    match body {
        Body::Gpu(row) => Some(row.start_unix_s),
        Body::Host(row) => Some(row.start_unix_s),
        Body::Steps(row) => Some(row.start_unix_s),
        Body::Run(row) => Some(row.seen_unix_s),
        Body::Event(row) => Some(row.start_unix_ms / 1000),
        Body::Order(_) => None,
    }
}

/// Returns the interval of a row, or `None` for entries that may have equal times.
fn device_interval(body: &Body) -> Option<DeviceInterval> {
    let (device, start, length_s) = match body {
        Body::Gpu(row) => {
            (device(&row.uuid, row.index, row.instance), row.start_unix_s, row.length_s)
        }
        Body::Host(row) => (String::new(), row.start_unix_s, row.length_s),
        Body::Steps(row) => (process(row.pid), row.start_unix_s, row.length_s),
        Body::Order(_) | Body::Run(_) | Body::Event(_) => return None,
    };
    Some(DeviceInterval { device, interval: start..start + u64::from(length_s) })
}

/// Returns the device or process of each row of a table with intervals.
fn read_devices(table: RowTable, batch: &RecordBatch, path: &Path) -> Result<Vec<String>, Error> {
    let rows = 0..batch.num_rows();
    match table {
        RowTable::Gpu => {
            let indexes: &UInt32Array = column(batch, "index", path)?;
            let uuids: &StringArray = column(batch, "uuid", path)?;
            let instances: &UInt32Array = column(batch, "instance", path)?;
            let name = |row: usize| {
                let instance = instances.is_valid(row).then(|| instances.value(row));
                device(uuids.value(row), indexes.value(row), instance)
            };
            Ok(rows.map(name).collect())
        }
        RowTable::Step => {
            let pids: &UInt32Array = column(batch, "pid", path)?;
            Ok(rows.map(|row| process(pids.value(row))).collect())
        }
        _ => Ok(rows.map(|_| String::new()).collect()),
    }
}

/// Returns the name of a process within its host. No UUID of a GPU begins like this.
fn process(pid: u32) -> String {
    format!("process {pid}")
}

/// Returns the name of a GPU within its host.
fn device(uuid: &str, index: u32, instance: Option<u32>) -> String {
    match (uuid, instance) {
        ("", Some(instance)) => format!("{index}/{instance}"),
        ("", None) => index.to_string(),
        (uuid, _) => uuid.to_owned(),
    }
}
