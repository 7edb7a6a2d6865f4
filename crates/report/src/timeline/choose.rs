//! Chooses the time range of the timeline, and the rows that are drawn in it.

use std::collections::BTreeMap;
use std::ops::Range;

use analyze::{Scope, window};
use trace::store::EventKind;

use crate::clock::Zero;
use crate::{Error, Options, TimelineSteps};

/// A time range on the page's clock, with the steps that it contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageRange {
    pub start: i64,
    pub end: i64,
    pub steps: Vec<i64>,
    pub step_count: u64,
    pub python_left_out: u64,
    pub has_python: bool,
    pub is_cut: bool,
}

/// Chooses the requested steps, or as many steps as the limit allows. Without steps, the function
/// chooses the window or its beginning.
pub(super) fn choose_range(
    scopes: &[Scope<'_>],
    zero: &Zero,
    options: &Options,
) -> Result<PageRange, Error> {
    let ends = |scope: &Scope<'_>| {
        let (rank, window) = (scope.trace.rank, &scope.window);
        (zero.at(rank, window.start), zero.at(rank, window.end))
    };
    let start = scopes.iter().map(|scope| ends(scope).0).min().unwrap_or_default();
    let end = scopes.iter().map(|scope| ends(scope).1).max().unwrap_or_default();
    let known = known(scopes, zero);
    let mut found =
        PageRange { start, end, step_count: known.len() as u64, ..PageRange::default() };
    let (starts, python) = starts(scopes, zero);
    let between = |sorted: &[i64], from: i64, until: i64| {
        let before = |time: i64| sorted.partition_point(|start| *start < time);
        before(until) - before(from)
    };
    let events_max = options.events_max;
    let fits = |step: &KnownStep| between(&starts, start, step.end) <= events_max;
    let wanted = match &options.steps {
        TimelineSteps::Fitting if between(&starts, start, end) <= events_max => 0..known.len(),
        TimelineSteps::Fitting => 0..known.iter().rposition(fits).map_or(1, |last| last + 1),
        TimelineSteps::First(count) => 0..*count,
        TimelineSteps::Numbered(asked) => numbered(&known, asked)?,
    };
    let wanted = wanted.start.min(known.len())..wanted.end.min(known.len());
    if wanted.len() < known.len() {
        let steps = &known[wanted];
        found.start = steps.iter().map(|step| step.start).min().unwrap_or(start);
        found.end = steps.iter().map(|step| step.end).max().unwrap_or(end);
        found.steps = steps.iter().map(|step| step.number).collect();
    }
    // A single step may exceed the limit, and a trace without steps may too, so the range is cut.
    if options.steps == TimelineSteps::Fitting
        && between(&starts, found.start, found.end) > events_max
    {
        found.end = starts[starts.partition_point(|time| *time < found.start) + events_max];
        found.is_cut = true;
    }
    let count = between(&starts, found.start, found.end);
    let python_count = between(&python, found.start, found.end);
    found.has_python = count + python_count <= events_max;
    found.python_left_out = if found.has_python { 0 } else { python_count as u64 };
    Ok(found)
}

/// A step from its earliest start to its latest end over all ranks.
struct KnownStep {
    number: i64,
    start: i64,
    end: i64,
}

/// Lists the steps of all ranks by ascending number.
fn known(scopes: &[Scope<'_>], zero: &Zero) -> Vec<KnownStep> {
    let mut spans: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    for scope in scopes {
        for step in &scope.window.steps {
            let (start, end) =
                (zero.at(scope.trace.rank, step.start), zero.at(scope.trace.rank, step.end));
            let span = spans.entry(step.number).or_insert((start, end));
            *span = (span.0.min(start), span.1.max(end));
        }
    }
    let step = |(number, (start, end))| KnownStep { number, start, end };
    spans.into_iter().map(step).collect()
}

/// Returns the range of indices of the steps with the requested numbers.
fn numbered(known: &[KnownStep], asked: &Range<i64>) -> Result<Range<usize>, Error> {
    let first = known.partition_point(|step| step.number < asked.start);
    let last = known.partition_point(|step| step.number < asked.end);
    if first < last {
        return Ok(first..last);
    }
    let known = match known {
        [] => "none, as the traces have no steps".to_owned(),
        [first, .., last] => format!("{} to {}", first.number, last.number),
        [only] => only.number.to_string(),
    };
    Err(Error::NoSuchStep { asked: asked.clone(), known })
}

/// Returns the sorted start times of two groups of rows: rows that are always drawn, and Python
/// frames.
fn starts(scopes: &[Scope<'_>], zero: &Zero) -> (Vec<i64>, Vec<i64>) {
    let (mut starts, mut python) = (Vec::new(), Vec::new());
    for scope in scopes {
        let trace = scope.trace;
        for row in trace.rows().filter(|row| is_drawn(scope, *row)) {
            let (from, to) = (trace.slices.start(row), trace.slices.end(row));
            if overlaps(from, to, scope.window.start, scope.window.end) {
                let is_python = trace.kind(row) == EventKind::Python;
                let sorted = if is_python { &mut python } else { &mut starts };
                sorted.push(zero.at(trace.rank, from));
            }
        }
    }
    starts.sort_unstable();
    python.sort_unstable();
    (starts, python)
}

/// Returns the rows of a rank that are drawn in the chosen range.
pub(super) fn rows(scope: &Scope<'_>, zero: &Zero, chosen: &PageRange) -> Vec<u32> {
    let trace = scope.trace;
    let lost = window::lost_start(trace);
    let is_inside = |row: &u32| {
        let (from, to) = (trace.slices.start(*row), trace.slices.end(*row));
        let (start, end) = (zero.at(trace.rank, from), zero.at(trace.rank, to));
        Some(from) != lost
            && overlaps(from, to, scope.window.start, scope.window.end)
            && overlaps(start, end, chosen.start, chosen.end)
    };
    let is_wanted = |row: &u32| chosen.has_python || trace.kind(*row) != EventKind::Python;
    trace.rows().filter(|row| is_drawn(scope, *row)).filter(is_wanted).filter(is_inside).collect()
}

/// Returns whether a row is drawn. The row that spans the whole recording and device events add
/// nothing to a timeline, so they are not drawn.
fn is_drawn(scope: &Scope<'_>, row: u32) -> bool {
    !matches!(scope.trace.kind(row), EventKind::Window | EventKind::Event)
}

/// Returns whether an event from `from` to `to`, which may be empty, overlaps the range from
/// `start` to `end`.
fn overlaps(from: i64, to: i64, start: i64, end: i64) -> bool {
    from < end && (start < to || start <= from)
}
