//! Finds the time ranges of a rank's steps.

use analyze::Scope;
use analyze::window::{self, TrainingStep};

/// The time range `start..end` of one rank's step, in absolute nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: i64,
    pub end: i64,
    /// A row of the thread that runs the step, or `None` if the recording has no step marks.
    pub row: Option<u32>,
}

/// Lists the steps of a rank by start. A recording without steps counts as one step.
pub fn spans(scope: &Scope<'_>) -> Vec<Span> {
    let steps = &scope.steps;
    if steps.is_empty() {
        let whole = window::recorded(scope.trace);
        return whole.map(|(start, end)| Span { start, end, row: None }).into_iter().collect();
    }
    // A single step is used even if it is cut off. Of several steps, only the whole ones are used.
    let is_any_whole = steps.iter().any(|step| step.is_whole);
    let kept = steps.iter().filter(|step| step.is_whole || !is_any_whole);
    let span = |step: &TrainingStep| Span { start: step.start, end: step.end, row: Some(step.row) };
    kept.map(span).collect()
}
