//! What threads did, in stretches.

use super::label::Label;

/// What a thread did, and what names the rest of its time.
#[derive(Debug, Default)]
pub(super) struct Segments {
    pub work: Vec<Segment>,
    /// Calls that ended before the window: what they launched may run in it.
    pub earlier: Vec<Segment>,
    pub labels: Vec<Label>,
}

/// A stretch of a thread in which one row was the innermost, cut to the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub row: u32,
    pub start: i64,
    pub end: i64,
}
