//! Gaps of each stream by cause: `get_idle_time_breakdown`.

use serde::Serialize;

use super::{MICROSECOND, View, ViewRow, rounded};

/// Shorter gaps are `kernel_wait`: that tool's default, 30 µs.
pub const IDLE_THRESHOLD_NS: i64 = 30_000;

/// Categories of the rows whose gaps count.
const CATEGORIES: [&str; 7] =
    ["kernel", "Kernel", "gpu_memset", "Memset", "gpu_memcpy", "Memcpy", "mtia_ccp_events"];

/// Why a stream was idle, as that tool says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleCause {
    /// The call that launched the next row began after the previous row's end.
    HostWait,
    /// The gap is below the threshold.
    KernelWait,
    /// Anything else, and the first row of every stream, which has no gap.
    Other,
}

/// A row of `get_idle_time_breakdown`: only causes that occur have one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Idle {
    pub rank: u32,
    /// `stream`, in the order of first appearance.
    pub stream: i32,
    pub cause: IdleCause,
    /// `idle_time`: the sum of the gaps from the previous row's end, negative ones included.
    pub idle_ns: i64,
    /// `idle_time_ratio`, a number from 0 to 1 there: share of the stream's gaps in whole percent;
    /// `None` where they sum to nothing.
    pub idle_pct: Option<f64>,
}

/// Time between two rows of a stream.
struct Gap {
    /// When the call of the later row began.
    call_us: Option<i64>,
    start_us: i64,
    end_us: i64,
}

/// `get_idle_time_breakdown(ranks=all)` with a threshold in nanoseconds.
///
/// # Cost
/// `O(n log n)` in the device rows.
pub fn idle(views: &[View<'_>], threshold_ns: i64) -> Vec<Idle> {
    views.iter().flat_map(|view| idle_of(view, threshold_ns)).collect()
}

fn idle_of(view: &View<'_>, threshold_ns: i64) -> Vec<Idle> {
    let mut rows: Vec<ViewRow> =
        view.device.iter().filter(|row| counts(view, row.row)).copied().collect();
    let mut streams: Vec<i32> = Vec::new();
    for row in &rows {
        if !streams.contains(&row.stream) {
            streams.push(row.stream);
        }
    }
    rows.sort_by_key(|row| (row.stream, row.start_us));
    let stream_rows = |stream: i32| {
        let from = rows.partition_point(|row| row.stream < stream);
        let behind = rows.partition_point(|row| row.stream <= stream);
        &rows[from..behind]
    };
    let of = |stream: &i32| of_stream(view, stream_rows(*stream), threshold_ns);
    streams.iter().flat_map(of).collect()
}

/// The rows of one stream, by start.
fn of_stream(view: &View<'_>, rows: &[ViewRow], threshold_ns: i64) -> Vec<Idle> {
    let mut sums = [None, None, Some(0)];
    let mut add = |cause: IdleCause, gap: i64| *sums[cause as usize].get_or_insert(0) += gap;
    for (at, row) in rows.iter().enumerate() {
        let call_us = view.call_start_us(row.row);
        if let Some(previous) = at.checked_sub(1) {
            let gap = Gap { call_us, start_us: rows[previous].end_us(), end_us: row.start_us };
            add(gap.cause(threshold_ns), gap.length_us());
        }
        if row.copies > 1 {
            // Each copy follows itself.
            let gap = Gap { call_us, start_us: row.end_us(), end_us: row.start_us };
            let times = row.copies as i64 - 1;
            add(gap.cause(threshold_ns), gap.length_us().saturating_mul(times));
        }
    }
    let total: i64 = sums.iter().flatten().sum();
    let causes = [IdleCause::HostWait, IdleCause::KernelWait, IdleCause::Other];
    let present = causes.into_iter().zip(sums).filter_map(|(cause, sum)| Some((cause, sum?)));
    present
        .map(|(cause, sum)| Idle {
            rank: view.rank(),
            stream: rows[0].stream,
            cause,
            idle_ns: sum.saturating_mul(MICROSECOND),
            idle_pct: rounded(100.0 * (sum as f64 / total as f64), 0),
        })
        .collect()
}

impl Gap {
    fn length_us(&self) -> i64 {
        self.end_us - self.start_us
    }

    fn cause(&self, threshold_ns: i64) -> IdleCause {
        if self.call_us.is_some_and(|call| call > self.start_us) {
            IdleCause::HostWait
        } else if self.length_us().saturating_mul(MICROSECOND) < threshold_ns {
            IdleCause::KernelWait
        } else {
            IdleCause::Other
        }
    }
}

fn counts(view: &View<'_>, row: u32) -> bool {
    let category = view.trace.slices.category[row as usize];
    CATEGORIES.contains(&view.trace.categories[usize::from(category)].name.as_str())
}
