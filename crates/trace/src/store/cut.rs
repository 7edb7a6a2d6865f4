//! How a recording ended early, and how a trace is shortened to the part that is covered. Decides
//! no coverage: that is an analysis.

use super::{Slices, Sparse, Trace};

/// A recording of which events are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutRecording {
    /// How the events ended.
    pub ending: Ending,
    /// Byte of the uncompressed text behind the last event that was read.
    pub byte: u64,
    /// What stands there instead of the end of the trace.
    pub why: String,
    /// Which part has all its device rows; `None` until it is judged.
    pub covered: Option<Covered>,
    /// First start and last end of the rows that were read, absolute nanoseconds; known when it is
    /// judged.
    pub span: Option<(i64, i64)>,
}

/// How the events of a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The text ends within the list of events.
    WithinEvents,
    /// The text ends behind the list of events: only keys of the header are missing.
    BehindEvents,
    /// A bare list of events is not closed, and the text ends between two of them: either the file
    /// was cut there, or its writer never closes the list.
    Unclosed,
    /// Events are missing in places nobody knows.
    Damaged,
}

/// Which part of a cut recording has all its device rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// All events before this time, absolute nanoseconds.
    Until(i64),
    /// Too little: nothing can be said of the recording.
    Nothing,
}

impl Trace {
    /// Whether figures can be taken from this trace: always, unless the recording was cut and what
    /// remains of it is too little.
    pub fn is_usable(&self) -> bool {
        self.cut.as_ref().is_none_or(|cut| cut.covered != Some(Covered::Nothing))
    }

    /// Removes all events from a time on. Slices that reach past it end there, and count as
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

    /// Removes all events.
    pub fn keep_nothing(&mut self) {
        self.slices = Slices::default();
        self.flows.clear();
        self.counters.clear();
        self.instants.clear();
        self.allocations.clear();
    }
}

impl Slices {
    /// Lets slices that reach past a time end there.
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
    fn slices_end_where_the_covered_part_does() {
        let mut trace = trace();
        trace.keep_until(50);
        let spans: Vec<_> =
            trace.rows().map(|row| (trace.slices.start(row), trace.slices.end(row))).collect();
        assert_eq!(spans, [(0, 50), (10, 12), (20, 50)]);
        let unfinished: Vec<u32> = trace.slices.unfinished.iter().map(|(row, ())| row).collect();
        assert_eq!(unfinished, [0, 2]);
    }
}
