//! Defines segments of a thread, which are stretches in which one row was the innermost.

use super::label::ThreadLabel;

/// The segments of a thread, and the annotations that label the time between segments.
#[derive(Debug, Default)]
pub(super) struct Segments {
    pub work: Vec<ThreadSegment>,
    /// Calls that ended before the window, which are kept because their work may run in it.
    pub earlier: Vec<ThreadSegment>,
    pub labels: Vec<ThreadLabel>,
}

/// A stretch of a thread in which one row was the innermost, clipped to the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadSegment {
    pub row: u32,
    pub start: i64,
    pub end: i64,
}
