//! Measures the steps of a rank's devices, each from the end of the last work launched in one host
//! step to the end of the last work launched in the next. If the devices' steps are longer than the
//! host's, the host runs ahead and the devices determine the length of the job.

use trace::store::Trace;

use crate::facts::interval::Interval;
use crate::facts::links::Links;
use crate::facts::window::{self, TimeWindow, TrainingStep, WindowRule};

/// Minimum relative excess of the devices' steps over the host's steps.
const LONGER: f64 = 0.01;

/// Returns the span of the devices' work for the steps of a window, by the devices' clocks, if it
/// is longer than the window. The span lasts from the end of all work launched before the window to
/// the end of all work launched inside.
///
/// # Cost
/// The cost is linear in the rows of the trace.
pub fn span(trace: &Trace, links: &Links, window: &TimeWindow) -> Option<Interval> {
    if window.rule != WindowRule::Steps {
        return None;
    }
    let (mut before, mut inside) = (earlier_end(trace, links), None);
    for row in trace.rows().filter(|row| trace.kind(*row).is_device_work()) {
        let Some(call) = links.call(row) else { continue };
        let launched = trace.slices.start(call);
        let last: &mut Option<i64> = match launched {
            at if at < window.start => &mut before,
            at if at < window.end => &mut inside,
            _ => continue,
        };
        *last = (*last).max(Some(trace.slices.end(row)));
    }
    // The backlog of a device is unknown if the work before the window was not recorded.
    let (start, end) = (before?.max(window.start), inside?.max(window.end));
    let longer = (end - start - window.length()) as f64;
    (longer > LONGER * window.length() as f64).then_some((start, end))
}

/// Measures the device time of each step, from the end of all work launched before the step to the
/// end of all work launched in it.
///
/// The time is `None` if nothing was launched before the step, because the backlog of the device is
/// then unknown. The time is also `None` if it differs from the host's step by 1 % or less.
///
/// # Cost
/// The cost is linear in the rows of the trace, times the logarithm of the number of steps.
pub fn find_device_steps(trace: &Trace, links: &Links, steps: &[TrainingStep]) -> Vec<Option<i64>> {
    // The last end of the work launched in each step. Entry 0 stands for the time before the first
    // step.
    let mut ends: Vec<Option<i64>> = vec![None; steps.len() + 1];
    ends[0] = earlier_end(trace, links);
    for row in trace.rows().filter(|row| trace.kind(*row).is_device_work()) {
        let Some(call) = links.call(row) else { continue };
        let launched = trace.slices.start(call);
        let begun = steps.partition_point(|step| step.start <= launched);
        let is_behind = steps.last().is_some_and(|last| launched >= last.end);
        if !is_behind {
            ends[begun] = ends[begun].max(Some(trace.slices.end(row)));
        }
    }
    for at in 1..ends.len() {
        ends[at] = ends[at].max(ends[at - 1]);
    }
    let device_length = |(step, ends): (&TrainingStep, &[Option<i64>])| {
        let host = step.end - step.start;
        let device = ends[1]? - ends[0]?;
        let differs = (device - host).abs() as f64 > LONGER * host as f64;
        differs.then_some(device)
    };
    steps.iter().zip(ends.windows(2)).map(device_length).collect()
}

/// Returns the last end of the work launched before the recording, which is work that has no
/// recorded launch and begins before any work with one. The result is `None` if no launch was
/// recorded.
fn earlier_end(trace: &Trace, links: &Links) -> Option<i64> {
    let works = || trace.rows().filter(|row| trace.kind(*row).is_device_work());
    let launched = works().filter(|row| links.call(*row).is_some());
    let first = launched.map(|row| trace.slices.start(row)).min()?;
    let lost = window::lost_start(trace);
    let is_earlier = |row: &u32| {
        let start = trace.slices.start(*row);
        start < first && Some(start) != lost && links.call(*row).is_none()
    };
    works().filter(is_earlier).map(|row| trace.slices.end(row)).max()
}

/// Returns the device work that was launched before a window ended and began after it, sorted by
/// start.
pub(crate) fn late_rows(trace: &Trace, links: &Links, window: &TimeWindow) -> Vec<u32> {
    let slices = &trace.slices;
    let is_late = |row: &u32| {
        let is_behind = trace.kind(*row).is_device_work() && slices.start(*row) >= window.end;
        let call = is_behind.then(|| links.call(*row)).flatten();
        let launched = call.map(|call| slices.start(call));
        launched.is_some_and(|at| at < window.end)
    };
    let mut rows: Vec<u32> = trace.rows().filter(is_late).collect();
    rows.sort_by_key(|row| (slices.start(*row), *row));
    rows
}

#[cfg(test)]
mod tests;
