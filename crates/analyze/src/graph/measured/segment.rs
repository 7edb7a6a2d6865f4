//! Defines segments of a thread, which are stretches in which one row was the innermost.

/// A stretch of a thread in which one row was the innermost, clipped to the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadSegment {
    pub row: u32,
    pub start: i64,
    pub end: i64,
}
