//! Detects back-pressure: launch calls that waited because the device's queue was full.
//!
//! A launch call waited for earlier work if it takes far longer than other calls of its name and
//! returns just after that work ended. If many such calls agree on the number of queued pieces of
//! work between call and awaited work, that number is the queue length of the device. A device
//! without such calls is assumed to have an unlimited queue.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::store::{EventKind, StringId, Trace};

use crate::facts::calls::{self, CallKind, Direction};
use crate::facts::interval;
use crate::facts::scope::Scope;
use crate::facts::skew::{self, Skew};

/// A call that takes at least this many times as long as quick calls of its name certainly waited,
/// even if no other call confirms it.
const STRETCHED: i64 = 10;
/// Minimum duration of a call that counts as waiting without confirmation by other calls.
const STRETCHED_NS: i64 = 50_000;
/// A call that takes at least this many times as long as quick calls of its name may have waited.
/// Such a call counts as waiting if other calls agree with it on a queue length.
const LONG: i64 = 2;
/// Minimum excess of a call over quick calls of its name if others agree with it on a queue length.
const LONGER_NS: i64 = 8_000;
/// Share of long calls that must agree on a queue length if no call waited certainly.
const PART: f64 = 0.5;
/// A call that waited for work returns at most this long after the work ended.
const RETURN_NS: i64 = 20_000;
/// Minimum queue length that is considered, because shorter queues do not fill.
const DISTANCE_MIN: u32 = 8;
/// Minimum number of calls that must agree on a queue length.
const AGREEING: usize = 20;
/// Two queue lengths agree if they differ by at most this factor.
const AGREEMENT: f64 = 1.02;

const NONE: u32 = u32::MAX;

/// Launches of a rank that waited because the queue of their device was full.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pressure {
    pub waits: Vec<PressureWait>,
    /// Limits sorted by device, without the devices whose calls do not agree on a queue length.
    pub limits: Vec<QueueLimit>,
    /// The times at which the queue of each limited device gets room.
    rooms: BTreeMap<i32, Vec<QueueRoom>>,
    /// The place of each trace row in the launch order of its device; empty if no call is long.
    place: Vec<u32>,
}

/// The time at which a queue gets room for more work. Entry `i` of a list is the time at which `i +
/// 1` pieces of work have left the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
struct QueueRoom {
    at: i64,
    /// Row of the work that left the queue last.
    work: u32,
}

/// A long call and the range of queue lengths that would explain its duration.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    wait: PressureWait,
    /// The longest queue that would explain the call; `wait.distance` is the shortest.
    most: u32,
}

/// A launch call that waited for a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PressureWait {
    pub call: u32,
    /// Row of the work whose end the call waited for.
    pub work: u32,
    pub device: i32,
    /// Number of pieces of work in the queue, counted from the one that left it to the waiting one.
    pub distance: u32,
    /// Median duration of the calls of the same name that did not wait.
    pub typical_ns: i64,
    /// Excess of the call's duration over `typical_ns`.
    pub waited_ns: i64,
}

/// Length of a device's launch queue, inferred from launches that waited for room in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueLimit {
    pub device: i32,
    /// Number of places between a launch and the earlier work that it waits for.
    pub distance: u32,
    /// Number of calls that agree on `distance`.
    pub agreeing: u64,
}

impl Pressure {
    /// Returns the wait of a call, if it waited for a full queue.
    pub fn wait(&self, call: u32) -> Option<&PressureWait> {
        let at = self.waits.binary_search_by_key(&call, |wait| wait.call).ok()?;
        Some(&self.waits[at])
    }

    /// Returns the earlier work that must end before a row can be launched, given the queue length
    /// of the device.
    pub fn held_by(&self, device: i32, row: u32) -> Option<u32> {
        let limit = self.limits.iter().find(|limit| limit.device == device)?;
        Some(self.room(limit, row)?.work)
    }

    /// Returns a lower bound of how far a device's clock is ahead of its host's. A call that waited
    /// for room returned after the queue got room, so a later time of that room proves skew.
    pub fn ahead_ns(&self, device: i32, scope: &Scope<'_>) -> Option<i64> {
        let slices = &scope.trace.slices;
        let waits = self.waits.iter().filter(|wait| wait.device == device);
        waits.map(|wait| slices.end(wait.work) - slices.end(wait.call)).max()
    }

    fn room(&self, limit: &QueueLimit, row: u32) -> Option<QueueRoom> {
        let place = self.place[row as usize].checked_sub(limit.distance)?;
        self.rooms[&limit.device].get(place as usize).copied()
    }
}

