//! Lists the memory of each device over time, its peak, and the operators that allocated it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use schema::TableRow;
use serde::Serialize;
use trace::store::{Allocation, Trace};

use crate::facts::tree::OperatorTree;
use crate::percent::percent;

/// Memory of a device after one allocation or release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, TableRow)]
pub struct MemoryPoint {
    pub rank: u32,
    /// The device, or −1 for the host.
    pub device: i32,
    /// Time of the event, in absolute nanoseconds.
    pub time_ns: i64,
    /// Bytes that this event allocated; negative if it freed memory.
    pub change_bytes: i64,
    /// Bytes allocated to tensors after the event.
    pub allocated_bytes: i64,
    /// Bytes held by the allocator after the event.
    pub reserved_bytes: i64,
}

/// Peak memory of one device, and the operator whose allocation reached it.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct MemoryPeak {
    pub rank: u32,
    /// The device, or −1 for the host.
    pub device: i32,
    /// Maximum number of bytes allocated to tensors.
    pub allocated_bytes_max: i64,
    /// Time at which the maximum was first reached, in absolute nanoseconds.
    pub time_ns: i64,
    /// Bytes that the allocator held at the time of the peak.
    pub reserved_bytes: i64,
    /// Maximum number of bytes that the allocator held at any time.
    pub reserved_bytes_max: i64,
    /// Share of `reserved_bytes` that no tensor used at the peak, in percent.
    pub unused_pct: Option<f64>,
    /// `reserved_bytes_max` relative to the device's memory, in percent; `None` if the size of that
    /// memory is unknown.
    pub device_pct: Option<f64>,
    /// The operator whose allocation reached the peak.
    pub operator: Option<String>,
    /// The outermost operator or annotation around the operator of the peak.
    pub outermost: Option<String>,
}

/// Memory that operators of one name allocated and freed on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, TableRow)]
pub struct AllocatorRow {
    pub rank: u32,
    /// The device, or −1 for the host.
    pub device: i32,
    /// Innermost operator or annotation at the time; empty if none was open.
    pub operator: String,
    pub allocation_count: u64,
    pub allocated_bytes: i64,
    pub free_count: u64,
    pub freed_bytes: i64,
    /// Bytes allocated minus bytes freed.
    pub net_bytes: i64,
    pub largest_bytes: i64,
}

/// Lists every change of a device's memory over the whole trace, sorted by device, then time.
///
/// If a file has no totals, allocated bytes are counted from 0 at its first event.
///
/// # Cost
/// The cost is `O(n log n)` in the memory events.
pub fn list_points(trace: &Trace) -> Vec<MemoryPoint> {
    let mut timeline = Vec::with_capacity(trace.allocations.len());
    for (device, events) in events_by_device(trace) {
        timeline.extend(points(trace.rank, device, &events));
    }
    timeline
}

/// Finds the peak of each device that has memory events, sorted by device.
///
/// # Cost
/// The cost is that of [`list_points`], of which only one point per device is kept.
pub fn find_peaks(trace: &Trace, tree: &OperatorTree) -> Vec<MemoryPeak> {
    let devices = events_by_device(trace).into_iter();
    devices.filter_map(|(device, events)| find_peak(trace, tree, device, &events)).collect()
}

/// Sums the allocations of a trace by operator, sorted by device, then by allocated bytes in
/// descending order.
///
/// # Cost
/// The cost is `O(n log n)` in the memory events and the rows of the tree.
pub fn sum_by_operator(trace: &Trace, tree: &OperatorTree) -> Vec<AllocatorRow> {
    let devices = events_by_device(trace).into_iter();
    devices.flat_map(|(device, events)| operators(trace, tree, device, &events)).collect()
}

