//! Computes the sums of a fleet from rows of GPUs.
//!
//! Schedulable GPUs are those that report rows, because no scheduler is asked yet. A host is busy
//! in an interval if one of its GPUs is allocated. Rows of MIG instances are left out, because
//! their whole GPU has a row too.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use arrow_array::{
    Array, Float64Array, ListArray, RecordBatch, StringArray, StructArray,
    TimestampMillisecondArray, UInt32Array,
};

use crate::config::Pools;
use crate::error::Error;
use crate::store::column;
use crate::sums::{FleetSums, SumKey};

/// Columns of the table of GPUs that are needed.
pub const COLUMNS: [&str; 9] = [
    "host",
    "start",
    "length_s",
    "model",
    "instance",
    "runs",
    "observed_s",
    "busy_s",
    "sm_active_s",
];
/// Seconds of the shortest time for which sums are kept.
pub const MINUTE_S: u64 = 60;

/// Sums by the start of a minute or an hour, in seconds since 1970, and by the part of the fleet.
pub type BucketSums = BTreeMap<(u64, SumKey), FleetSums>;

/// Numbers of the texts of a [`SumKey`], the run as scheduler and job.
type TextKey = [u32; 6];

/// Adds up rows of whole hours. Rows of one host and interval must come to the same aggregation,
/// because they decide together whether the host is busy.
pub struct Aggregation<'a> {
    pools: &'a Pools,
    texts: TextNumbers,
    /// The number of the pool of each host, by the number of the host.
    pool_of_host: HashMap<u32, u32>,
    sums: HashMap<(u64, TextKey), FleetSums>,
    /// GPUs without a run, by host and start of the interval.
    intervals: BTreeMap<(u32, u64), HostActivity>,
    /// The last text of each column, because neighboring rows have mostly equal texts.
    last: [LastText; 6],
    /// The interval of the last row with a run, whose host is already known as busy.
    last_busy: Option<(u32, u64)>,
}

/// A text of the last row, with its number.
#[derive(Debug, Default)]
struct LastText {
    text: String,
    number: u32,
}

impl LastText {
    fn number(&mut self, text: &str, texts: &mut TextNumbers) -> u32 {
        if self.text != text {
            self.number = texts.number(text);
            text.clone_into(&mut self.text);
        }
        self.number
    }
}

/// The seconds of a host's GPUs that nobody holds, in one interval.
#[derive(Debug, Default)]
struct HostActivity {
    is_busy: bool,
    idle: Vec<((u64, TextKey), f64)>,
}

/// Maps texts to small numbers.
#[derive(Debug, Default)]
struct TextNumbers {
    numbers: HashMap<String, u32>,
    texts: Vec<String>,
}

impl TextNumbers {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    fn text(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("", String::as_str)
    }
}

/// The typed columns of a group of rows.
struct GpuColumns<'a> {
    hosts: &'a StringArray,
    starts: &'a TimestampMillisecondArray,
    lengths: &'a UInt32Array,
    models: &'a StringArray,
    instances: &'a UInt32Array,
    runs: &'a ListArray,
    observed: &'a Float64Array,
    busy: &'a Float64Array,
    sm_active: &'a Float64Array,
    /// Texts of all runs: scheduler, job, name and user.
    texts: [&'a StringArray; 4],
}

impl<'a> GpuColumns<'a> {
    fn new(batch: &'a RecordBatch, path: &Path) -> Result<Self, Error> {
        let runs: &ListArray = column(batch, "runs", path)?;
        let wrong = || Error::Column { path: path.to_owned(), column: "runs" };
        let structs = runs.values().as_any().downcast_ref::<StructArray>().ok_or_else(wrong)?;
        let text = |name| {
            let array = structs.column_by_name(name);
            array.and_then(|array| array.as_any().downcast_ref()).ok_or_else(wrong)
        };
        Ok(Self {
            hosts: column(batch, "host", path)?,
            starts: column(batch, "start", path)?,
            lengths: column(batch, "length_s", path)?,
            models: column(batch, "model", path)?,
            instances: column(batch, "instance", path)?,
            runs,
            observed: column(batch, "observed_s", path)?,
            busy: column(batch, "busy_s", path)?,
            sm_active: column(batch, "sm_active_s", path)?,
            texts: [text("scheduler")?, text("job")?, text("name")?, text("user")?],
        })
    }

