//! Segments of a thread: stretches in which one row ran.

use super::label::ThreadLabel;

/// The segments of a thread, and the labels that name the time between them.
#[derive(Debug, Default)]
pub(super) struct Segments {
    pub work: Vec<ThreadSegment>,
    /// Calls that ended before the window: what they launched may run in it.
    pub earlier: Vec<ThreadSegment>,
    pub labels: Vec<ThreadLabel>,
}

/// A stretch of a thread in which one row was the innermost, cut to the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadSegment {
    pub row: u32,
    pub start: i64,
    pub end: i64,
}
