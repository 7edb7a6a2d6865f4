//! Back-pressure: launches that waited inside their call because the device's queue was full.
//!
//! A call that takes far longer than calls of its name do, and returns as soon as earlier work of
//! the same device has ended, waited for that work. Where many such calls agree on how many works
//! lay between, every launch of the device waits for the work so many places before it. Where none
//! was seen, there is no limit, however long the queue. Knows no graph.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::store::{Kind, StringId, Trace};

use crate::calls::{self, Call};
use crate::interval;
use crate::scope::Scope;
use crate::skew::{self, Skew};

/// How many times as long as quick ones of its name a call takes at least that waited, where it
/// alone says so.
const STRETCHED: i64 = 10;
/// How long a call takes at least that waited, where it alone says so.
const STRETCHED_NS: i64 = 50_000;
/// The same where a fair part of such calls agree on a distance.
const LONG: i64 = 2;
/// By how much a call takes longer than quick ones at least, where others agree with it.
const LONGER_NS: i64 = 8_000;
/// The part of long calls that must agree on a distance where none is stretched.
const PART: f64 = 0.5;
/// How soon after the end of work a call returns that waited for it.
const RETURN_NS: i64 = 20_000;
/// Fewest works between a launch and what it waited for: shorter queues do not fill.
const DISTANCE_MIN: u32 = 8;
/// Fewest calls that must agree on a distance.
const AGREEING: usize = 20;
/// How far distances that agree lie apart at most.
const AGREEMENT: f64 = 1.02;

const NONE: u32 = u32::MAX;

/// The launches of a rank that waited for a full queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pressure {
    /// By call.
    pub waits: Vec<PressureWait>,
    /// By device; only devices whose calls agree.
    pub limits: Vec<QueueLimit>,
    /// Per device: its works in the order of their launches.
    order: BTreeMap<i32, Vec<u32>>,
    /// Per row of the trace, its place in that order; empty without waits.
    place: Vec<u32>,
}

/// A launch that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PressureWait {
    /// Row of the call.
    pub call: u32,
    /// Row of the work whose end it waited for.
    pub work: u32,
    /// The device.
    pub device: i32,
    /// Works from that one to its own, in the order of launches.
    pub distance: u32,
    /// Median duration of calls of its name that did not wait.
    pub typical_ns: i64,
    /// By how much the call took longer than that.
    pub waited_ns: i64,
}

/// How many works a device's queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueLimit {
    /// The device.
    pub device: i32,
    /// A launch waits for the work so many places before its own.
    pub distance: u32,
    /// Calls that agree on it.
    pub agreeing: u64,
}

impl Pressure {
    /// The wait of a call.
    pub fn wait(&self, call: u32) -> Option<&PressureWait> {
        let at = self.waits.binary_search_by_key(&call, |wait| wait.call).ok()?;
        Some(&self.waits[at])
    }

    /// The work that must have ended before work of a row can be launched, by the device's limit.
    pub fn held_by(&self, device: i32, row: u32) -> Option<u32> {
        let limit = self.limits.iter().find(|limit| limit.device == device)?;
        let place = self.place[row as usize].checked_sub(limit.distance)?;
        self.order[&device].get(place as usize).copied()
    }
}

