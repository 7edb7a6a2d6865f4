//! Computes the sums of a fleet from rows of GPUs.
//!
//! Schedulable GPUs are those that report rows, because no scheduler is asked yet. A host is busy
//! in an interval if one of its GPUs is allocated. Rows of MIG instances are left out, because
//! their whole GPU has a row too.
//!
//! The columns of 13.8 million rows that are read have about 20 bytes per row: two sums of 8 bytes,
//! and codes of texts and times that repeat. Decoding eleven columns at 2 to 3 ns per value and
//! adding up at 10 ns per row take 0.5 s of a core, so 0.25 s are the bound on two cores.

use std::collections::HashMap;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, Float64Array, ListArray, RecordBatch, StringArray, TimestampMillisecondArray,
    UInt32Array,
};

use crate::columns::FURTHER_RUNS;
use crate::config::Pools;
use crate::error::Error;
use crate::grouping::{EXCLUDED, GroupKey, GroupedSums, TextColumn};
use crate::store::{HOUR_S, column};
use crate::sums::{Dimension, FleetSums};

/// Columns of the table of GPUs that are needed.
pub const COLUMNS: [&str; 12] = [
    "host",
    "start",
    "length_s",
    "model",
    "instance",
    "run",
    "workflow",
    "user",
    "observed_s",
    "busy_s",
    "sm_active_s",
    FURTHER_RUNS,
];
/// Seconds of the shortest time for which sums are kept.
pub const MINUTE_S: u64 = 60;
/// Share of an interval in which a GPU that counts as idle may be busy, as in the agent.
const IDLE_BUSY_MAX: f64 = 0.01;
/// The dimensions of a run, which are the names of columns too.
const OF_RUN: [Dimension; 3] = [Dimension::Workflow, Dimension::User, Dimension::Run];

/// Adds up the rows of one hour, which decide together which hosts are busy.
pub struct HourSums<'a, 'q> {
    pools: &'a Pools,
    groups: &'a mut GroupedSums<'q>,
    /// Start of the hour in seconds since 1970.
    start: u64,
    host_numbers: HashMap<String, u32>,
    hosts: Vec<HostHour>,
}

/// What is known about the GPUs of a host in one hour.
struct HostHour {
    /// The numbers of the host's pool and of the host itself.
    pool: u32,
    member: u32,
    /// A bit for each second at which an interval with an allocated GPU starts.
    busy: Vec<u64>,
    idle: Vec<IdleSpan>,
}

/// GPU seconds that nobody holds, of one group and one interval of a host.
struct IdleSpan {
    /// Second of the hour at which the interval starts.
    second: usize,
    place: usize,
    length_s: f64,
}

/// The typed columns of a group of rows.
struct GpuColumns<'a> {
    hosts: TextColumn<'a>,
    starts: &'a TimestampMillisecondArray,
    lengths: &'a UInt32Array,
    models: TextColumn<'a>,
    instances: &'a UInt32Array,
    /// Columns of [`OF_RUN`].
    runs: Vec<TextColumn<'a>>,
    further: Option<&'a ListArray>,
    observed: &'a Float64Array,
    busy: &'a Float64Array,
    sm_active: &'a Float64Array,
}

impl GpuColumns<'_> {
    /// Computes the sums of an allocated GPU.
    fn allocated(&self, row: usize) -> FleetSums {
        let length_s = f64::from(self.lengths.value(row));
        let observed_s = self.observed.value(row).min(length_s);
        let known = |sums: &Float64Array| sums.is_valid(row).then(|| sums.value(row));
        let (busy, sm_active) = (known(self.busy), known(self.sm_active));
        let busy_s = busy.unwrap_or(0.0);
        let is_idle = busy.is_some_and(|busy_s| busy_s < IDLE_BUSY_MAX * observed_s);
        FleetSums {
            deployed_s: length_s,
            schedulable_s: length_s,
            on_busy_hosts_s: length_s,
            allocated_s: length_s,
            busy_s,
            sm_active_s: sm_active.unwrap_or(0.0),
            busy_observed_s: busy.map_or(0.0, |_| observed_s),
            sm_observed_s: sm_active.map_or(0.0, |_| observed_s),
            busy_sm_unknown_s: sm_active.map_or(busy_s, |_| 0.0),
            held_idle_s: if is_idle { observed_s } else { 0.0 },
        }
    }
}

impl<'a, 'q> HourSums<'a, 'q> {
    /// Prepares sums of the rows of an hour, which are added to `groups`.
    pub fn new(pools: &'a Pools, groups: &'a mut GroupedSums<'q>, hour: u64) -> Self {
        let (host_numbers, hosts) = Default::default();
        Self { pools, groups, start: hour * HOUR_S, host_numbers, hosts }
    }