/// Finds the launches of a rank that waited for a full queue.
///
/// # Cost
/// The search is linear in the rows of the trace if no call is long, and otherwise `O(n log n)` in
/// its launches.
pub fn find_back_pressure(scope: &Scope<'_>, skews: &[Skew]) -> Pressure {
    let launches = launches(scope);
    let usual = usual(scope.trace, &launches);
    let long: Vec<LongCall> = long(scope, &launches, &usual)
        .into_iter()
        .map(|call| (call, usual[&scope.trace.slices.name[call as usize]]))
        .collect();
    if long.is_empty() {
        return Pressure::default();
    }
    let works = works(scope, &launches);
    let mut found = Pressure { place: places(scope, &works), ..Pressure::default() };
    let mut stretched: BTreeMap<u32, PressureWait> = BTreeMap::new();
    for (device, works) in &works {
        let calls = long.iter().filter(|(call, _)| device_of(scope, *call) == Some(*device));
        let calls: Vec<LongCall> = calls.copied().collect();
        let Some(queue) = likeliest(scope, &found.place, *device, works, skews, &calls) else {
            continue;
        };
        stretched.extend(queue.suspects.into_iter().map(|wait| (wait.call, wait)));
        if let Some(limit) = queue.limit {
            found.limits.push(limit);
            found.rooms.insert(*device, queue.rooms);
        }
    }
    // Once the queue length is known, a call waited for the work at exactly that distance before
    // it.
    for call in long {
        let alone = || stretched.get(&call.0).copied();
        found.waits.extend(at_limit(scope, &found, call).or_else(alone));
    }
    found.waits.sort_unstable_by_key(|wait| wait.call);
    found
}

/// Measures clock skew and queue lengths together, because launches that waited for room also bound
/// the skew.
///
/// # Cost
/// The cost is that of [`skew::measure_skews`] and [`find_back_pressure`].
pub fn with_clocks(scope: &Scope<'_>) -> (Vec<Skew>, Pressure) {
    let mut skews = skew::measure_skews(scope);
    let pressure = find_back_pressure(scope, &skews);
    for skew in &mut skews {
        let ahead = pressure.ahead_ns(skew.device, scope);
        let is_possible = |ahead: &i64| skew.upper_ns.is_none_or(|upper| *ahead <= upper);
        if let Some(ahead) = ahead.filter(is_possible) {
            skew.lower_ns = Some(skew.lower_ns.map_or(ahead, |lower| lower.max(ahead)));
        }
    }
    (skews, pressure)
}

/// A call that took longer than usual, with the usual durations of calls of its name.
type LongCall = (u32, UsualCallTimes);

/// A candidate explanation: the queue of a device under one rule for when its places become free.
struct DeviceQueue {
    rooms: Vec<QueueRoom>,
    limit: Option<QueueLimit>,
    /// Calls so long that they certainly waited, even if no other call confirms a queue length.
    suspects: Vec<PressureWait>,
}

impl DeviceQueue {
    fn agreeing(&self) -> u64 {
        self.limit.map_or(0, |limit| limit.agreeing)
    }
}

/// Chooses the rule for freeing queue places, and the clock skew within its bounds, that together
/// explain the most calls.
fn likeliest(
    scope: &Scope<'_>,
    places: &[u32],
    device: i32,
    works: &[u32],
    skews: &[Skew],
    calls: &[LongCall],
) -> Option<DeviceQueue> {
    let rules = [in_order, as_they_end];
    let all = skew::shifts(skews, device)
        .into_iter()
        .flat_map(|shift| rules.map(|rule| rule(scope, works, shift)));
    let queues = all.map(|rooms| queue(scope, places, device, rooms, calls));
    let explained = |queue: &DeviceQueue| (queue.agreeing(), queue.suspects.len());
    // Among candidates that explain equally many calls, the first one wins.
    queues.reduce(|best, other| if explained(&other) > explained(&best) { other } else { best })
}

