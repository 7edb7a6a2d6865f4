//! Detects operators that should have launched work but made no call, because the part of the file
//! with their calls was lost.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use trace::store::{EventKind, Trace, TrackId};

use super::order;
use crate::facts::interval::Interval;
use crate::facts::links::Links;

/// Minimum number of distinct silent operators, that is, operators that launched nothing although
/// they usually do. Complete recordings of PyTorch contain up to two, which delegate to another
/// device or to none.
const NAMES: usize = 3;
/// An operator that launches work in at least this share of its occurrences, in percent, should
/// always launch some.
const USUAL_PCT: u64 = 80;
/// A stretch with more than this share of a thread's operators, in percent, does not count as
/// usual.
const LARGE_PCT: u64 = 5;

/// Consecutive operators of one thread between two of its launch calls.
#[derive(Default)]
struct OperatorStretch {
    start: i64,
    counts: HashMap<u32, u64>,
    count: u64,
    is_large: bool,
}

/// Counts the operators within a span of time that usually launch work but launched nothing.
pub(super) fn between(trace: &Trace, links: &Links, span: Interval) -> usize {
    let (from, to) = span;
    let mut is_launch = vec![false; trace.slices.len()];
    for row in order::launches(trace, links) {
        is_launch[row as usize] = true;
    }
    let names = trace.strings.len();
    let (mut occurring, mut launching) = (vec![0; names], vec![0; names]);
    let threads = threads(trace);
    for rows in threads.values() {
        count(trace, rows, &is_launch, &mut occurring, &mut launching);
    }
    let mut silent = vec![0u64; names];
    let is_inside = |row: &u32| {
        let (start, end) = (trace.slices.start(*row), trace.slices.end(*row));
        trace.kind(*row) == EventKind::Operator && from <= start && end <= to
    };
    for row in threads.values().flatten().copied().filter(is_inside) {
        silent[trace.slices.name[row as usize].0 as usize] += 1;
    }
    // Occurrences inside the span do not count, because the calls of that time are suspected to be
    // lost.
    let is_usual = |name: usize| {
        let outside: u64 = occurring[name] - silent[name];
        launching[name] > 0 && 100 * launching[name] >= USUAL_PCT * outside
    };
    (0..names).filter(|name| is_usual(*name)).map(|name| silent[name] as usize).sum()
}

/// Returns the start of the first stretch of operators whose calls were lost.
pub(super) fn first(trace: &Trace, links: &Links) -> Option<i64> {
    let mut is_launch = vec![false; trace.slices.len()];
    for row in order::launches(trace, links) {
        is_launch[row as usize] = true;
    }
    let threads = threads(trace);
    let names = trace.strings.len();
    let (mut occurring, mut launching) = (vec![0; names], vec![0; names]);
    for rows in threads.values() {
        count(trace, rows, &is_launch, &mut occurring, &mut launching);
    }
    let stretches: Vec<OperatorStretch> =
        threads.values().flat_map(|rows| stretches(trace, rows, &launching)).collect();
    // A large stretch may be the lost part itself, so its operators must not lower the usual share.
    for stretch in stretches.iter().filter(|stretch| stretch.is_large) {
        for (name, count) in &stretch.counts {
            occurring[*name as usize] -= count;
        }
    }
    let is_usual = |name: usize, within: u64| {
        let outside = occurring[name].saturating_sub(within);
        launching[name] > 0 && 100 * launching[name] >= USUAL_PCT * outside
    };
    let usual = (0..names).filter(|name| is_usual(*name, 0)).count();
    let is_lost = |stretch: &&OperatorStretch| {
        let within = |count: u64| if stretch.is_large { 0 } else { count };
        let silent = stretch.counts.iter();
        let silent = silent.filter(|(name, count)| is_usual(**name as usize, within(**count)));
        // A trace with few usual operators can show only few silent ones, so the threshold is
        // lowered to their number.
        silent.count() >= usual.clamp(1, NAMES)
    };
    stretches.iter().filter(is_lost).map(|stretch| stretch.start).min()
}

/// Returns the operators and calls of each thread, sorted by start, with parents before children.
fn threads(trace: &Trace) -> BTreeMap<TrackId, Vec<u32>> {
    let mut threads: BTreeMap<TrackId, Vec<u32>> = BTreeMap::new();
    for row in trace.rows() {
        let kind = trace.kind(row);
        if kind == EventKind::Operator || kind.is_call() {
            threads.entry(trace.slices.track[row as usize]).or_default().push(row);
        }
    }
    for rows in threads.values_mut() {
        rows.sort_by_key(|row| (trace.slices.start(*row), Reverse(trace.slices.end(*row))));
    }
    threads
}

/// Counts how often each operator occurs and how often it launches work itself.
fn count(
    trace: &Trace,
    rows: &[u32],
    is_launch: &[bool],
    occurring: &mut [u64],
    launching: &mut [u64],
) {
    let name = |row: u32| trace.slices.name[row as usize].0 as usize;
    // The operators that are open at this row, and whether each has launched something.
    let mut open: Vec<(u32, bool)> = Vec::new();
    for &row in rows {
        let start = trace.slices.start(row);
        while open.pop_if(|(around, _)| trace.slices.end(*around) <= start).is_some() {}
        if trace.kind(row) == EventKind::Operator {
            occurring[name(row)] += 1;
            open.push((row, false));
        } else if let Some((around, has_launched)) = open.last_mut()
            && is_launch[row as usize]
            && !*has_launched
        {
            *has_launched = true;
            launching[name(*around)] += 1;
        }
    }
}

/// Returns the stretches of a thread between its launches, each with the operators that usually
/// launch work.
fn stretches(trace: &Trace, rows: &[u32], launching: &[u64]) -> Vec<OperatorStretch> {
    let mut stretches: Vec<OperatorStretch> = Vec::new();
    let mut operators: Vec<u32> = Vec::new();
    for &row in rows {
        if trace.kind(row).is_call() {
            // Operators that contain the call are not silent, so they leave the stretch.
            let start = trace.slices.start(row);
            operators.retain(|operator| trace.slices.end(*operator) <= start);
            stretches.extend(stretch(trace, &operators));
            operators.clear();
        } else if launching[trace.slices.name[row as usize].0 as usize] > 0 {
            operators.push(row);
        }
    }
    stretches.extend(stretch(trace, &operators));
    let all: u64 = stretches.iter().map(|stretch| stretch.count).sum();
    for stretch in &mut stretches {
        stretch.is_large = 100 * stretch.count > LARGE_PCT * all;
    }
    stretches
}

fn stretch(trace: &Trace, operators: &[u32]) -> Option<OperatorStretch> {
    let start = trace.slices.start(*operators.first()?);
    let mut stretch =
        OperatorStretch { start, count: operators.len() as u64, ..OperatorStretch::default() };
    for row in operators {
        *stretch.counts.entry(trace.slices.name[*row as usize].0).or_default() += 1;
    }
    Some(stretch)
}