    /// Adds rows of the table of GPUs.
    ///
    /// # Errors
    /// If a column is missing or has another type.
    pub fn add(&mut self, batch: &RecordBatch, path: &Path) -> Result<(), Error> {
        let groups = &mut *self.groups;
        let models =
            TextColumn::new(batch, "model", path, |text| groups.number(Dimension::Model, text))?;
        let mut runs = Vec::new();
        for dimension in OF_RUN {
            let number = |text: &str| groups.number(dimension, text);
            runs.push(TextColumn::new(batch, dimension.name(), path, number)?);
        }
        let columns = GpuColumns {
            hosts: TextColumn::new(batch, "host", path, |text| self.number_host(text))?,
            starts: column(batch, "start", path)?,
            lengths: column(batch, "length_s", path)?,
            models,
            instances: column(batch, "instance", path)?,
            runs,
            further: batch.column_by_name(FURTHER_RUNS).and_then(|array| array.as_list_opt()),
            observed: column(batch, "observed_s", path)?,
            busy: column(batch, "busy_s", path)?,
            sm_active: column(batch, "sm_active_s", path)?,
        };
        for row in 0..batch.num_rows() {
            if columns.instances.is_null(row) {
                self.add_row(&columns, row, path)?;
            }
        }
        Ok(())
    }

    fn number_host(&mut self, host: &str) -> u32 {
        if let Some(&number) = self.host_numbers.get(host) {
            return number;
        }
        let number = u32::try_from(self.hosts.len()).unwrap_or(EXCLUDED);
        self.host_numbers.insert(host.to_owned(), number);
        self.hosts.push(HostHour {
            pool: self.groups.number(Dimension::Pool, self.pools.pool_of(host)),
            member: self.groups.number(Dimension::Host, host),
            busy: vec![0; HOUR_S.div_ceil(64) as usize],
            idle: Vec::new(),
        });
        number
    }

    fn add_row(&mut self, columns: &GpuColumns, row: usize, path: &Path) -> Result<(), Error> {
        let start = u64::try_from(columns.starts.value(row) / 1000).unwrap_or(0);
        let second = start.wrapping_sub(self.start);
        if second >= HOUR_S || !self.groups.query.range.contains(&start) {
            return Ok(());
        }
        let second = second as usize;
        let host = &mut self.hosts[columns.hosts.number(row) as usize];
        let [workflow, user, run] = [0, 1, 2].map(|at| columns.runs[at].number(row));
        let members = [host.pool, columns.models.number(row), workflow, user, run, host.member];
        let key = GroupKey { start: self.groups.query.bucket(start), members };
        if columns.runs[2].codes.is_null(row) {
            if !members.contains(&EXCLUDED) {
                let length_s = f64::from(columns.lengths.value(row));
                let place = self.groups.place(key);
                let sums = self.groups.sums_at(place);
                sums.deployed_s += length_s;
                sums.schedulable_s += length_s;
                match host.idle.last_mut() {
                    Some(last) if last.second == second && last.place == place => {
                        last.length_s += length_s;
                    }
                    _ => host.idle.push(IdleSpan { second, place, length_s }),
                }
            }
            return Ok(());
        }
        host.busy[second / 64] |= 1 << (second % 64);
        let mut sums = columns.allocated(row);
        if let Some(further) = columns.further.filter(|further| further.is_valid(row)) {
            let further = further.value(row);
            // Runs that share a GPU have equal shares, because their own activity is unknown.
            sums = sums.scale(1.0 / (1 + further.len()) as f64);
            let wrong = || Error::Column { path: path.to_owned(), column: FURTHER_RUNS };
            let structs = further.as_struct_opt().ok_or_else(wrong)?;
            for at in 0..further.len() {
                let mut key = key;
                for dimension in OF_RUN {
                    let texts = structs.column_by_name(dimension.name());
                    let texts: Option<&StringArray> = texts.and_then(|t| t.as_string_opt());
                    let text = texts.ok_or_else(wrong)?.value(at);
                    key.members[dimension as usize] = self.groups.number(dimension, text);
                }
                self.groups.add(key, &sums);
            }
        }
        self.groups.add(key, &sums);
        Ok(())
    }

    /// Completes the sums, after all rows of the hour were added.
    pub fn finish(self) {
        for host in &self.hosts {
            let is_busy =
                |idle: &&IdleSpan| host.busy[idle.second / 64] >> (idle.second % 64) & 1 == 1;
            for idle in host.idle.iter().filter(is_busy) {
                self.groups.sums_at(idle.place).on_busy_hosts_s += idle.length_s;
            }
        }
    }
}
