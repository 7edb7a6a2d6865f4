//! Lists the launches of device work, each with the call, the work, and the delay between them.
//!
//! A delay is the start of the work minus the END of its call, as everywhere in rowmill. The delay
//! is negative if work starts before its call returns, which is usual. Work that starts before its
//! call even starts shows that the clocks of host and device disagree. Negative delays of both
//! kinds are counted and not hidden.

use std::collections::HashMap;

use schema::{CellType, TableRow};
use serde::Serialize;

use crate::facts::distribution;
use crate::facts::scope::Scope;
use crate::facts::window;

/// Thresholds that define short work, slow calls and late work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSettings {
    /// A call that takes longer than this is slow.
    pub slow_call_ns: i64,
    /// Work whose delay is longer than this is late.
    pub late_ns: i64,
}

impl LaunchSettings {
    /// The usual thresholds, 50 µs and 100 µs, as in Holistic Trace Analysis.
    pub const USUAL: Self = Self { slow_call_ns: 50_000, late_ns: 100_000 };
}

/// One row of device work with the call that launched it.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct LaunchRow<'a> {
    pub rank: u32,
    pub call_row: u32,
    pub device_row: u32,
    /// Name of the call, such as `cudaLaunchKernel`.
    pub call: &'a str,
    pub name: &'a str,
    pub device: i32,
    pub stream: i32,
    /// Start of the call, in absolute nanoseconds.
    pub start_ns: i64,
    pub call_ns: i64,
    pub device_ns: i64,
    /// Start of the work minus the end of the call.
    pub delay_ns: i64,
    /// Number of device rows that the call launched, which is more than one for a graph.
    pub work_count: u64,
    /// Whether this is the first device row of the call. The later rows of a call wait for each
    /// other, not for the call.
    pub is_first: bool,
    /// Whether the work takes less time than its call although the call is not slow.
    pub is_short: bool,
    pub is_slow_call: bool,
    pub is_late: bool,
}

/// Counts of the launches of a rank, with their partners and anomalies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TableRow)]
pub struct LaunchSummary {
    pub rank: u32,
    /// Number of calls that launched work of the window.
    pub call_count: u64,
    /// Number of device rows that these calls launched.
    pub work_count: u64,
    /// Number of calls that launched more than one device row, such as launches of graphs.
    pub graph_call_count: u64,
    /// Number of device rows that belong to launches of graphs.
    pub graph_work_count: u64,
    /// Number of device rows in the window whose call was not recorded.
    pub work_without_call_count: u64,
    /// Number of launch calls in the window whose work was not recorded.
    pub call_without_work_count: u64,
    /// Number of device rows that start before their call ends.
    pub early_count: u64,
    /// Number of device rows that start before their call starts, because the clocks of host and
    /// device disagree.
    pub before_call_count: u64,
    /// Largest time by which work starts before its call starts; 0 if no work does.
    pub before_call_ns_max: i64,
    /// Number of device rows that are shorter than their call although the call is not slow.
    pub short_count: u64,
    pub slow_call_count: u64,
    /// Number of calls whose first device row is late.
    pub late_count: u64,
    pub call_ns: i64,
    pub device_ns: i64,
    /// Sum of the positive delays of the first device row of each call.
    pub delay_ns: i64,
}

/// The name (of the call or of the work) by which launches are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum GroupedBy {
    /// Groups launches by the name of the call.
    Call,
    /// Groups launches by the name of the work.
    Work,
}

/// The quantity whose distribution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Duration of the calls, with each call counted once.
    Call,
    Device,
    /// Delay of the first device row of each call.
    Delay,
}

/// Distribution of a quantity, in nanoseconds, over the launches of one name.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct LaunchDistribution {
    pub rank: u32,
    pub grouped_by: GroupedBy,
    pub name: String,
    pub quantity: Quantity,
    pub count: u64,
    pub total_ns: i64,
    pub min_ns: i64,
    pub p5_ns: i64,
    pub p25_ns: i64,
    pub p50_ns: i64,
    pub p75_ns: i64,
    pub p95_ns: i64,
    pub max_ns: i64,
    pub mean_ns: f64,
}

/// Iterates over the launched work of the window, sorted by start of the work.
///
/// # Cost
/// The cost is `O(n)` in the rows of the scope and of graphs. The rows of a long trace take more
/// memory than the trace, so collect only those that are needed.
pub fn list_launches<'s, 'a>(
    scope: &'s Scope<'a>,
    settings: &'s LaunchSettings,
) -> impl Iterator<Item = LaunchRow<'a>> + use<'s, 'a> {
    let slices = &scope.trace.slices;
    let order = move |row: u32| (slices.start(row), row);
    let mut first_of_call = HashMap::<u32, u32>::new();
    let mut first = move |call: u32| {
        let work = scope.links().work(call);
        // Almost all calls launch one row, so only calls with several rows need an entry of the
        // table.
        match work {
            [only] => Some(*only),
            _ => Some(*first_of_call.entry(call).or_insert_with(|| {
                work.iter().copied().min_by_key(|row| order(*row)).unwrap_or(u32::MAX)
            })),
        }
    };
    let launched =
        scope.device_rows.iter().filter_map(|row| Some((*row, scope.links().call(*row)?)));
    launched.map(move |(row, call)| {
        let call_ns = slices.duration[call as usize];
        let device_ns = slices.duration[row as usize];
        let delay_ns = slices.start(row) - slices.end(call);
        let is_first = first(call) == Some(row);
        let is_slow_call = call_ns > settings.slow_call_ns;
        LaunchRow {
            rank: scope.trace.rank,
            call_row: call,
            device_row: row,
            call: scope.trace.name(call),
            name: scope.trace.name(row),
            device: scope.trace.device(row),
            stream: scope.trace.stream(row),
            start_ns: slices.start(call),
            call_ns,
            device_ns,
            delay_ns,
            work_count: scope.links().work(call).len() as u64,
            is_first,
            is_short: !is_slow_call && device_ns < call_ns,
            is_slow_call,
            is_late: is_first && delay_ns > settings.late_ns,
        }
    })
}

