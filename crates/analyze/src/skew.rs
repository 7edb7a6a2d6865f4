//! The clock of a device against the clock of its host, from what cannot be otherwise: a call that
//! blocks returns after the work it waits for has ended, and no work begins before its launch.
//!
//! Each gives a bound of the device's clock minus the host's; the true difference lies between the
//! largest lower and the smallest upper one. Knows no clock of another host.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use trace::store::{Kind, Trace};

use crate::calls::{self, Call};
use crate::scope::Scope;

/// How long a call takes at least that certainly waited for a device.
const BLOCKED_NS: i64 = 50_000;
/// How soon after the end of work a call returns that waited for it.
const RETURN_NS: i64 = 20_000;

/// How far a device's clock is ahead of its host's, as far as a recording tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Skew {
    /// The rank.
    pub rank: u32,
    /// The device.
    pub device: i32,
    /// Nanoseconds ahead at least: the largest by which work ends behind a call that waited for it.
    /// `None` without such calls.
    pub lower_ns: Option<i64>,
    /// Nanoseconds ahead at most: the smallest from the start of a launch to the start of its work.
    /// `None` without launches.
    pub upper_ns: Option<i64>,
    /// Calls that waited for work of the device.
    pub wait_count: u64,
    /// Those that returned before it ended by the device's clock.
    pub late_count: u64,
    /// Launches.
    pub launch_count: u64,
    /// Those that began after their work by the device's clock.
    pub early_count: u64,
}

impl Skew {
    /// Whether no difference of the clocks explains all times.
    pub fn is_contradictory(&self) -> bool {
        self.lower_ns.zip(self.upper_ns).is_some_and(|(lower, upper)| lower > upper)
    }

    /// Nanoseconds to take off the device's times: the smallest difference that explains all, 0
    /// where none does.
    pub fn shift_ns(&self) -> i64 {
        if self.is_contradictory() {
            return 0;
        }
        let (lower, upper) = (self.lower_ns.unwrap_or(0).max(0), self.upper_ns.unwrap_or(0).min(0));
        lower + upper
    }
}

impl Skew {
    /// The bounds and their witnesses in words.
    pub fn words(&self) -> String {
        let us = |ns: i64| format!("{:.3} µs", ns as f64 / 1e3);
        let many = |count: u64, what: &str| match count {
            1 => format!("one {what} alone"),
            count => format!("{count} {what}{}", if what == "launch" { "es" } else { "s" }),
        };
        let least = self.lower_ns.map(|lower| {
            let late = match self.late_count {
                0 => String::new(),
                late => format!(", {late} of which returned before their work ended"),
            };
            format!(
                "at least {} ahead of the host's, by {}{late}",
                us(lower),
                many(self.wait_count, "wait")
            )
        });
        let most = self.upper_ns.map(|upper| {
            let early = match self.early_count {
                0 => String::new(),
                early => format!(", {early} of which began after their work"),
            };
            let bound = match upper {
                ..0 => format!("at least {} behind the host's", us(-upper)),
                _ => format!("at most {} ahead", us(upper)),
            };
            format!("{bound}, by {}{early}", many(self.launch_count, "launch"))
        });
        let bounds: Vec<String> = least.into_iter().chain(most).collect();
        let verdict = match self.is_contradictory() {
            true => ": that cannot both be, so nothing is shifted",
            false => "",
        };
        let bounds = if bounds.is_empty() { "not known".to_owned() } else { bounds.join("; ") };
        format!("the clock of device {} is {bounds}{verdict}", self.device)
    }
}

/// Nanoseconds to take off the times of a device; see [`Skew::shift_ns`].
pub fn shift_ns(skews: &[Skew], device: i32) -> i64 {
    skews.iter().find(|skew| skew.device == device).map_or(0, Skew::shift_ns)
}

/// The clocks of a rank's devices, by device.
///
/// # Cost
/// `O(n log n)` in the device rows of the window.
pub fn of(scope: &Scope<'_>) -> Vec<Skew> {
    let trace = scope.trace;
    let streams = Streams::of(scope);
    let mut skews: BTreeMap<i32, Skew> = BTreeMap::new();
    let none = |device| Skew {
        rank: trace.rank,
        device,
        lower_ns: None,
        upper_ns: None,
        wait_count: 0,
        late_count: 0,
        launch_count: 0,
        early_count: 0,
    };
    for &Launched { row, call, .. } in streams.0.values().flatten() {
        let device = trace.device(row);
        let skew = skews.entry(device).or_insert_with(|| none(device));
        let delay = trace.slices.start(row) - trace.slices.start(call);
        skew.upper_ns = Some(skew.upper_ns.map_or(delay, |upper| upper.min(delay)));
        skew.launch_count += 1;
        skew.early_count += u64::from(delay < 0);
    }
    let ahead: BTreeMap<i32, i64> =
        skews.iter().map(|(device, skew)| (*device, skew.upper_ns.unwrap_or(0).max(0))).collect();
    for (call, work) in blocking(scope, &streams, &ahead) {
        let device = trace.device(work);
        let skew = skews.entry(device).or_insert_with(|| none(device));
        let overrun = trace.slices.end(work) - trace.slices.end(call);
        skew.lower_ns = Some(skew.lower_ns.map_or(overrun, |lower| lower.max(overrun)));
        skew.wait_count += 1;
        skew.late_count += u64::from(overrun > 0);
    }
    skews.into_values().collect()
}

/// Per device and stream, the works whose launch was recorded, by their start.
struct Streams(BTreeMap<(i32, i32), Vec<Launched>>);

