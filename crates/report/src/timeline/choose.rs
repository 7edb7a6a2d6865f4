//! Which stretch of time is drawn, and which rows of it. Knows no lanes.

use std::collections::BTreeMap;
use std::ops::Range;

use analyze::{Scope, window};
use trace::store::EventKind;

use crate::clock::Zero;
use crate::{Error, Options, TimelineSteps};

/// A stretch of time on the page's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageStretch {
    pub start: i64,
    pub end: i64,
    pub steps: Vec<i64>,
    pub step_count: u64,
    pub python_left_out: u64,
    pub has_python: bool,
    pub is_cut: bool,
}

/// The steps that were asked for, or as many as there is room for; without steps the window, or its
/// beginning.
pub(super) fn stretch(
    scopes: &[Scope<'_>],
    zero: &Zero,
    options: &Options,
) -> Result<PageStretch, Error> {
    let ends = |scope: &Scope<'_>| {
        let (rank, window) = (scope.trace.rank, &scope.window);
        (zero.at(rank, window.start), zero.at(rank, window.end))
    };
    let start = scopes.iter().map(|scope| ends(scope).0).min().unwrap_or_default();
    let end = scopes.iter().map(|scope| ends(scope).1).max().unwrap_or_default();
    let known = known(scopes, zero);
    let mut found =
        PageStretch { start, end, step_count: known.len() as u64, ..PageStretch::default() };
    let (starts, python) = starts(scopes, zero);
    let between = |sorted: &[i64], from: i64, until: i64| {
        let before = |time: i64| sorted.partition_point(|start| *start < time);
        before(until) - before(from)
    };
    let room = options.events_max;
    let fits = |step: &KnownStep| between(&starts, start, step.end) <= room;
    let wanted = match &options.steps {
        TimelineSteps::Fitting if between(&starts, start, end) <= room => 0..known.len(),
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
    // One step may be more than there is room for, or there are no steps.
    if options.steps == TimelineSteps::Fitting && between(&starts, found.start, found.end) > room {
        found.end = starts[starts.partition_point(|time| *time < found.start) + room];
        found.is_cut = true;
    }
    let count = between(&starts, found.start, found.end);
    let python_count = between(&python, found.start, found.end);
    found.has_python = count + python_count <= room;
    found.python_left_out = if found.has_python { 0 } else { python_count as u64 };
    Ok(found)
}

/// A step, from the first rank's start to the last one's end.
struct KnownStep {
    number: i64,
    start: i64,
    end: i64,
}

/// The steps of all ranks, by number.
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

/// The places of the steps with some numbers.
fn numbered(known: &[KnownStep], asked: &Range<i64>) -> Result<Range<usize>, Error> {
    let first = known.partition_point(|step| step.number < asked.start);
    let last = known.partition_point(|step| step.number < asked.end);
    if first < last {
        return Ok(first..last);
    }
    let known = match known {
        [] => "none, as the traces name no steps".to_owned(),
        [first, .., last] => format!("{} to {}", first.number, last.number),
        [only] => only.number.to_string(),
    };
    Err(Error::NoSuchStep { asked: asked.clone(), known })
}

/// When rows begin, sorted: those that are always drawn, and frames of Python.
fn starts(scopes: &[Scope<'_>], zero: &Zero) -> (Vec<i64>, Vec<i64>) {
    let (mut starts, mut python) = (Vec::new(), Vec::new());
    for scope in scopes {
        let trace = scope.trace;
        for row in trace.rows().filter(|row| is_drawn(scope, *row)) {
            let (from, to) = (trace.slices.start(row), trace.slices.end(row));
            if overlaps((from, to), (scope.window.start, scope.window.end)) {
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

/// The rows of a rank in the stretch.
pub(super) fn rows(scope: &Scope<'_>, zero: &Zero, chosen: &PageStretch) -> Vec<u32> {
    let trace = scope.trace;
    let lost = window::lost_start(trace);
    let is_inside = |row: &u32| {
        let (from, to) = (trace.slices.start(*row), trace.slices.end(*row));
        let span = (zero.at(trace.rank, from), zero.at(trace.rank, to));
        Some(from) != lost
            && overlaps((from, to), (scope.window.start, scope.window.end))
            && overlaps(span, (chosen.start, chosen.end))
    };
    let is_wanted = |row: &u32| chosen.has_python || trace.kind(*row) != EventKind::Python;
    trace.rows().filter(|row| is_drawn(scope, *row)).filter(is_wanted).filter(is_inside).collect()
}

/// Spans of the recording and moments say nothing on a timeline.
fn is_drawn(scope: &Scope<'_>, row: u32) -> bool {
    !matches!(scope.trace.kind(row), EventKind::Window | EventKind::Event)
}

fn overlaps((from, to): (i64, i64), (start, end): (i64, i64)) -> bool {
    from < end && (start < to || start <= from)
}
