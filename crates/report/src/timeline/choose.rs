//! Which stretch of time is drawn, and which rows of it. Knows no lanes.

use std::collections::BTreeMap;

use analyze::{Scope, window};
use trace::store::Kind;

use crate::Options;
use crate::clock::Zero;

/// A stretch of time on the page's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    pub start: i64,
    pub end: i64,
    pub steps: Vec<i64>,
    pub step_count: u64,
    pub python_left_out: u64,
    pub has_python: bool,
    pub is_cut: bool,
}

/// The first steps that were asked for, or as many as there is room for; without steps the window,
/// or its beginning.
pub(super) fn stretch(scopes: &[Scope<'_>], zero: &Zero, options: &Options) -> Stretch {
    let rank = |scope: &Scope<'_>| scope.trace.rank;
    let ends = |scope: &Scope<'_>| {
        let window = &scope.window;
        (zero.at(rank(scope), window.start), zero.at(rank(scope), window.end))
    };
    let start = scopes.iter().map(|scope| ends(scope).0).min().unwrap_or_default();
    let end = scopes.iter().map(|scope| ends(scope).1).max().unwrap_or_default();
    let mut ends_of: BTreeMap<i64, i64> = BTreeMap::new();
    for scope in scopes {
        for step in &scope.window.steps {
            let end = zero.at(rank(scope), step.end);
            let last = ends_of.entry(step.number).or_insert(end);
            *last = end.max(*last);
        }
    }
    let numbers: Vec<i64> = ends_of.keys().copied().collect();
    let behind: Vec<i64> = ends_of.into_values().collect();
    let mut found = Stretch { start, end, step_count: numbers.len() as u64, ..Stretch::default() };
    let (starts, python) = starts(scopes, zero);
    let before = |sorted: &[i64], time: i64| sorted.partition_point(|start| *start < time);
    let room = options.events_max;
    let fits = |count: usize| before(&starts, behind[count - 1]) <= room;
    let wanted = match options.steps {
        Some(steps) => steps.clamp(1, numbers.len().max(1)),
        None if before(&starts, end) <= room => numbers.len(),
        None => (1..=numbers.len()).rev().find(|count| fits(*count)).unwrap_or(1),
    };
    if wanted < numbers.len() {
        found.end = behind[wanted - 1];
        found.steps = numbers[..wanted].to_vec();
    }
    // One step may be more than there is room for, or there are no steps.
    if options.steps.is_none() && before(&starts, found.end) > room {
        found.end = starts[room];
        found.is_cut = true;
    }
    let python_count = before(&python, found.end);
    found.has_python = before(&starts, found.end) + python_count <= room;
    found.python_left_out = if found.has_python { 0 } else { python_count as u64 };
    found
}

/// When rows begin, sorted: those that are always drawn, and frames of Python.
fn starts(scopes: &[Scope<'_>], zero: &Zero) -> (Vec<i64>, Vec<i64>) {
    let (mut starts, mut python) = (Vec::new(), Vec::new());
    for scope in scopes {
        let trace = scope.trace;
        for row in trace.rows().filter(|row| is_drawn(scope, *row)) {
            let (from, to) = (trace.slices.start(row), trace.slices.end(row));
            if overlaps((from, to), (scope.window.start, scope.window.end)) {
                let is_python = trace.kind(row) == Kind::Python;
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
pub(super) fn rows(scope: &Scope<'_>, zero: &Zero, chosen: &Stretch) -> Vec<u32> {
    let trace = scope.trace;
    let lost = window::lost_start(trace);
    let is_inside = |row: &u32| {
        let (from, to) = (trace.slices.start(*row), trace.slices.end(*row));
        let span = (zero.at(trace.rank, from), zero.at(trace.rank, to));
        Some(from) != lost
            && overlaps((from, to), (scope.window.start, scope.window.end))
            && overlaps(span, (chosen.start, chosen.end))
    };
    let is_wanted = |row: &u32| chosen.has_python || trace.kind(*row) != Kind::Python;
    trace.rows().filter(|row| is_drawn(scope, *row)).filter(is_wanted).filter(is_inside).collect()
}

/// Spans of the recording and moments say nothing on a timeline.
fn is_drawn(scope: &Scope<'_>, row: u32) -> bool {
    !matches!(scope.trace.kind(row), Kind::Window | Kind::Event)
}

fn overlaps((from, to): (i64, i64), (start, end): (i64, i64)) -> bool {
    from < end && (start < to || start <= from)
}