/// Summarizes the rows of [`list_launches`], and counts calls and work whose partner is missing.
pub fn summary<'a>(
    scope: &Scope<'_>,
    rows: impl IntoIterator<Item = LaunchRow<'a>>,
) -> LaunchSummary {
    let slices = &scope.trace.slices;
    let mut summary = LaunchSummary {
        rank: scope.trace.rank,
        call_without_work_count: calls_without_work(scope),
        ..LaunchSummary::default()
    };
    let mut calls = Vec::new();
    for row in rows {
        calls.push(row.call_row);
        // The delay counts from the end of the call, so the length of the call is added to compare
        // with its start.
        let before_call_ns = -(row.delay_ns + row.call_ns);
        summary.graph_work_count += u64::from(row.work_count > 1);
        summary.early_count += u64::from(row.delay_ns < 0);
        summary.before_call_count += u64::from(before_call_ns > 0);
        summary.before_call_ns_max = summary.before_call_ns_max.max(before_call_ns);
        summary.short_count += u64::from(row.is_short);
        summary.slow_call_count += u64::from(row.is_slow_call && row.is_first);
        summary.late_count += u64::from(row.is_late);
        summary.device_ns += row.device_ns;
        summary.delay_ns += if row.is_first { row.delay_ns.max(0) } else { 0 };
    }
    summary.work_count = calls.len() as u64;
    summary.work_without_call_count = (scope.device_rows.len() - calls.len()) as u64;
    calls.sort_unstable();
    calls.dedup();
    summary.call_count = calls.len() as u64;
    summary.call_ns = calls.iter().map(|call| slices.duration[*call as usize]).sum();
    let is_graph = |call: &&u32| scope.links().work(**call).len() > 1;
    summary.graph_call_count = calls.iter().filter(is_graph).count() as u64;
    summary
}

fn calls_without_work(scope: &Scope<'_>) -> u64 {
    let trace = scope.trace;
    let launches: Vec<bool> = trace.strings.iter().map(window::is_launch).collect();
    let is_lost = |row: &u32| {
        trace.kind(*row).is_call()
            && launches[trace.slices.name[*row as usize].0 as usize]
            && scope.links().work(*row).is_empty()
            && scope.starts_inside(*row)
    };
    trace.rows().filter(is_lost).count() as u64
}

/// Computes distributions by name of the call or of the work, sorted by total time in descending
/// order, then by name.
///
/// # Cost
/// The cost is `O(n log n)` in the rows.
pub fn distributions(rows: &[LaunchRow<'_>], grouped_by: GroupedBy) -> Vec<LaunchDistribution> {
    let name = |row: &LaunchRow<'_>| match grouped_by {
        GroupedBy::Call => row.call.to_owned(),
        GroupedBy::Work => row.name.to_owned(),
    };
    let mut place = HashMap::<&str, usize>::new();
    let mut groups: Vec<Vec<&LaunchRow<'_>>> = Vec::new();
    for row in rows {
        let name = match grouped_by {
            GroupedBy::Call => row.call,
            GroupedBy::Work => row.name,
        };
        let at = *place.entry(name).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Vec::new());
        }
        groups[at].push(row);
    }
    let time = |group: &[&LaunchRow<'_>]| group.iter().map(|row| row.device_ns).sum::<i64>();
    groups.sort_by_cached_key(|group| (std::cmp::Reverse(time(group)), name(group[0])));
    let quantities = [Quantity::Call, Quantity::Device, Quantity::Delay];
    let group_rows = |group: Vec<&LaunchRow<'_>>| {
        quantities.map(|quantity| distribution(&group, grouped_by, name(group[0]), quantity))
    };
    groups.into_iter().flat_map(group_rows).collect()
}

fn distribution(
    group: &[&LaunchRow<'_>],
    grouped_by: GroupedBy,
    name: String,
    quantity: Quantity,
) -> LaunchDistribution {
    let first = || group.iter().filter(|row| row.is_first);
    let mut values: Vec<i64> = match quantity {
        Quantity::Call => first().map(|row| row.call_ns).collect(),
        Quantity::Device => group.iter().map(|row| row.device_ns).collect(),
        Quantity::Delay => first().map(|row| row.delay_ns).collect(),
    };
    let spread = distribution::describe_values(&mut values);
    LaunchDistribution {
        rank: group[0].rank,
        grouped_by,
        name,
        quantity,
        count: spread.count,
        total_ns: spread.total,
        min_ns: spread.min,
        p5_ns: spread.p5,
        p25_ns: spread.p25,
        p50_ns: spread.p50,
        p75_ns: spread.p75,
        p95_ns: spread.p95,
        max_ns: spread.max,
        mean_ns: spread.mean,
    }
}

#[cfg(test)]
mod tests;