/// Returns the memory events of each device, sorted by time. The device is −1 for the host.
fn events_by_device(trace: &Trace) -> BTreeMap<i32, Vec<&Allocation>> {
    let mut by_device: BTreeMap<i32, Vec<&Allocation>> = BTreeMap::new();
    for allocation in &trace.allocations {
        let device = if allocation.device_type == 0 { -1 } else { allocation.device };
        by_device.entry(device).or_default().push(allocation);
    }
    // Events at the same time keep their order in the file, which a stable sort guarantees.
    by_device.values_mut().for_each(|events| events.sort_by_key(|event| event.time));
    by_device
}

fn points(rank: u32, device: i32, events: &[&Allocation]) -> impl Iterator<Item = MemoryPoint> {
    let has_totals = events.iter().any(|event| event.total_allocated != 0);
    let mut sum = 0i64;
    events.iter().map(move |event| {
        sum = sum.saturating_add(event.bytes);
        MemoryPoint {
            rank,
            device,
            time_ns: event.time,
            change_bytes: event.bytes,
            allocated_bytes: if has_totals { event.total_allocated } else { sum },
            reserved_bytes: event.total_reserved,
        }
    })
}

fn find_peak(
    trace: &Trace,
    tree: &OperatorTree,
    device: i32,
    events: &[&Allocation],
) -> Option<MemoryPeak> {
    let reserved_bytes_max = events.iter().map(|event| event.total_reserved).max()?;
    // If several points have the maximum, the first one is the peak.
    let (point, event) = points(trace.rank, device, events).zip(events).reduce(|peak, other| {
        if other.0.allocated_bytes > peak.0.allocated_bytes { other } else { peak }
    })?;
    let open = tree.deepest_at(event.track, point.time_ns);
    let name = |row: u32| trace.name(row).to_owned();
    let properties = trace.header.device(i64::from(device));
    let size = properties
        .map_or(0, |properties| i64::try_from(properties.memory_bytes).unwrap_or(i64::MAX));
    Some(MemoryPeak {
        rank: point.rank,
        device,
        allocated_bytes_max: point.allocated_bytes,
        time_ns: point.time_ns,
        reserved_bytes: point.reserved_bytes,
        reserved_bytes_max,
        unused_pct: percent(
            point.reserved_bytes.saturating_sub(point.allocated_bytes),
            point.reserved_bytes,
        ),
        device_pct: percent(reserved_bytes_max, size),
        operator: open.and_then(|row| tree.operator(trace, row)).map(name),
        outermost: open.map(|row| name(tree.ancestors(row).last().unwrap_or(row))),
    })
}

fn operators(
    trace: &Trace,
    tree: &OperatorTree,
    device: i32,
    events: &[&Allocation],
) -> Vec<AllocatorRow> {
    let mut by_name: BTreeMap<&str, AllocatorRow> = BTreeMap::new();
    for event in events {
        let open = tree.deepest_at(event.track, event.time);
        let owner = open.map(|row| tree.operator(trace, row).unwrap_or(row));
        let name = owner.map_or("", |row| trace.name(row));
        let row = by_name.entry(name).or_insert_with(|| AllocatorRow {
            rank: trace.rank,
            device,
            operator: name.to_owned(),
            allocation_count: 0,
            allocated_bytes: 0,
            free_count: 0,
            freed_bytes: 0,
            net_bytes: 0,
            largest_bytes: 0,
        });
        // Sizes in a damaged file may be absurd, so the sums saturate instead of overflowing.
        row.net_bytes = row.net_bytes.saturating_add(event.bytes);
        row.largest_bytes = row.largest_bytes.max(event.bytes);
        if event.bytes < 0 {
            row.free_count += 1;
            row.freed_bytes = row.freed_bytes.saturating_sub(event.bytes);
        } else {
            row.allocation_count += 1;
            row.allocated_bytes = row.allocated_bytes.saturating_add(event.bytes);
        }
    }
    let mut rows: Vec<AllocatorRow> = by_name.into_values().collect();
    rows.sort_by_key(|row| -row.allocated_bytes);
    rows
}