fn queue(
    scope: &Scope<'_>,
    places: &[u32],
    device: i32,
    rooms: Vec<QueueRoom>,
    calls: &[LongCall],
) -> DeviceQueue {
    let suspect = |call: &LongCall| suspect(scope, places, device, &rooms, call);
    let all: Vec<(Suspect, UsualCallTimes)> =
        calls.iter().filter_map(|call| Some((suspect(call)?, call.1))).collect();
    let duration = |one: &Suspect| scope.trace.slices.duration[one.wait.call as usize];
    let is_stretched =
        |(one, usual): &&(Suspect, UsualCallTimes)| duration(one) >= usual.stretched_from();
    let stretched: Vec<Suspect> = all.iter().filter(is_stretched).map(|(one, _)| *one).collect();
    let all: Vec<Suspect> = all.iter().map(|(one, _)| *one).collect();
    let limit = limit(device, &stretched, 0.0);
    let limit = limit.or_else(|| self::limit(device, &all, PART * calls.len() as f64));
    DeviceQueue { rooms, limit, suspects: stretched.iter().map(|one| one.wait).collect() }
}

/// Returns the calls that launched device work, sorted by start.
fn launches(scope: &Scope<'_>) -> Vec<u32> {
    let trace = scope.trace;
    let is_launch = |row: &u32| trace.kind(*row).is_call() && !scope.links().work(*row).is_empty();
    let mut rows: Vec<u32> = trace.rows().filter(is_launch).collect();
    rows.sort_by_key(|row| trace.slices.start(*row));
    rows
}

/// Usual durations of the launch calls of one name.
#[derive(Clone, Copy)]
struct UsualCallTimes {
    /// The tenth percentile of the durations. Even if half of the calls wait, the tenth percentile
    /// is the time of a call that does not wait.
    quick_ns: i64,
    /// Median duration of the calls that are not long.
    typical_ns: i64,
}

