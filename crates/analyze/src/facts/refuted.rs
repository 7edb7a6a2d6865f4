//! Corrects durations that other rows contradict. A stream runs its work one after the other. If
//! work reaches far past the next start on its stream, the profiler recorded a wrong end. A host is
//! recorded as long as it runs. If a host row ends long after all other rows, its end is wrong as
//! well.

use std::collections::HashMap;

use trace::store::{EventKind, Loss, Trace};

use crate::facts::window;

/// A duration is corrected if the work reaches at least this far past the next start on its stream.
/// Smaller overlaps come from rounding by the profiler and from clock jitter.
pub(crate) const REFUTED_NS: i64 = 1_000_000;

/// Minimum number of rows, because fewer do not show when the recording ended.
const ROWS_MIN: usize = 10;

/// A host row that ends long after all other rows of its recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Straggler {
    pub row: u32,
    /// Time at which the last of the other rows ends, in absolute nanoseconds.
    pub others_end: i64,
}

/// Finds the row that ends later than all others, if its excess is larger than the time from the
/// first start to the last end of the others. Rows of devices are found too, because a kernel may
/// hang.
///
/// # Cost
/// The cost is linear in the rows of the trace.
pub(crate) fn find_straggler(trace: &Trace) -> Option<Straggler> {
    let slices = &trace.slices;
    let lost = window::lost_start(trace);
    let counts = |row: &u32| {
        let is_mark = matches!(trace.kind(*row), EventKind::Overhead | EventKind::Window);
        !is_mark && Some(slices.start(*row)) != lost
    };
    let row = trace.rows().filter(counts).max_by_key(|row| slices.end(*row))?;
    let (mut count, mut start, mut end) = (0, i64::MAX, i64::MIN);
    for other in trace.rows().filter(counts).filter(|other| *other != row) {
        count += 1;
        start = start.min(slices.start(other));
        end = end.max(slices.end(other));
    }
    let excess = slices.end(row).checked_sub(end)?;
    let is_far = count >= ROWS_MIN && excess >= REFUTED_NS && excess > end.saturating_sub(start);
    is_far.then_some(Straggler { row, others_end: end })
}

/// Shortens durations that other rows contradict. Device work ends where the next work of its
/// stream starts, and a host row ends where everything else ends. Each corrected row counts as a
/// loss.
///
/// Work of CUDA graphs stays unchanged, because profilers show parallel branches of a graph on one
/// stream. Work whose stream is unknown stays unchanged too.
///
/// # Cost
/// The cost is `O(n log n)` in the device rows of the trace.
pub fn clip(trace: &mut Trace) {
    clip_streams(trace);
    // Each pass finds only one row, but several rows may have a wrong end.
    while let Some(Straggler { row, others_end }) = find_straggler(trace) {
        let start = trace.slices.start(row);
        if trace.kind(row).is_device_work() || start >= others_end {
            return;
        }
        let (name, end) = (trace.name(row).to_owned(), trace.slices.end(row));
        trace.slices.duration[row as usize] = others_end - start;
        trace.losses.count(Loss::RefutedDuration, || {
            let excess_ms = (end - others_end) as f64 / 1e6;
            format!("row {row}: {name} ends {excess_ms:.3} ms after everything else; cut there")
        });
    }
}

fn clip_streams(trace: &mut Trace) {
    let mut rows: Vec<u32> = trace.rows().filter(|row| trace.kind(*row).is_device_work()).collect();
    rows.sort_by_key(|row| (trace.slices.start(*row), *row));
    let mut last: HashMap<(i32, i32), u32> = HashMap::new();
    for row in rows {
        let stream = (trace.device(row), trace.stream(row));
        // A negative stream number means that the stream is unknown, so rows with it may run at the
        // same time.
        let Some(before) = last.insert(stream, row).filter(|_| stream.1 >= 0) else { continue };
        let (start, end) = (trace.slices.start(row), trace.slices.end(before));
        let is_of_graph = |row: u32| trace.slices.graph_node.get(row).is_some();
        if end - start < REFUTED_NS || is_of_graph(before) || is_of_graph(row) {
            continue;
        }
        let name = trace.name(before).to_owned();
        trace.slices.duration[before as usize] = start - trace.slices.start(before);
        trace.losses.count(Loss::RefutedDuration, || {
            let excess_ms = (end - start) as f64 / 1e6;
            format!(
                "row {before}: {name} reaches {excess_ms:.3} ms past the next start on stream {}; cut there",
                stream.1
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::clip;
    use trace::store::{Loss, NewSlice, Trace};

    #[test]
    fn work_ends_where_the_next_of_its_stream_starts() {
        let mut trace = Trace::default();
        for (name, stream, span) in [
            ("copy", 7, (0, 3_150_000_000)),
            ("gemm", 7, (10_000_000, 12_000_000)),
            ("rounded", 7, (11_999_000, 14_000_000)),
            ("other stream", 8, (5_000_000, 90_000_000)),
        ] {
            trace.push(&NewSlice::new("kernel", name, (0, stream), span));
        }
        clip(&mut trace);
        let ends: Vec<i64> = trace.rows().map(|row| trace.slices.end(row)).collect();
        assert_eq!(ends, [10_000_000, 12_000_000, 14_000_000, 90_000_000]);
        assert_eq!(trace.losses.count_of(Loss::RefutedDuration), 1);
    }
}
