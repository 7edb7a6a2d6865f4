//! Describes truncated recordings, and shortens a trace to its covered part. An analysis in another
//! crate determines how far the recording is covered.

use super::{Slices, Sparse, Trace};

/// Describes a recording in which some events are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutRecording {
    pub ending: Ending,
    /// Offset in the uncompressed text after the last event that was read.
    pub byte: u64,
    /// Description of the text at the offset [`CutRecording::byte`], for messages.
    pub why: String,
    /// The part of the recording in which all device rows are present, or `None` until an analysis
    /// determines it.
    pub covered: Option<Covered>,
    /// First start and last end of the rows, in absolute nanoseconds, which an analysis sets
    /// together with [`CutRecording::covered`].
    pub span: Option<(i64, i64)>,
}

/// Tells how the list of events in a truncated recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The text ends inside the list of events.
    WithinEvents,
    /// The text ends after the list of events, so only keys of the header are missing.
    BehindEvents,
    /// The file is a bare list of events that is not closed, and the text ends between two events.
    /// Either the file was truncated there, or its writer never closes lists.
    Unclosed,
    /// Events are missing at unknown positions in the list.
    Damaged,
}

/// The part of a truncated recording in which all device rows are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// All events before this time, in absolute nanoseconds, are covered.
    Until(i64),
    /// The covered part is too short to analyze.
    Nothing,
}

impl Trace {
    /// Whether the trace can be analyzed. A truncated recording cannot be analyzed if its covered
    /// part is too short.
    pub fn is_usable(&self) -> bool {
        self.cut.as_ref().is_none_or(|cut| cut.covered != Some(Covered::Nothing))
    }

    /// Removes all events that start at or after a time. A slice that reaches past the time is
    /// shortened and marked in [`Slices::unfinished`].
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

    /// Removes all events of a recording whose covered part is too short to analyze.
    pub fn keep_nothing(&mut self) {
        self.slices = Slices::default();
        self.flows.clear();
        self.counters.clear();
        self.instants.clear();
        self.allocations.clear();
    }
}

impl Slices {
    /// Shortens the slices that reach past a time, and marks them as unfinished.
    fn end_at(&mut self, end: i64) {
        // Sparse columns accept rows in ascending order only, so the column is built anew.
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
