//! When graphs were captured. Knows no scope.

use trace::store::{StringId, Trace, TrackId};

use crate::frames::Frames;
use crate::interval::Interval;

/// Frames of Python that capture a graph.
const CAPTURING: &str = "torch/cuda/graphs.py(";

/// When graphs were captured, by thread: what is launched then does not run.
///
/// # Cost
/// Linear in the rows of the trace.
pub fn of(trace: &Trace, frames: &Frames) -> Vec<(TrackId, Interval)> {
    // Whether a call of a name begins or ends a capture.
    let begins = |text: &str| {
        let is_end = text.contains("StreamEndCapture").then_some(false);
        text.contains("StreamBeginCapture").then_some(true).or(is_end)
    };
    let names: Vec<Option<bool>> = trace.strings.iter().map(begins).collect();
    let mut found = Vec::new();
    let mut calls: Vec<(TrackId, i64, i64, bool)> = trace
        .rows()
        .filter(|row| trace.kind(*row).is_call())
        .filter_map(|row| {
            let begins = names[trace.slices.name[row as usize].0 as usize]?;
            let track = trace.slices.track[row as usize];
            Some((track, trace.slices.start(row), trace.slices.end(row), begins))
        })
        .collect();
    calls.sort_unstable();
    let mut begun: Option<(TrackId, i64)> = None;
    for (track, start, end, begins) in calls {
        match begun.filter(|(of, _)| *of == track) {
            _ if begins => begun = Some((track, start)),
            Some((_, from)) => {
                found.push((track, (from, end)));
                begun = None;
            }
            // It began before the recording did.
            None => found.push((track, (i64::MIN / 2, end))),
        }
    }
    let is_capturing = |name: StringId| {
        let name = trace.strings.get(name);
        let function = ["__enter__", "capture_begin", "capture_end"];
        name.contains(CAPTURING) && function.iter().any(|function| name.ends_with(function))
    };
    for frame in frames.all().iter().filter(|frame| is_capturing(frame.name)) {
        let Some(row) = frame.row else { continue };
        let track = trace.slices.track[row as usize];
        found.push((track, (trace.slices.start(row), trace.slices.end(row))));
    }
    found
}