/// Finds the launches of a rank that waited for a full queue.
///
/// # Cost
/// Linear in the rows of the trace where no call is long; else `O(n log n)` in its launches.
pub fn of(scope: &Scope<'_>, skews: &[Skew]) -> Pressure {
    let launches = launches(scope);
    let usual = usual(scope.trace, &launches);
    let long = long(scope, &launches, &usual);
    if long.is_empty() {
        return Pressure::default();
    }
    let mut found = ordered(scope, &launches);
    let mut ends: BTreeMap<i32, Vec<(i64, u32)>> = BTreeMap::new();
    for (device, works) in &found.order {
        let shift = skew::shift_ns(skews, *device);
        let end = |row: &u32| (scope.trace.slices.end(*row) - shift, *row);
        let mut works: Vec<(i64, u32)> = works.iter().map(end).collect();
        works.sort_unstable();
        ends.insert(*device, works);
    }
    let usual_of = |call: u32| &usual[&scope.trace.slices.name[call as usize]];
    let waits = |call: &u32| wait(scope, &found, &ends, (*call, usual_of(*call).typical_ns));
    let all: Vec<PressureWait> = long.iter().filter_map(waits).collect();
    let is_stretched = |wait: &PressureWait| {
        let duration = scope.trace.slices.duration[wait.call as usize];
        duration >= usual_of(wait.call).stretched_from()
    };
    let stretched: Vec<PressureWait> = all.iter().copied().filter(is_stretched).collect();
    found.limits = limits(&stretched, 0.0);
    if found.limits.is_empty() {
        found.limits = limits(&all, PART * long.len() as f64);
    }
    // Where the depth is known, what ended there is what was waited for.
    for call in long {
        let typical_ns = usual_of(call).typical_ns;
        let known = at_limit(scope, &found, skews, (call, typical_ns));
        let alone = || stretched.iter().find(|wait| wait.call == call).copied();
        found.waits.extend(known.or_else(alone));
    }
    found.waits.sort_unstable_by_key(|wait| wait.call);
    found
}

/// The calls that launched work, by start.
fn launches(scope: &Scope<'_>) -> Vec<u32> {
    let trace = scope.trace;
    let is_launch = |row: &u32| trace.kind(*row).is_call() && !scope.links().work(*row).is_empty();
    let mut rows: Vec<u32> = trace.rows().filter(is_launch).collect();
    rows.sort_by_key(|row| trace.slices.start(*row));
    rows
}

/// What calls of a name take.
struct Usual {
    /// Where so many wait that half of them do, the quickest tenth still tells what a call takes.
    quick_ns: i64,
    /// The median of those that are not long.
    typical_ns: i64,
}

impl Usual {
    fn of(mut durations: Vec<i64>) -> Self {
        let place = (durations.len() - 1) / 10;
        let quick_ns = *durations.select_nth_unstable(place).1;
        let mut usual = Self { quick_ns, typical_ns: quick_ns };
        durations.retain(|duration| *duration < usual.long_from());
        if !durations.is_empty() {
            let middle = (durations.len() - 1) / 2;
            usual.typical_ns = *durations.select_nth_unstable(middle).1;
        }
        usual
    }

    /// How long a call takes at least of which is certain that it waited.
    fn stretched_from(&self) -> i64 {
        STRETCHED_NS.max(STRETCHED * self.quick_ns)
    }

    /// How long a call takes at least that may have waited.
    fn long_from(&self) -> i64 {
        (LONG * self.quick_ns).max(self.quick_ns + LONGER_NS)
    }
}

/// What launches take, by name.
fn usual(trace: &Trace, launches: &[u32]) -> BTreeMap<StringId, Usual> {
    let mut durations: BTreeMap<StringId, Vec<i64>> = BTreeMap::new();
    for &row in launches {
        let of_name = durations.entry(trace.slices.name[row as usize]).or_default();
        of_name.push(trace.slices.duration[row as usize]);
    }
    durations.into_iter().map(|(name, durations)| (name, Usual::of(durations))).collect()
}

/// The calls that are longer than usual, for no other reason that is known.
fn long(scope: &Scope<'_>, launches: &[u32], usual: &BTreeMap<StringId, Usual>) -> Vec<u32> {
    let trace = scope.trace;
    let slices = &trace.slices;
    let is_long = |row: &u32| {
        let usual = &usual[&slices.name[*row as usize]];
        slices.duration[*row as usize] >= usual.long_from()
    };
    let mut long: Vec<u32> = launches.iter().copied().filter(is_long).collect();
    if long.is_empty() {
        return long;
    }
    let names = calls::names(trace);
    let is_overhead = |row: &u32| trace.kind(*row) == Kind::Overhead;
    let overhead = trace.rows().filter(is_overhead).map(|row| (slices.start(row), slices.end(row)));
    let overhead = interval::union(overhead.collect());
    // The profiler's own work and loading of code stretch calls too; copies wait for themselves.
    long.retain(|row| {
        let span = (slices.start(*row), slices.end(*row));
        let is_own = 2 * interval::length_within(&overhead, span) >= span.1 - span.0;
        let waits_itself = |work: &u32| {
            let name = trace.name(*work);
            trace.kind(*work) == Kind::Memcpy
                && (name.contains("Pageable")
                    || name.contains("DtoH")
                    || name.contains("DeviceToHost"))
        };
        !is_own
            && names[slices.name[*row as usize].0 as usize] == Call::Plain
            && !scope.links().work(*row).iter().any(waits_itself)
    });
    long
}

