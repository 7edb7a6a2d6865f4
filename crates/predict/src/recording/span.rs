//! Where steps begin and end. Knows nothing of what is inside.

use analyze::Scope;
use analyze::window;
use trace::store::EventKind;

/// What parts a recording into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepRule {
    /// The profiler's `ProfilerStep#N`.
    ProfilerStep,
    /// From one `Optimizer.zero_grad` to the next.
    ZeroGrad,
    /// Nothing: all of it is one.
    Whole,
}

/// A step of one rank: absolute nanoseconds, `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First nanosecond.
    pub start: i64,
    /// First nanosecond behind it.
    pub end: i64,
    /// A row of the thread that runs it.
    pub row: Option<u32>,
}

const ZERO_GRAD: &str = "Optimizer.zero_grad";

/// The steps of a rank, by start, and the rule that found them: the first that finds any.
pub fn spans(scope: &Scope<'_>) -> (StepRule, Vec<Span>) {
    let steps = &scope.steps;
    if !steps.is_empty() {
        // The only step there is may be cut; of several, only whole ones are of use.
        let is_any_whole = steps.iter().any(|step| step.is_whole);
        let kept = steps.iter().filter(|step| step.is_whole || !is_any_whole);
        let span = |step: &window::TrainingStep| Span {
            start: step.start,
            end: step.end,
            row: Some(step.row),
        };
        return (StepRule::ProfilerStep, kept.map(span).collect());
    }
    let trace = scope.trace;
    let is_mark = |row: &u32| {
        matches!(trace.kind(*row), EventKind::Annotation | EventKind::Operator)
            && trace.name(*row).starts_with(ZERO_GRAD)
    };
    let mut marks: Vec<u32> = trace.rows().filter(is_mark).collect();
    marks.sort_by_key(|row| trace.slices.start(*row));
    if marks.len() > 1 {
        let start = |row: u32| trace.slices.start(row);
        let between =
            |pair: &[u32]| Span { start: start(pair[0]), end: start(pair[1]), row: Some(pair[0]) };
        return (StepRule::ZeroGrad, marks.windows(2).map(between).collect());
    }
    let whole = window::recorded(trace).map(|(start, end)| Span { start, end, row: None });
    (StepRule::Whole, whole.into_iter().collect())
}
