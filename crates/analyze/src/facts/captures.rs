//! Finds the times in which a thread captured a CUDA graph. Launches during a capture are recorded
//! into the graph and do not run, so they have no device work.

use std::collections::BTreeMap;

use trace::store::{StringId, Trace, TrackId};

use crate::facts::frames::Frames;
use crate::facts::interval::{self, Interval};
use crate::facts::named::names;

/// Start of the names of Python frames that capture a graph.
const CAPTURING: &str = "torch/cuda/graphs.py(";

/// Times of CUDA graph capture, by thread. A launch during a capture is recorded into the graph and
/// does not run.
pub struct Captures {
    /// Disjoint capture times of each thread, sorted by time.
    spans: BTreeMap<TrackId, Vec<Interval>>,
}

impl Captures {
    /// Finds the captures of a complete recording. Captures show as pairs of begin and end calls,
    /// as an end call whose begin came before the recording, or as Python frames.
    ///
    /// # Cost
    /// The cost is linear in the rows of the trace, and `O(n log n)` in the captures.
    pub fn new(trace: &Trace, frames: &Frames) -> Self {
        let is_capturing = names(trace, |name| {
            let function = ["__enter__", "capture_begin", "capture_end"];
            name.contains(CAPTURING) && function.iter().any(|function| name.ends_with(function))
        });
        let is_asked_for = |name: StringId| is_capturing[name.0 as usize];
        let frames = frames.all().iter().filter(|frame| is_asked_for(frame.name));
        let frame_spans = |row: u32| {
            let slices = &trace.slices;
            (slices.track[row as usize], (slices.start(row), slices.end(row)))
        };
        let mut found = from_calls(trace, Some(i64::MIN / 2));
        found.extend(frames.filter_map(|frame| frame.row).map(frame_spans));
        Self::from_spans(found)
    }

    /// Finds captures of which both the begin call and the end call were recorded. In a recording
    /// with missing rows, an end call alone does not show when the capture began.
    ///
    /// # Cost
    /// The cost is linear in the rows of the trace.
    pub fn from_pairs(trace: &Trace) -> Self {
        Self::from_spans(from_calls(trace, None))
    }

    fn from_spans(found: Vec<(TrackId, Interval)>) -> Self {
        let mut spans: BTreeMap<TrackId, Vec<Interval>> = BTreeMap::new();
        for (track, span) in found {
            spans.entry(track).or_default().push(span);
        }
        for of_track in spans.values_mut() {
            *of_track = interval::union(std::mem::take(of_track));
        }
        Self { spans }
    }

    /// Returns whether a launch call was captured into a graph, so that its work did not run.
    pub fn contains(&self, trace: &Trace, call: u32) -> bool {
        let start = trace.slices.start(call);
        let spans = self.spans.get(&trace.slices.track[call as usize]);
        spans.is_some_and(|spans| interval::length_within(spans, (start, start + 1)) > 0)
    }

    /// Iterates over the captures of each thread, sorted by time.
    pub fn by_thread(&self) -> impl Iterator<Item = (TrackId, &[Interval])> {
        self.spans.iter().map(|(track, spans)| (*track, spans.as_slice()))
    }
}

/// Pairs the calls that begin and end a capture. An end call without a begin call counts from
/// `unknown_start`, if that is given.
fn from_calls(trace: &Trace, unknown_start: Option<i64>) -> Vec<(TrackId, Interval)> {
    let begins = names(trace, |name| name.contains("StreamBeginCapture"));
    let ends = names(trace, |name| name.contains("StreamEndCapture"));
    let is_edge = |row: &u32| {
        let name = trace.slices.name[*row as usize].0 as usize;
        (begins[name] || ends[name]) && trace.kind(*row).is_call()
    };
    let edge = |row: u32| {
        let slices = &trace.slices;
        let is_begin = begins[slices.name[row as usize].0 as usize];
        (slices.track[row as usize], slices.start(row), slices.end(row), is_begin)
    };
    let mut edges: Vec<(TrackId, i64, i64, bool)> =
        trace.rows().filter(is_edge).map(edge).collect();
    // The sort groups the calls by thread, because a capture begins and ends on one thread.
    edges.sort_unstable();
    let mut found = Vec::new();
    let mut begun: Option<(TrackId, i64)> = None;
    for (track, start, end, is_begin) in edges {
        if is_begin {
            begun = Some((track, start));
            continue;
        }
        // A begin on another thread belongs to a capture whose end was not recorded, so it is
        // dropped.
        let from = begun.take().filter(|(of, _)| *of == track).map(|(_, from)| from);
        found.extend(from.or(unknown_start).map(|from| (track, (from, end))));
    }
    found
}
