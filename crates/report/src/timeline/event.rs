//! The event type that the steps from a trace to the timeline share.

/// An event that the timeline draws. Times are on the page's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawnEvent {
    pub row: u32,
    pub start: i64,
    pub end: i64,
    pub label: u32,
    pub note: u32,
}
