//! Breaks down a rank's window into busy and idle time, and busy time into the classes of work.

use schema::TableRow;
use serde::Serialize;

use trace::store::EventKind;

use crate::facts::classify::WorkClass;
use crate::facts::interval;
use crate::facts::scope::Scope;
use crate::percent::percent;
use crate::tables::overlap::Exclusive;

/// Breakdown of the window of one rank or of one device. The parts are exact: `compute +
/// exposed_communication + exposed_memory + exposed_other + idle = window`.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct Breakdown {
    pub rank: u32,
    /// The device, or `None` for all devices of the rank together.
    pub device: Option<i32>,
    /// Number of devices that had work. With several devices, busy time is the time in which at
    /// least one of them worked. For a recording without devices, see
    /// [`compute_recorded_breakdown`].
    pub device_count: u32,
    pub device_row_count: u64,
    pub window_ns: i64,
    pub busy_ns: i64,
    pub idle_ns: i64,
    pub compute_ns: i64,
    /// Time in which device work runs, but no compute.
    pub non_compute_ns: i64,
    pub communication_ns: i64,
    /// Time in which communication runs, but no compute.
    pub exposed_communication_ns: i64,
    /// Time in which copies or memsets run.
    pub memory_ns: i64,
    /// Time in which copies or memsets run, but neither compute nor communication.
    pub exposed_memory_ns: i64,
    /// Time in which work of the class `Other` runs.
    pub other_ns: i64,
    /// Time in which only work of the class `Other` runs.
    pub exposed_other_ns: i64,
    /// Time in which communication and compute run at the same time.
    pub overlap_ns: i64,
    pub busy_pct: Option<f64>,
    pub idle_pct: Option<f64>,
    pub compute_pct: Option<f64>,
    pub non_compute_pct: Option<f64>,
    /// `overlap_ns` relative to `communication_ns`, in percent; `None` without communication.
    pub overlap_pct: Option<f64>,
}

/// Computes the breakdown of a rank, for all its devices together.
///
/// # Cost
/// The cost is `O(n)` in the device rows of the scope.
pub fn compute_breakdown(scope: &Scope<'_>) -> Breakdown {
    let row = row(scope, &Exclusive::new(scope));
    Breakdown { device_count: scope.devices().len() as u32, ..row }
}

/// Breaks down a recording that may lack device work. In a recording without device work, the host
/// counts as the device. The host computes in operators, the time between operators has the class
/// `Other`, and no time is idle.
pub fn compute_recorded_breakdown(scope: &Scope<'_>) -> Breakdown {
    if is_of_host(scope) { compute_host_breakdown(scope) } else { compute_breakdown(scope) }
}

/// Returns whether a recording contains only a host, that is, no device work inside or outside the
/// window.
pub fn is_of_host(scope: &Scope<'_>) -> bool {
    let trace = scope.trace;
    let is_host =
        |row: &u32| matches!(trace.kind(*row), EventKind::Operator | EventKind::Annotation);
    // A truncated recording may have lost its device rows, so it is not known to contain only a
    // host.
    scope.device_rows.is_empty()
        && trace.cut.is_none()
        && !trace.rows().any(|row| trace.kind(row).is_device_work() || trace.kind(row).is_call())
        && trace.rows().any(|row| is_host(&row))
}

fn compute_host_breakdown(scope: &Scope<'_>) -> Breakdown {
    let trace = scope.trace;
    let works = |row: &u32| {
        trace.kind(*row) == EventKind::Operator && !crate::facts::tree::is_label(trace, *row)
    };
    let spans = trace.rows().filter(works).map(|row| scope.clipped(row)).collect();
    let compute_ns = interval::length(&interval::union(spans));
    let window_ns = scope.window.length();
    let other_ns = window_ns - compute_ns;
    let row = row(scope, &Exclusive::default());
    Breakdown {
        busy_ns: window_ns,
        idle_ns: 0,
        compute_ns,
        non_compute_ns: other_ns,
        other_ns,
        exposed_other_ns: other_ns,
        busy_pct: percent(window_ns, window_ns),
        idle_pct: percent(0, window_ns),
        compute_pct: percent(compute_ns, window_ns),
        non_compute_pct: percent(other_ns, window_ns),
        ..row
    }
}

/// Computes the breakdown of each device with work in the window, sorted by device.
pub fn by_device(scope: &Scope<'_>) -> Vec<Breakdown> {
    let each = Exclusive::by_device(scope).into_iter();
    each.map(|(device, times)| Breakdown {
        device: Some(device),
        device_count: 1,
        ..row(scope, &times)
    })
    .collect()
}

fn row(scope: &Scope<'_>, times: &Exclusive) -> Breakdown {
    let window_ns = scope.window.length();
    let busy_ns = times.busy();
    let idle_ns = window_ns - busy_ns;
    let compute_ns = times.running(WorkClass::Compute);
    let communication_ns = times.running(WorkClass::Communication);
    let overlap_ns = times.both(WorkClass::Communication, WorkClass::Compute);
    let non_compute_ns = busy_ns - compute_ns;
    let most = [WorkClass::Compute, WorkClass::Communication, WorkClass::Memory];
    Breakdown {
        rank: scope.trace.rank,
        device: None,
        device_count: 0,
        device_row_count: times.row_count,
        window_ns,
        busy_ns,
        idle_ns,
        compute_ns,
        non_compute_ns,
        communication_ns,
        exposed_communication_ns: times.exposed(WorkClass::Communication, &most[..1]),
        memory_ns: times.running(WorkClass::Memory),
        exposed_memory_ns: times.exposed(WorkClass::Memory, &most[..2]),
        other_ns: times.running(WorkClass::Other),
        exposed_other_ns: times.exposed(WorkClass::Other, &most),
        overlap_ns,
        busy_pct: percent(busy_ns, window_ns),
        idle_pct: percent(idle_ns, window_ns),
        compute_pct: percent(compute_ns, window_ns),
        non_compute_pct: percent(non_compute_ns, window_ns),
        overlap_pct: percent(overlap_ns, communication_ns),
    }
}

#[cfg(test)]
mod tests;
