//! Describes truncated recordings, and shortens a trace to its covered part. The coverage itself is
//! determined by an analysis.

use super::{Slices, Sparse, Trace};

/// A recording of which events are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutRecording {
    pub ending: Ending,
    /// Offset in the uncompressed text after the last event that was read.
    pub byte: u64,
    /// Description of the text at that offset.
    pub why: String,
    /// The part in which all device rows are present; `None` until it is determined.
    pub covered: Option<Covered>,
    /// First start and last end of the rows, in absolute nanoseconds. Set together with `covered`.
    pub span: Option<(i64, i64)>,
}

/// How the list of events of a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The text ends inside the list of events.
    WithinEvents,
    /// The text ends after the list of events; only keys of the header are missing.
    BehindEvents,
    /// A bare list of events is not closed, and the text ends between two events. The file was
    /// truncated there, or its writer never closes lists.
    Unclosed,
    /// Events are missing at unknown positions.
    Damaged,
}

/// The part of a truncated recording in which all device rows are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// All events before this time, in absolute nanoseconds.
    Until(i64),
    /// Too little to analyze.
    Nothing,
}

impl Trace {
    /// Whether the trace can be analyzed. False only for a truncated recording whose remaining part
    /// is too small.
    pub fn is_usable(&self) -> bool {
        self.cut.as_ref().is_none_or(|cut| cut.covered != Some(Covered::Nothing))
    }

    /// Removes all events after a time. Slices that reach past it are shortened, and count as
    /// [`Slices::unfinished`].
    pub fn keep_until(&mut self, end: i64) {
        let is_late = |row: &u32| self.slices.start(*row) >= end;
        let late: Vec<u32> = self.rows().filter(is_late).collect();
        self.slices.remove(&late);
        self.slices.end_at(end);
        self.flows.retain(|flow| flow.time < end);
        self.counters.retain(|counter| counter.time < end);
        self.instants.retain(|instant| instant.time < end);
        self.allocations.retain(|allocation| allocation.time < end);
    }

    /// Removes all events, for a recording with too little coverage.
    pub fn keep_nothing(&mut self) {
        self.slices = Slices::default();
        self.flows.clear();
        self.counters.clear();
        self.instants.clear();
        self.allocations.clear();
    }
}

impl Slices {
    /// Shortens slices that reach past a time.
    fn end_at(&mut self, end: i64) {
        let mut unfinished = Sparse::default();
        for row in 0..self.len() as u32 {
            let is_over = self.end(row) > end;
            if is_over {
                self.duration[row as usize] = (end - self.start(row)).max(0);
            }
            if is_over || self.unfinished.get(row).is_some() {
                unfinished.push(row, ());
            }
        }
        self.unfinished = unfinished;
    }
}

#[cfg(test)]
mod tests {
    use crate::store::{NewSlice, Trace};

    fn trace() -> Trace {
        let mut trace = Trace::default();
        for (category, span) in [
            ("cpu_op", (0, 90)),
            ("cuda_runtime", (10, 12)),
            ("kernel", (20, 60)),
            ("cpu_op", (50, 55)),
        ] {
            trace.push(&NewSlice::new(category, category, (1, 1), span));
        }
        trace
    }

    #[test]
    fn slices_are_shortened_to_the_covered_part() {
        let mut trace = trace();
        trace.keep_until(50);
        let spans: Vec<_> =
            trace.rows().map(|row| (trace.slices.start(row), trace.slices.end(row))).collect();
        assert_eq!(spans, [(0, 50), (10, 12), (20, 50)]);
        let unfinished: Vec<u32> = trace.slices.unfinished.iter().map(|(row, ())| row).collect();
        assert_eq!(unfinished, [0, 2]);
    }
}