/// Device work whose launch was recorded.
#[derive(Clone, Copy)]
struct Launched {
    /// When the last launch up to it on its stream began; ascends within a stream.
    at: i64,
    row: u32,
    call: u32,
}

impl Streams {
    fn of(scope: &Scope<'_>) -> Self {
        let trace = scope.trace;
        let mut streams: BTreeMap<(i32, i32), Vec<Launched>> = BTreeMap::new();
        for &row in &scope.device_rows {
            let Some(call) = scope.links().call(row) else { continue };
            let works = streams.entry((trace.device(row), trace.stream(row))).or_default();
            let before = works.last().map_or(i64::MIN, |last| last.at);
            works.push(Launched { at: trace.slices.start(call).max(before), row, call });
        }
        Self(streams)
    }

    /// The last work that was launched on each stream before a time.
    fn last(&self, before: i64) -> impl Iterator<Item = ((i32, i32), u32)> {
        self.0.iter().filter_map(move |(stream, works)| {
            let earlier = works.partition_point(|work| work.at < before);
            earlier.checked_sub(1).map(|at| (*stream, works[at].row))
        })
    }
}

/// Calls that truly block, each with work it waited for; `ahead` is how far each device's clock may
/// be ahead.
fn blocking(
    scope: &Scope<'_>,
    streams: &Streams,
    ahead: &BTreeMap<i32, i64>,
) -> Vec<(u32, u32)> {
    let trace = scope.trace;
    let names = calls::names(trace);
    let syncs = syncs(trace);
    let mut found = Vec::new();
    for call in trace.rows() {
        if !trace.kind(call).is_call() || !scope.starts_inside(call) {
            continue;
        }
        let does = names[trace.slices.name[call as usize].0 as usize];
        match does {
            Call::Plain | Call::BlockingCopy => {
                let own = scope.links().work(call).iter();
                found
                    .extend(own.filter(|row| blocks(trace, does, call, **row)).map(|w| (call, *w)));
            }
            Call::StreamSync | Call::DeviceSync => {
                let stream = trace.slices.correlation(call).and_then(|id| syncs.get(&id));
                let meant = awaited(scope, streams, (call, does), stream.copied());
                let by_time = || stream.is_none().then(|| by_times(scope, streams, call, ahead));
                found.extend(meant.or_else(|| by_time().flatten()));
            }
            Call::EventSync | Call::Free | Call::EventRecord | Call::StreamWait => {}
        }
    }
    found
}

/// The streams that recorded waits name, by correlation id.
fn syncs(trace: &Trace) -> BTreeMap<u64, i64> {
    let stream = |row: u32| {
        let named = trace.slices.sync.get(row).and_then(|wait| wait.stream);
        named.or(trace.slices.stream(row).map(i64::from)).filter(|stream| *stream >= 0)
    };
    let rows = trace.rows().filter(|row| trace.kind(*row) == Kind::Sync);
    rows.filter_map(|row| Some((trace.slices.correlation(row)?, stream(row)?))).collect()
}

/// What a wait for a stream or a device was for, where that is beyond doubt: the stream is named,
/// or there is no other one. Work on other streams says nothing of a wait that returns before it.
fn awaited(
    scope: &Scope<'_>,
    streams: &Streams,
    (call, does): (u32, Call),
    named: Option<i64>,
) -> Option<(u32, u32)> {
    let slices = &scope.trace.slices;
    let devices: BTreeSet<i32> = streams.0.keys().map(|(device, _)| *device).collect();
    let launched = streams.last(slices.start(call));
    let meant = launched.filter(|((_, stream), _)| match (does, named) {
        (Call::DeviceSync, _) => devices.len() == 1,
        (_, Some(named)) => i64::from(*stream) == named && devices.len() == 1,
        (_, None) => streams.0.len() == 1,
    });
    let last = meant.map(|(_, work)| work).max_by_key(|work| slices.end(*work))?;
    Some((call, last))
}

/// What a long wait for an unnamed stream was for, where its times leave one answer: nothing that it
/// may have waited for ended shortly before it returned, and by the device's clock one work ended
/// after it, by no more than that clock may be ahead.
fn by_times(
    scope: &Scope<'_>,
    streams: &Streams,
    call: u32,
    ahead: &BTreeMap<i32, i64>,
) -> Option<(u32, u32)> {
    let slices = &scope.trace.slices;
    let (start, end) = (slices.start(call), slices.end(call));
    if end - start < BLOCKED_NS {
        return None;
    }
    let mut behind = None;
    for ((device, _), work) in streams.last(start) {
        let late = slices.end(work) - end;
        if (-RETURN_NS..=0).contains(&late) {
            return None;
        }
        if late > 0 && late <= ahead.get(&device).copied().unwrap_or(0) {
            if behind.is_some() {
                return None;
            }
            behind = Some((call, work));
        }
    }
    behind
}

/// Whether a call returns only when its copy has ended. Pageable copies to a device of CUDA return
/// when their bytes are staged, copies within a device at once.
fn blocks(trace: &Trace, does: Call, call: u32, row: u32) -> bool {
    if trace.kind(row) != Kind::Memcpy {
        return false;
    }
    let name = trace.name(row);
    let to_host = name.contains("DtoH") || name.contains("DeviceToHost");
    let to_device = name.contains("HtoD") || name.contains("HostToDevice");
    let is_hip = trace.name(call).starts_with("hip");
    match does {
        Call::BlockingCopy => to_host || (to_device && is_hip),
        _ => to_host && name.contains("Pageable"),
    }
}

#[cfg(test)]
mod tests;
