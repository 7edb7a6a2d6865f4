//! Measures the bandwidth of copies and memsets by kind: their bytes, time, rate, and how many run
//! at once.
//!
//! Rows that reach beyond the window count in full, because their bytes cannot be divided.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use schema::TableRow;
use serde::Serialize;
use trace::store::{EventKind, StringId};

use crate::facts::interval::{self, Interval};
use crate::facts::scope::Scope;

/// All copies or memsets of one kind on one device.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct Bandwidth {
    pub rank: u32,
    pub device: i32,
    /// Kind of the rows, such as `Memcpy HtoD (Pageable -> Device)`.
    pub kind: String,
    /// Number of copies or memsets that overlap the window.
    pub count: u64,
    /// Number of rows whose bytes are unknown. No other column includes them.
    pub without_bytes_count: u64,
    pub bytes: u64,
    pub time_ns: i64,
    /// Time in which at least one of the rows runs.
    pub busy_ns: i64,
    /// Bytes divided by `time_ns`, which is the bandwidth of a single row.
    pub gb_per_s: Option<f64>,
    /// Bytes divided by `busy_ns`, which is the bandwidth of all rows together while at least one
    /// runs.
    pub gb_per_s_together: Option<f64>,
    /// Mean number of rows that run at once, over `busy_ns`.
    pub concurrency_mean: Option<f64>,
    /// Maximum number of rows that run at once.
    pub concurrency_max: u32,
}

/// Copies or memsets of one kind and of about the same size on one device.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct SizeClass {
    pub rank: u32,
    pub device: i32,
    pub kind: String,
    /// Smallest size of the class in bytes, which is 0 or a power of two.
    pub bytes_from: u64,
    /// Largest size of the class in bytes, which is one less than the next power of two.
    pub bytes_to: u64,
    pub count: u64,
    pub bytes: u64,
    pub time_ns: i64,
    pub gb_per_s: Option<f64>,
}

/// Computes the bandwidth of a rank's copies and memsets, sorted by device, then by time in
/// descending order.
///
/// # Cost
/// The cost is `O(n log n)` in the copies and memsets.
pub fn measure_bandwidth(scope: &Scope<'_>) -> Vec<Bandwidth> {
    let mut rows: Vec<Bandwidth> = groups(scope)
        .into_iter()
        .map(|((device, name), group)| group.bandwidth(scope, device, name))
        .collect();
    rows.sort_by(|a, b| (a.device, -a.time_ns, &a.kind).cmp(&(b.device, -b.time_ns, &b.kind)));
    rows
}

/// Groups copies and memsets by powers of two of their sizes. There is one row per device, kind and
/// size class, and empty classes are left out.
pub fn by_size(scope: &Scope<'_>) -> Vec<SizeClass> {
    let trace = scope.trace;
    let mut classes = BTreeMap::<(i32, &str, u32), (u64, u64, i64)>::new();
    for ((device, name), group) in groups(scope) {
        for (bytes, (from, to)) in group.sized {
            // Bits of the size: 0 for an empty copy, and n for sizes from 2^(n−1) to 2^n − 1.
            let log = u64::BITS - bytes.leading_zeros();
            let sums = classes.entry((device, trace.strings.get(name), log)).or_default();
            *sums = (sums.0 + 1, sums.1.saturating_add(bytes), sums.2 + (to - from));
        }
    }
    let row = |((device, kind, log), (count, bytes, time_ns)): (_, _)| {
        let kind: &str = kind;
        SizeClass {
            rank: trace.rank,
            device,
            kind: kind.to_owned(),
            bytes_from: if log == 0 { 0 } else { 1_u64 << (log - 1) },
            bytes_to: u64::MAX.checked_shr(u64::BITS - log).unwrap_or_default(),
            count,
            bytes,
            time_ns,
            gb_per_s: ratio(bytes as f64, time_ns),
        }
    };
    classes.into_iter().map(row).collect()
}

/// Copies and memsets of one device and name, with the number of those whose size the trace lacks.
#[derive(Default)]
struct BandwidthGroup {
    /// Bytes and span of each row with a known size, sorted by start.
    sized: Vec<(u64, Interval)>,
    without_bytes_count: u64,
}

fn groups(scope: &Scope<'_>) -> BTreeMap<(i32, StringId), BandwidthGroup> {
    let trace = scope.trace;
    let mut groups = BTreeMap::<(i32, StringId), BandwidthGroup>::new();
    let moves = |row: &&u32| matches!(trace.kind(**row), EventKind::Memcpy | EventKind::Memset);
    for &row in scope.device_rows.iter().filter(moves) {
        let key = (trace.device(row), trace.slices.name[row as usize]);
        let group = groups.entry(key).or_default();
        // A copy that ends after the recording has all its bytes but not all its time, so its
        // bandwidth would be too high.
        let is_whole = trace.slices.unfinished.get(row).is_none();
        match trace.slices.bytes.get(row).filter(|_| is_whole) {
            Some(&bytes) => {
                group.sized.push((bytes, (trace.slices.start(row), trace.slices.end(row))));
            }
            None => group.without_bytes_count += 1,
        }
    }
    groups
}

impl BandwidthGroup {
    fn bandwidth(self, scope: &Scope<'_>, device: i32, name: StringId) -> Bandwidth {
        let bytes = self.sized.iter().fold(0, |sum: u64, (bytes, _)| sum.saturating_add(*bytes));
        let spans: Vec<Interval> = self.sized.iter().map(|(_, span)| *span).collect();
        let time_ns = spans.iter().map(|(from, to)| to - from).sum();
        let concurrency_max = most_at_once(&spans);
        let busy_ns = interval::length(&interval::union(spans));
        Bandwidth {
            rank: scope.trace.rank,
            device,
            kind: scope.trace.strings.get(name).to_owned(),
            count: self.sized.len() as u64 + self.without_bytes_count,
            without_bytes_count: self.without_bytes_count,
            bytes,
            time_ns,
            busy_ns,
            gb_per_s: ratio(bytes as f64, time_ns),
            gb_per_s_together: ratio(bytes as f64, busy_ns),
            concurrency_mean: ratio(time_ns as f64, busy_ns),
            concurrency_max,
        }
    }
}

/// Returns the maximum number of spans that overlap at any moment. The spans must be sorted by
/// start, and empty spans do not count.
fn most_at_once(spans: &[Interval]) -> u32 {
    let mut most = 0;
    let mut heap = BinaryHeap::new();
    for &(from, to) in spans.iter().filter(|(from, to)| from < to) {
        while heap.peek().is_some_and(|Reverse(end)| *end <= from) {
            heap.pop();
        }
        heap.push(Reverse(to));
        most = most.max(heap.len());
    }
    most as u32
}

/// Divides an amount by a time and rounds to six decimals. Returns `None` if the time is 0.
fn ratio(amount: f64, ns: i64) -> Option<f64> {
    let ratio = amount / ns as f64;
    (ns > 0).then(|| (ratio * 1e6).round() / 1e6)
}

#[cfg(test)]
mod tests;
