//! Options of a job's report, with the selection of steps on its timeline.

use std::ops::Range;

/// Options of the page of a job.
#[derive(Clone, Debug)]
pub struct Options {
    pub title: String,
    /// Name and version of the program that writes the page.
    pub program: String,
    pub steps: TimelineSteps,
    /// Maximum number of events on the timeline for [`TimelineSteps::Fitting`].
    pub events_max: usize,
}

/// Selects the steps that the timeline shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimelineSteps {
    /// As many of the first steps as [`Options::events_max`] allows, but at least one.
    Fitting,
    /// The given number of steps, from the first one on.
    First(usize),
    /// The steps whose numbers lie in this range.
    Numbered(Range<i64>),
}

impl Options {
    /// Default of `events_max`. With this number of events, the timeline scrolls smoothly, and the
    /// file is small enough to send by mail.
    pub const EVENTS_MAX: usize = 200_000;
}