impl UsualCallTimes {
    fn new(mut durations: Vec<i64>) -> Self {
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

    /// Returns the minimum duration of a call that certainly waited.
    fn stretched_from(&self) -> i64 {
        STRETCHED_NS.max(STRETCHED * self.quick_ns)
    }

    /// Returns the minimum duration of a call that may have waited.
    fn long_from(&self) -> i64 {
        (LONG * self.quick_ns).max(self.quick_ns + LONGER_NS)
    }
}

/// Computes the usual durations of launch calls for each call name.
fn usual(trace: &Trace, launches: &[u32]) -> BTreeMap<StringId, UsualCallTimes> {
    let mut durations: BTreeMap<StringId, Vec<i64>> = BTreeMap::new();
    for &row in launches {
        let of_name = durations.entry(trace.slices.name[row as usize]).or_default();
        of_name.push(trace.slices.duration[row as usize]);
    }
    durations.into_iter().map(|(name, durations)| (name, UsualCallTimes::new(durations))).collect()
}

/// Returns the calls that took longer than usual without another known reason.
fn long(
    scope: &Scope<'_>,
    launches: &[u32],
    usual: &BTreeMap<StringId, UsualCallTimes>,
) -> Vec<u32> {
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
    let is_overhead = |row: &u32| trace.kind(*row) == EventKind::Overhead;
    let overhead = trace.rows().filter(is_overhead).map(|row| (slices.start(row), slices.end(row)));
    let overhead = interval::union(overhead.collect());
    // The profiler's own work and code loading stretch calls too, and a blocking copy waits for
    // itself.
    long.retain(|row| {
        let span = (slices.start(*row), slices.end(*row));
        let is_own = 2 * interval::length_within(&overhead, span) >= span.1 - span.0;
        let waits_itself = |work: &u32| {
            let name = trace.name(*work);
            trace.kind(*work) == EventKind::Memcpy
                && (calls::is_pageable(name) || calls::direction(name) == Direction::ToHost)
        };
        !is_own
            && names[slices.name[*row as usize].0 as usize] == CallKind::Plain
            && !scope.links().work(*row).iter().any(waits_itself)
    });
    long
}

/// Returns the pieces of work of each device in launch order.
fn works(scope: &Scope<'_>, launches: &[u32]) -> BTreeMap<i32, Vec<u32>> {
    let mut works: BTreeMap<i32, Vec<u32>> = BTreeMap::new();
    for &row in launches.iter().flat_map(|call| scope.links().work(*call)) {
        works.entry(scope.trace.device(row)).or_default().push(row);
    }
    works
}

fn places(scope: &Scope<'_>, works: &BTreeMap<i32, Vec<u32>>) -> Vec<u32> {
    let mut places = vec![NONE; scope.trace.slices.len()];
    for works in works.values() {
        works.iter().enumerate().for_each(|(at, row)| places[*row as usize] = at as u32);
    }
    places
}

fn device_of(scope: &Scope<'_>, call: u32) -> Option<i32> {
    scope.links().work(call).first().map(|work| scope.trace.device(*work))
}

/// Assumes that queue places become free in launch order: finished work keeps its place until all
/// earlier work has finished.
fn in_order(scope: &Scope<'_>, works: &[u32], shift: i64) -> Vec<QueueRoom> {
    let mut last = QueueRoom { at: i64::MIN, work: NONE };
    let rooms = works.iter().map(|work| {
        let at = scope.trace.slices.end(*work) - shift;
        if at > last.at {
            last = QueueRoom { at, work: *work };
        }
        last
    });
    rooms.collect()
}

/// Assumes that a queue place becomes free as soon as its work has ended.
fn as_they_end(scope: &Scope<'_>, works: &[u32], shift: i64) -> Vec<QueueRoom> {
    let room = |work: &u32| QueueRoom { at: scope.trace.slices.end(*work) - shift, work: *work };
    let mut rooms: Vec<QueueRoom> = works.iter().map(room).collect();
    rooms.sort_unstable_by_key(|room| (room.at, room.work));
    rooms
}

/// Returns the wait of a long call for a free place, given the queue length, if the call returned
/// just after a place became free.
fn at_limit(scope: &Scope<'_>, found: &Pressure, (call, usual): LongCall) -> Option<PressureWait> {
    let slices = &scope.trace.slices;
    let own = *scope.links().work(call).first()?;
    let device = scope.trace.device(own);
    let limit = found.limits.iter().find(|limit| limit.device == device)?;
    let room = found.room(limit, own)?;
    let (start, end) = (slices.start(call), slices.end(call));
    let is_awaited = start < room.at && room.at <= end && end - room.at <= RETURN_NS;
    let typical_ns = usual.typical_ns;
    let (work, distance, waited_ns) = (room.work, limit.distance, end - start - typical_ns);
    is_awaited.then_some(PressureWait { call, work, device, distance, typical_ns, waited_ns })
}

/// Returns a long call as a suspect if it returned just after a queue place became free.
fn suspect(
    scope: &Scope<'_>,
    places: &[u32],
    device: i32,
    rooms: &[QueueRoom],
    &(call, usual): &LongCall,
) -> Option<Suspect> {
    let slices = &scope.trace.slices;
    let own = *scope.links().work(call).first()?;
    let (start, end) = (slices.start(call), slices.end(call));
    let place = places[own as usize];
    let until = rooms.partition_point(|room| room.at <= end);
    let room = rooms[until.checked_sub(1)?];
    if room.at <= start || room.at < end - RETURN_NS {
        return None;
    }
    // Pieces of work that end at the same time free their places together.
    let from = rooms.partition_point(|other| other.at < room.at) as u32;
    let until = (until as u32).min(place.checked_sub(DISTANCE_MIN)? + 1);
    if from >= until {
        return None;
    }
    let distance = place + 1 - until;
    let typical_ns = usual.typical_ns;
    let (work, waited_ns) = (room.work, end - start - typical_ns);
    let wait = PressureWait { call, work, device, distance, typical_ns, waited_ns };
    Some(Suspect { wait, most: place - from })
}

/// Finds the queue length that most suspects of a device agree on. At least [`AGREEING`] suspects,
/// and at least `least`, must agree.
fn limit(device: i32, suspects: &[Suspect], least: f64) -> Option<QueueLimit> {
    // Each suspect is explained by a range of queue lengths. Sorting the starts and ends of these
    // ranges finds the length that lies in most of them.
    let first = |one: &Suspect| (f64::from(one.wait.distance) / AGREEMENT).ceil() as u32;
    let begin = suspects.iter().map(|one| (first(one), 1i64));
    let mut changes: Vec<(u32, i64)> =
        begin.chain(suspects.iter().map(|one| (one.most + 1, -1))).collect();
    changes.sort_unstable();
    let (mut now, mut most, mut best) = (0, 0, 0);
    for (at, change) in changes {
        // If several queue lengths explain equally many suspects, take the longest.
        if change < 0 && now > most {
            (most, best) = (now, at - 1);
        }
        now += change;
    }
    let agreeing = suspects.iter().filter(|one| first(one) <= best && best <= one.most);
    let mut distances: Vec<u32> =
        agreeing.map(|one| best.clamp(one.wait.distance, one.most)).collect();
    if distances.len() < AGREEING || (distances.len() as f64) < least {
        return None;
    }
    distances.sort_unstable();
    let distance = distances[(distances.len() - 1) / 2];
    Some(QueueLimit { device, distance, agreeing: distances.len() as u64 })
}

#[cfg(test)]
mod tests;
