//! Computes the sums of a fleet from rows of GPUs.
//!
//! A GPU is schedulable if it is allocated, or if its scheduler lets jobs start on its host. A host
//! is busy in an interval if one of its GPUs is allocated. Rows of MIG instances are left out,
//! because their whole GPU has a row too. The sums of a row are divided among the times that its
//! interval touches, in proportion to the seconds.
//!
//! The columns of 13.8 million rows that are read have about 20 bytes per row: two sums of 8 bytes,
//! and codes of texts and times that repeat. Decoding eleven columns at 2 to 3 ns per value and
//! adding up at 10 ns per row take 0.5 s of a core, so 0.25 s are the bound on two cores.

use std::collections::HashMap;
use std::ops::Range;
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
use crate::nodes::NodeStates;
use crate::store::{HOUR_S, column};
use crate::sums::{Dimension, FleetSums, IDLE_BUSY_MAX};

/// Columns of the table of GPUs that are needed.
pub const COLUMNS: [&str; 10] = [
    "host",
    "start",
    "length_s",
    "model",
    "run",
    "workflow",
    "user",
    "observed_s",
    "busy_s",
    "sm_active_s",
];
/// Columns that are needed only where they have values: few GPUs are divided or shared.
pub const OPTIONAL: [&str; 3] = ["instance", FURTHER_RUNS, "sm_occupancy_s"];
/// Seconds of the shortest time for which sums are kept.
pub const MINUTE_S: u64 = 60;
/// The dimensions of a run, which are the names of columns too.
const OF_RUN: [Dimension; 3] = [Dimension::Workflow, Dimension::User, Dimension::Run];

/// Adds up the rows of one hour, which decide together which hosts are busy.
pub struct HourSums<'a, 'q> {
    pools: &'a Pools,
    nodes: &'a NodeStates,
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
    name: String,
    /// A bit for each second at which an interval with an allocated GPU starts.
    busy: Vec<u64>,
    idle: Vec<IdleSpan>,
}

/// Schedulable GPU seconds that nobody holds, of one group and one interval of a host.
struct IdleSpan {
    /// Second of the hour at which the interval starts.
    second: usize,
    place: usize,
    length_s: f64,
}

/// The typed columns of a group of rows.
struct GpuColumns<'a> {
    hosts: TextColumn<'a>,
    /// The starts of intervals in milliseconds since 1970.
    starts: &'a [i64],
    lengths: &'a [u32],
    models: TextColumn<'a>,
    /// The MIG instances, unless no row has one.
    instances: Option<&'a dyn Array>,
    /// Columns of [`OF_RUN`].
    runs: [TextColumn<'a>; 3],
    further: Option<&'a ListArray>,
    observed: &'a [f64],
    busy: &'a Float64Array,
    sm_active: &'a Float64Array,
    /// The occupancy of multiprocessors, unless no row has it.
    occupancy: Option<&'a Float64Array>,
}

/// Whether a row has a value. Unlike the method of arrays, it is inlined.
#[inline]
fn is_valid(array: &Float64Array, row: usize) -> bool {
    array.nulls().is_none_or(|nulls| nulls.is_valid(row))
}

impl GpuColumns<'_> {
    /// Whether a row belongs to a whole GPU instead of a MIG instance.
    #[inline]
    fn is_whole(&self, row: usize) -> bool {
        self.instances.is_none_or(|instances| instances.is_null(row))
    }

    /// Whether two rows belong to the same host, interval, model and run, which only they hold.
    fn are_equal(&self, a: usize, b: usize) -> bool {
        self.starts[a] == self.starts[b]
            && self.lengths[a] == self.lengths[b]
            && self.hosts.is_equal(a, b)
            && self.models.is_equal(a, b)
            && self.runs.iter().all(|texts| texts.is_equal(a, b))
            && self.is_whole(a) == self.is_whole(b)
            && self.further.is_none_or(|further| further.is_null(a) && further.is_null(b))
    }

    /// Returns the end of the rows from `start` on that are equal to it.
    fn span_end(&self, start: usize) -> usize {
        let rest = start + 1..self.starts.len();
        rest.into_iter().find(|&row| !self.are_equal(start, row)).unwrap_or(self.starts.len())
    }

    fn length_s(&self, rows: Range<usize>) -> f64 {
        self.lengths[rows].iter().map(|length_s| f64::from(*length_s)).sum()
    }

    /// Adds up the sums of allocated GPUs.
    fn allocated(&self, rows: Range<usize>) -> FleetSums {
        let mut sums = FleetSums::default();
        for row in rows.clone() {
            let observed_s = self.observed[row].min(f64::from(self.lengths[row]));
            let busy_s = if is_valid(self.busy, row) {
                let busy_s = self.busy.values()[row];
                sums.busy_s += busy_s;
                sums.busy_observed_s += observed_s;
                if busy_s < IDLE_BUSY_MAX * observed_s {
                    sums.held_idle_s += observed_s;
                }
                busy_s
            } else {
                0.0
            };
            if is_valid(self.sm_active, row) {
                sums.sm_active_s += self.sm_active.values()[row];
                sums.sm_observed_s += observed_s;
            } else {
                sums.busy_sm_unknown_s += busy_s;
            }
            if let Some(occupancy) = self.occupancy.filter(|array| is_valid(array, row)) {
                sums.sm_occupancy_s += occupancy.values()[row];
                sums.occupancy_observed_s += observed_s;
            }
        }
        let length_s = self.length_s(rows);
        FleetSums {
            deployed_s: length_s,
            schedulable_s: length_s,
            on_busy_hosts_s: length_s,
            allocated_s: length_s,
            ..sums
        }
    }
}