    /// Computes the sums of an allocated GPU.
    fn allocated(&self, row: usize) -> FleetSums {
        let length_s = f64::from(self.lengths.value(row));
        let observed_s = self.observed.value(row).min(length_s);
        let known = |sums: &Float64Array| sums.is_valid(row).then(|| sums.value(row));
        let (busy_s, sm_active_s) = (known(self.busy), known(self.sm_active));
        FleetSums {
            deployed_s: length_s,
            schedulable_s: length_s,
            on_busy_hosts_s: length_s,
            allocated_s: length_s,
            busy_s: busy_s.unwrap_or(0.0),
            sm_active_s: sm_active_s.unwrap_or(0.0),
            busy_observed_s: busy_s.map_or(0.0, |_| observed_s),
            sm_observed_s: sm_active_s.map_or(0.0, |_| observed_s),
        }
    }
}

impl<'a> Aggregation<'a> {
    /// Creates an empty aggregation.
    pub fn new(pools: &'a Pools) -> Self {
        let mut texts = TextNumbers::default();
        texts.number("");
        let (pool_of_host, sums, intervals, last) = Default::default();
        Self { pools, texts, pool_of_host, sums, intervals, last, last_busy: None }
    }

    /// Adds rows of the table of GPUs.
    ///
    /// # Errors
    /// If a column is missing or has another type.
    pub fn add(&mut self, batch: &RecordBatch, path: &Path) -> Result<(), Error> {
        let columns = GpuColumns::new(batch, path)?;
        for row in 0..batch.num_rows() {
            if columns.instances.is_null(row) {
                self.add_row(&columns, row);
            }
        }
        Ok(())
    }

    fn add_row(&mut self, columns: &GpuColumns, row: usize) {
        let start = u64::try_from(columns.starts.value(row) / 1000).unwrap_or(0);
        let minute = start / MINUTE_S * MINUTE_S;
        let host_name = columns.hosts.value(row);
        let (pools, texts) = (self.pools, &mut self.texts);
        let [last_host, last_model, last_run @ ..] = &mut self.last;
        let host = last_host.number(host_name, texts);
        let pool = self.pool_of_host.entry(host);
        let pool = *pool.or_insert_with(|| texts.number(pools.pool_of(host_name)));
        let model = last_model.number(columns.models.value(row), texts);
        let offsets = columns.runs.value_offsets();
        let runs = offsets[row] as usize..offsets[row + 1] as usize;
        if runs.is_empty() {
            let length_s = f64::from(columns.lengths.value(row));
            let key = (minute, [pool, model, 0, 0, 0, 0]);
            let sums = self.sums.entry(key).or_default();
            sums.deployed_s += length_s;
            sums.schedulable_s += length_s;
            self.intervals.entry((host, start)).or_default().idle.push((key, length_s));
            return;
        }
        if self.last_busy != Some((host, start)) {
            self.intervals.entry((host, start)).or_default().is_busy = true;
            self.last_busy = Some((host, start));
        }
        // Runs that share a GPU have equal shares, because their own activity is unknown.
        let share = 1.0 / runs.len() as f64;
        let part = FleetSums::from_values(columns.allocated(row).values().map(|sum| sum * share));
        for run in runs {
            let mut numbers = [0; 4];
            for ((number, last), text) in numbers.iter_mut().zip(&mut *last_run).zip(columns.texts)
            {
                *number = last.number(text.value(run), texts);
            }
            let [scheduler, job, name, user] = numbers;
            let key = (minute, [pool, model, name, user, scheduler, job]);
            self.sums.entry(key).or_default().merge(&part);
        }
    }

    /// Returns the sums of each minute.
    pub fn finish(mut self) -> BucketSums {
        for activity in self.intervals.values().filter(|activity| activity.is_busy) {
            for (key, length_s) in &activity.idle {
                self.sums.entry(*key).or_default().on_busy_hosts_s += length_s;
            }
        }
        let texts = &self.texts;
        let key = |[pool, model, workflow, user, scheduler, job]: TextKey| {
            let text = |number| texts.text(number).to_owned();
            let run = format!("{}/{}", texts.text(scheduler), texts.text(job));
            let run = if run == "/" { String::new() } else { run };
            let (pool, model) = (text(pool), text(model));
            SumKey { pool, model, workflow: text(workflow), user: text(user), run }
        };
        let mut buckets = BucketSums::new();
        for ((minute, numbers), sums) in self.sums {
            // A slash within the name of a scheduler can make two runs equal.
            buckets.entry((minute, key(numbers))).or_default().merge(&sums);
        }
        buckets
    }
}

/// Adds up sums by longer times, such as the minutes of each hour.
pub fn merge_buckets(sums: &BucketSums, length_s: u64) -> BucketSums {
    let mut merged = BucketSums::new();
    for ((start, key), value) in sums {
        merged.entry((start / length_s * length_s, key.clone())).or_default().merge(value);
    }
    merged
}
