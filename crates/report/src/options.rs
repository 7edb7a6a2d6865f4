//! Options of a job's report, and the selection of steps on its timeline.

use std::ops::Range;

/// Options of the page of a job.
#[derive(Clone, Debug)]
pub struct Options {
    pub title: String,
    /// Name and version of the program that writes the page.
    pub program: String,
    pub steps: TimelineSteps,
    /// Limit of the number of events on the timeline, for [`TimelineSteps::Fitting`].
    pub events_max: usize,
}

/// Selects the steps that the timeline shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimelineSteps {
    /// The first steps, as many as [`Options::events_max`] allows, and at least one.
    Fitting,
    /// The given number of first steps.
    First(usize),
    /// The steps with these numbers.
    Numbered(Range<i64>),
}

impl Options {
    /// Default for `events_max`: the timeline stays smooth, and the file is small enough to mail.
    pub const EVENTS_MAX: usize = 200_000;
}