impl<'a, 'q> HourSums<'a, 'q> {
    /// Prepares sums of the rows of an hour, which are added to `groups`.
    pub fn new(
        pools: &'a Pools,
        nodes: &'a NodeStates,
        groups: &'a mut GroupedSums<'q>,
        hour: u64,
    ) -> Self {
        let (host_numbers, hosts) = Default::default();
        Self { pools, nodes, groups, start: hour * HOUR_S, host_numbers, hosts }
    }

    /// Adds rows of the table of GPUs.
    ///
    /// # Errors
    /// If a column is missing or has another type.
    pub fn add(&mut self, batch: &RecordBatch, path: &Path) -> Result<(), Error> {
        let groups = &*self.groups;
        let texts = |dimension: Dimension| {
            let number = |text: &str| groups.number(dimension, text);
            TextColumn::new(batch, dimension.name(), path, number)
        };
        let models = texts(Dimension::Model)?;
        let runs = [texts(OF_RUN[0])?, texts(OF_RUN[1])?, texts(OF_RUN[2])?];
        let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
        let lengths: &UInt32Array = column(batch, "length_s", path)?;
        let observed: &Float64Array = column(batch, "observed_s", path)?;
        let columns = GpuColumns {
            hosts: TextColumn::new(batch, "host", path, |text| self.number_host(text))?,
            starts: starts.values(),
            lengths: lengths.values(),
            models,
            instances: batch.column_by_name("instance").map(AsRef::as_ref),
            runs,
            further: batch.column_by_name(FURTHER_RUNS).and_then(|array| array.as_list_opt()),
            observed: observed.values(),
            busy: column(batch, "busy_s", path)?,
            sm_active: column(batch, "sm_active_s", path)?,
            occupancy: batch.column_by_name("sm_occupancy_s").and_then(|a| a.as_primitive_opt()),
        };
        let mut start = 0;
        while start < batch.num_rows() {
            let end = columns.span_end(start);
            if columns.is_whole(start) {
                self.add_span(&columns, start..end, path)?;
            }
            start = end;
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
            name: host.to_owned(),
            busy: vec![0; HOUR_S.div_ceil(64) as usize],
            idle: Vec::new(),
        });
        number
    }

    /// Adds rows that are equal but for their sums.
    fn add_span(
        &mut self,
        columns: &GpuColumns,
        rows: Range<usize>,
        path: &Path,
    ) -> Result<(), Error> {
        let row = rows.start;
        let start = u64::try_from(columns.starts[row] / 1000).unwrap_or(0);
        let second = start.wrapping_sub(self.start);
        if second >= HOUR_S {
            return Ok(());
        }
        let second = second as usize;
        let length_s = u64::from(columns.lengths[row]);
        let host = &mut self.hosts[columns.hosts.number(row) as usize];
        let [workflow, user, run] = &columns.runs;
        let members = [
            host.pool,
            columns.models.number(row),
            workflow.number(row),
            user.number(row),
            run.number(row),
            host.member,
        ];
        let query = self.groups.query;
        let times = query.divide(start..start + length_s);
        if run.is_missing(row) {
            if members.contains(&EXCLUDED) {
                return Ok(());
            }
            let is_schedulable = self.nodes.is_schedulable(&host.name, start);
            for (start, seconds) in times {
                let length_s = seconds as f64 * rows.len() as f64;
                let place = self.groups.place(GroupKey { start, members });
                let sums = self.groups.sums_at(place);
                sums.deployed_s += length_s;
                if is_schedulable {
                    sums.schedulable_s += length_s;
                    host.idle.push(IdleSpan { second, place, length_s });
                }
            }
            return Ok(());
        }
        host.busy[second / 64] |= 1 << (second % 64);
        let further = match columns.further.filter(|further| further.is_valid(row)) {
            Some(further) => self.number_further(further, row, path)?,
            None => Vec::new(),
        };
        // Runs that share a GPU have equal shares, because their own activity is unknown.
        let share = 1.0 / (1 + further.len()) as f64;
        let sums = columns.allocated(rows).scale(share);
        for (start, seconds) in times {
            let sums = sums.scale(seconds as f64 / length_s as f64);
            self.groups.add(GroupKey { start, members }, &sums);
            for of_run in &further {
                let mut members = members;
                for (dimension, number) in OF_RUN.into_iter().zip(of_run) {
                    members[dimension as usize] = *number;
                }
                self.groups.add(GroupKey { start, members }, &sums);
            }
        }
        Ok(())
    }

    /// Returns the numbers of [`OF_RUN`] of each further run that shares the GPU of a row.
    fn number_further(
        &self,
        further: &ListArray,
        row: usize,
        path: &Path,
    ) -> Result<Vec<[u32; OF_RUN.len()]>, Error> {
        let further = further.value(row);
        let wrong = || Error::Column { path: path.to_owned(), column: FURTHER_RUNS };
        let structs = further.as_struct_opt().ok_or_else(wrong)?;
        let mut numbers = vec![[0; OF_RUN.len()]; further.len()];
        for (of_run, dimension) in OF_RUN.into_iter().enumerate() {
            let texts = structs.column_by_name(dimension.name());
            let texts: &StringArray = texts.and_then(|t| t.as_string_opt()).ok_or_else(wrong)?;
            for (at, number) in numbers.iter_mut().enumerate() {
                number[of_run] = self.groups.number(dimension, texts.value(at));
            }
        }
        Ok(numbers)
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
