//! Which rows of a trace Holistic Trace Analysis keeps, when they run, and what launched them.

use std::collections::BTreeSet;

use trace::store::{EventKind, Trace};

/// No row.
const NONE: u32 = u32::MAX;

/// Stands for the stream 4294967295, under which files of 2023 have waits for a whole context.
const WHOLE_CONTEXT: i32 = i32::MAX;

/// One rank as Holistic Trace Analysis sees it.
#[derive(Clone, Debug)]
pub struct View<'a> {
    pub trace: &'a Trace,
    /// What it takes for device work: every kept row with an argument `stream` other than −1,
    /// waits (`cuda_sync`) and operators with a stream included.
    pub device: Vec<ViewRow>,
    /// The other kept rows.
    pub host: Vec<ViewRow>,
    /// Whether rows from the last step on were dropped.
    pub is_trimmed: bool,
    /// Per slice: the row it is linked to, or [`NONE`].
    link: Vec<u32>,
    /// Per slice: whether it is kept.
    kept: Vec<bool>,
}

/// A kept row. Times are whole microseconds of the file, base time not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewRow {
    /// Place among the slices.
    pub row: u32,
    pub start_us: i64,
    /// End rounded down, minus start: may be −1.
    pub duration_us: i64,
    /// Argument `stream`, −1 if there is none. A wait without one has the largest number: files of
    /// 2023 write 4294967295 for waits for a whole context, which that tool takes for a stream.
    pub stream: i32,
    /// How often the row is in the table: trimming joins it to every host row of its correlation.
    pub copies: u64,
}

impl ViewRow {
    /// End.
    pub fn end_us(&self) -> i64 {
        self.start_us + self.duration_us
    }
}

/// The views of a job's ranks, in their order.
///
/// Rows are trimmed on all ranks if their traces name two or more profiler steps. A trimmed rank
/// keeps host rows that start before its last step, and device rows with the correlation id of a
/// kept host row.
///
/// # Cost
/// `O(n log n)` in the rows of each trace.
pub fn views<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> Vec<View<'a>> {
    let traces: Vec<&Trace> = traces.into_iter().collect();
    let steps: BTreeSet<&str> = traces.iter().flat_map(|trace| step_names(trace)).collect();
    let trims = steps.len() >= 2;
    traces.into_iter().map(|trace| View::new(trace, trims)).collect()
}

impl<'a> View<'a> {
    fn new(trace: &'a Trace, trims: bool) -> Self {
        let rows: Vec<ViewRow> = trace
            .rows()
            .filter(|row| is_read(trace, *row))
            .map(|row| ViewRow::new(trace, row))
            .collect();
        let (work, calls): (Vec<ViewRow>, Vec<ViewRow>) =
            rows.iter().partition(|row| is_linked_as_device(trace, row));
        let link = links(trace, &calls, &work);
        let is_trimmed = trims && !calls.is_empty();
        let rows = if is_trimmed { trimmed(trace, work, calls) } else { rows };
        let mut kept = vec![false; trace.slices.len()];
        for row in &rows {
            kept[row.row as usize] = true;
        }
        let (device, host) = rows.into_iter().partition(|row| row.stream != -1);
        Self { trace, device, host, is_trimmed, link, kept }
    }

    /// The rank.
    pub fn rank(&self) -> u32 {
        self.trace.rank
    }

    /// Whether a row points to another one. The first event of a file can never be pointed to.
    pub(super) fn is_linked(&self, row: u32) -> bool {
        !matches!(self.link[row as usize], 0 | NONE)
    }

    /// When the call of a device row began, microseconds.
    ///
    /// A device row with a correlation id that no call has is joined to the first event of the
    /// file, because 0 stands for "the call is not there" and is that event's place as well.
    pub(super) fn call_start_us(&self, row: u32) -> Option<i64> {
        self.trace.slices.correlation(row)?;
        let call = match self.link[row as usize] {
            NONE => 0,
            call => call,
        };
        self.kept[call as usize].then(|| start_us(self.trace, call))
    }
}

impl ViewRow {
    fn new(trace: &Trace, row: u32) -> Self {
        let (start_us, duration_us) = times_us(trace, row);
        // A wait always names its stream; no number of ours holds the one it did not keep.
        let without = || if trace.kind(row) == EventKind::Sync { WHOLE_CONTEXT } else { -1 };
        let stream = trace.slices.stream(row).unwrap_or_else(without);
        Self { row, start_us, duration_us, stream, copies: 1 }
    }
}

