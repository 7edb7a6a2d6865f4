//! Divides the idle time of each stream by cause, judging by launch times alone.

use std::collections::BTreeMap;

use schema::{CellType, TableRow};
use serde::Serialize;

use super::share::{IdleSettings, IdleShare};
use crate::facts::interval::Interval;
use crate::facts::scope::Scope;

/// The reason why a stream was idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum StreamCause {
    /// The work that ended the gap was launched after the gap began.
    HostWait,
    /// The next work was already launched when the gap began, and the gap is short.
    KernelWait,
    /// The next work was already launched when the gap began, but the gap is long. The work waited
    /// for another stream or for room on the device.
    Other,
    /// The launch of the work that ended the gap was not recorded.
    Unlinked,
    /// The gap lies before the first row of the stream in the window.
    Head,
    Tail,
}

/// The part of a stream's idle time that has one cause.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct StreamIdle {
    pub rank: u32,
    pub device: i32,
    pub stream: i32,
    pub cause: StreamCause,
    pub gap_count: u64,
    pub idle_ns: i64,
    /// Share of the stream's idle time, in percent.
    pub idle_pct: Option<f64>,
    pub window_pct: Option<f64>,
    pub min_ns: i64,
    pub p50_ns: i64,
    pub mean_ns: f64,
    pub max_ns: i64,
}

/// State of a stream while its rows are visited in order of time.
struct IdleStream {
    /// The latest end of the rows visited so far.
    busy_until: i64,
    has_row: bool,
    gaps: BTreeMap<StreamCause, Vec<i64>>,
}

pub(super) fn compute_stream_idle(scope: &Scope<'_>, settings: &IdleSettings) -> Vec<StreamIdle> {
    let (start, end) = (scope.window.start, scope.window.end);
    let mut streams = BTreeMap::new();
    for &row in &scope.device_rows {
        let key = (scope.trace.device(row), scope.trace.stream(row));
        let stream = streams.entry(key).or_insert_with(|| IdleStream {
            busy_until: start,
            has_row: false,
            gaps: BTreeMap::new(),
        });
        let (from, to) = scope.clipped(row);
        if from > stream.busy_until {
            let cause = if stream.has_row {
                cause(scope, settings, (stream.busy_until, from), row)
            } else {
                StreamCause::Head
            };
            stream.gaps.entry(cause).or_default().push(from - stream.busy_until);
        }
        stream.busy_until = stream.busy_until.max(to);
        stream.has_row = true;
    }
    let mut rows = Vec::new();
    // The time after the last row is idle too, but no later work shows its cause.
    for (key, mut stream) in streams {
        if stream.busy_until < end {
            stream.gaps.insert(StreamCause::Tail, vec![end - stream.busy_until]);
        }
        rows.extend(causes(scope, key.0, key.1, stream.gaps));
    }
    rows
}

fn cause(
    scope: &Scope<'_>,
    settings: &IdleSettings,
    (from, to): Interval,
    ending: u32,
) -> StreamCause {
    let launched = scope.links().call(ending).map(|call| scope.trace.slices.start(call));
    match launched {
        None => StreamCause::Unlinked,
        Some(launched) if launched > from => StreamCause::HostWait,
        Some(_) if to - from < settings.kernel_wait_ns => StreamCause::KernelWait,
        Some(_) => StreamCause::Other,
    }
}

fn causes(
    scope: &Scope<'_>,
    device: i32,
    stream: i32,
    gaps: BTreeMap<StreamCause, Vec<i64>>,
) -> impl Iterator<Item = StreamIdle> {
    let idle_ns: i64 = gaps.values().flatten().sum();
    gaps.into_iter().map(move |(cause, gaps)| {
        let IdleShare { spread, idle_pct, window_pct } = IdleShare::new(scope, gaps, idle_ns);
        StreamIdle {
            rank: scope.trace.rank,
            device,
            stream,
            cause,
            gap_count: spread.count,
            idle_ns: spread.total,
            idle_pct,
            window_pct,
            min_ns: spread.min,
            p50_ns: spread.p50,
            mean_ns: spread.mean,
            max_ns: spread.max,
        }
    })
}