/// The works of each device in the order of their launches.
fn ordered(scope: &Scope<'_>, launches: &[u32]) -> Pressure {
    let mut order: BTreeMap<i32, Vec<u32>> = BTreeMap::new();
    let mut place = vec![NONE; scope.trace.slices.len()];
    for &row in launches.iter().flat_map(|call| scope.links().work(*call)) {
        let works = order.entry(scope.trace.device(row)).or_default();
        place[row as usize] = works.len() as u32;
        works.push(row);
    }
    Pressure { order, place, ..Pressure::default() }
}

/// The wait of a long call for the work that the depth of its queue names, if it returned just
/// after that had ended.
fn at_limit(
    scope: &Scope<'_>,
    found: &Pressure,
    skews: &[Skew],
    (call, typical_ns): (u32, i64),
) -> Option<PressureWait> {
    let slices = &scope.trace.slices;
    let own = *scope.links().work(call).first()?;
    let device = scope.trace.device(own);
    let work = found.held_by(device, own)?;
    let (start, end) = (slices.start(call), slices.end(call));
    let ended = slices.end(work) - skew::shift_ns(skews, device);
    let is_awaited = start < ended && ended <= end && end - ended <= RETURN_NS;
    let distance = found.place[own as usize] - found.place[work as usize];
    let waited_ns = end - start - typical_ns;
    is_awaited.then_some(PressureWait { call, work, device, distance, typical_ns, waited_ns })
}

/// The wait of a long call, if it returned just after earlier work had ended.
fn wait(
    scope: &Scope<'_>,
    found: &Pressure,
    ends: &BTreeMap<i32, Vec<(i64, u32)>>,
    (call, typical_ns): (u32, i64),
) -> Option<PressureWait> {
    let slices = &scope.trace.slices;
    let own = *scope.links().work(call).first()?;
    let device = scope.trace.device(own);
    let (start, end) = (slices.start(call), slices.end(call));
    let works = &ends[&device];
    let until = works.partition_point(|(ended, _)| *ended <= end);
    let place = found.place[own as usize];
    let near = works[..until].iter().rev().take_while(|(ended, _)| *ended >= end - RETURN_NS);
    let released = near
        .filter(|(ended, row)| *ended > start && found.place[*row as usize] < place)
        .find(|(ended, _)| *ended <= slices.start(own));
    let (_, work) = *released?;
    let distance = place - found.place[work as usize];
    let waited_ns = end - start - typical_ns;
    let wait = PressureWait { call, work, device, distance, typical_ns, waited_ns };
    (distance >= DISTANCE_MIN).then_some(wait)
}

/// The distance that most waits of a device agree on, if enough do: a number that is fixed, and at
/// least `least`.
fn limits(waits: &[PressureWait], least: f64) -> Vec<QueueLimit> {
    let mut distances: BTreeMap<i32, Vec<u32>> = BTreeMap::new();
    for wait in waits {
        distances.entry(wait.device).or_default().push(wait.distance);
    }
    let limit = |(device, mut distances): (i32, Vec<u32>)| {
        distances.sort_unstable();
        let agreeing = |first: usize| {
            let most = f64::from(distances[first]) * AGREEMENT;
            first..distances.partition_point(|distance| f64::from(*distance) <= most)
        };
        let all = (0..distances.len()).map(agreeing);
        let range = all.max_by_key(|range| (range.len(), std::cmp::Reverse(range.start)))?;
        let distance = distances[range.start + (range.len() - 1) / 2];
        let agreeing = range.len() as u64;
        (range.len() >= AGREEING && range.len() as f64 >= least).then_some(QueueLimit { device, distance, agreeing })
    };
    distances.into_iter().filter_map(limit).collect()
}

#[cfg(test)]
mod tests;