/// Whether a row is read at all: those without a category and of the category `Trace` are not.
fn is_read(trace: &Trace, row: u32) -> bool {
    let category = &trace.categories[usize::from(trace.slices.category[row as usize])];
    !category.name.is_empty() && category.kind != EventKind::Window
}

/// Whether correlation ids take a row for the device's side.
fn is_linked_as_device(trace: &Trace, row: &ViewRow) -> bool {
    let numbered = row.stream >= 0 && trace.slices.correlation(row.row).is_some();
    numbered || matches!(trace.name(row.row), "Event Sync" | "Context Sync")
}

fn is_step(name: &str) -> bool {
    let number = name.strip_prefix("ProfilerStep#");
    number.is_some_and(|number| number.starts_with(|digit: char| digit.is_ascii_digit()))
}

fn step_names(trace: &Trace) -> impl Iterator<Item = &str> {
    let rows = trace.rows().filter(|row| is_read(trace, *row));
    rows.map(|row| trace.name(row)).filter(|name| is_step(name))
}

/// Start rounded up and the duration to the end rounded down, both in double precision of
/// microseconds: with times since 1970 a quarter of a microsecond is all that precision has.
fn times_us(trace: &Trace, row: u32) -> (i64, i64) {
    let start = microseconds(trace.slices.start(row) - trace.header.base_time_ns);
    let end = start + microseconds(trace.slices.duration[row as usize]);
    let start_us = start.ceil() as i64;
    (start_us, end.floor() as i64 - start_us)
}

fn start_us(trace: &Trace, row: u32) -> i64 {
    times_us(trace, row).0
}

/// The double next to a decimal number of microseconds.
fn microseconds(ns: i64) -> f64 {
    ns.div_euclid(super::MICROSECOND) as f64
        + ns.rem_euclid(super::MICROSECOND) as f64 / super::MICROSECOND as f64
}

/// Links calls and device work of one correlation id; of several rows the last one is taken.
fn links(trace: &Trace, calls: &[ViewRow], work: &[ViewRow]) -> Vec<u32> {
    let last_of = |rows: &[ViewRow]| -> Vec<(u64, u32)> {
        let id = |row: &ViewRow| Some((trace.slices.correlation(row.row)?, row.row));
        let mut last: Vec<(u64, u32)> = rows.iter().filter_map(id).collect();
        last.sort_unstable_by(|a, b| (a.0, b.1).cmp(&(b.0, a.1)));
        last.dedup_by_key(|(id, _)| *id);
        last
    };
    let (last_call, last_work) = (last_of(calls), last_of(work));
    let mut link = vec![NONE; trace.slices.len()];
    let mut point = |rows: &[ViewRow], to: &[(u64, u32)]| {
        for row in rows {
            let Some(id) = trace.slices.correlation(row.row) else { continue };
            if let Ok(at) = to.binary_search_by_key(&id, |(id, _)| *id) {
                link[row.row as usize] = to[at].1;
            }
        }
    };
    point(calls, &last_work);
    point(work, &last_call);
    link
}

/// Host rows that start before the last step (before the first host row where no step is named),
/// and device rows joined to them, these first.
fn trimmed(trace: &Trace, work: Vec<ViewRow>, mut calls: Vec<ViewRow>) -> Vec<ViewRow> {
    let starts = |row: &&ViewRow| is_step(trace.name(row.row));
    let last_step = calls.iter().filter(starts).map(|row| row.start_us).max();
    let first_call = || calls.iter().map(|row| row.start_us).min().unwrap_or_default();
    let behind = last_step.unwrap_or_else(first_call);
    calls.retain(|row| row.start_us < behind);
    let correlation = |row: &ViewRow| trace.slices.correlation(row.row);
    let mut ids: Vec<Option<u64>> = calls.iter().map(correlation).collect();
    ids.sort_unstable();
    let count = |id: Option<u64>| {
        let from = ids.partition_point(|known| *known < id);
        ids[from..].partition_point(|known| *known == id) as u64
    };
    let joined = work.into_iter().map(|row| ViewRow { copies: count(correlation(&row)), ..row });
    joined.filter(|row| row.copies > 0).chain(calls).collect()
}
