//! Which part of a trace is looked at.

use std::collections::BTreeSet;

use serde::Serialize;
use trace::store::{Kind, Trace};

use crate::links::Links;

const STEP: &str = "ProfilerStep#";

/// Which part of a trace is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowRule {
    /// Everything recorded.
    All,
    /// The whole steps; everything if there are fewer than two.
    Steps,
    /// What Holistic Trace Analysis keeps: with two or more steps, what was launched before the
    /// last one began. The window is the span of the device work kept.
    Hta,
}

/// A stretch of time: `start..end`, absolute nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// The rule that made it: [`WindowRule::All`] where there were too few steps.
    pub rule: WindowRule,
    /// First nanosecond.
    pub start: i64,
    /// First nanosecond behind it.
    pub end: i64,
    /// The steps inside, by start; empty where the trace names none.
    pub steps: Vec<Step>,
}

/// One step of training, as the profiler's annotation on a thread marks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The number in `ProfilerStep#N`.
    pub number: i64,
    /// Row of the annotation.
    pub row: u32,
    /// Absolute nanoseconds.
    pub start: i64,
    /// Absolute nanoseconds.
    pub end: i64,
    /// Whether everything it launched was recorded, and nothing from before ran in it unseen.
    pub is_whole: bool,
}

impl Window {
    /// Nanoseconds of the window.
    pub fn length(&self) -> i64 {
        self.end - self.start
    }
}

/// The steps of a trace, by start; where several threads or categories mark one, the first row.
/// A trace without steps needs no `links`.
pub fn steps<'a>(trace: &Trace, links: impl FnOnce() -> &'a Links) -> Vec<Step> {
    let slices = &trace.slices;
    let number = |name: &str| name.strip_prefix(STEP)?.parse::<i64>().ok();
    let numbers: Vec<Option<i64>> = trace.strings.iter().map(number).collect();
    if numbers.iter().all(Option::is_none) {
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut steps: Vec<Step> = trace
        .rows()
        .filter_map(|row| Some((numbers[slices.name[row as usize].0 as usize]?, row)))
        .filter(|(_, row)| matches!(trace.kind(*row), Kind::Annotation | Kind::Operator))
        .filter(|(number, _)| seen.insert(*number))
        .map(|(number, row)| Step {
            number,
            row,
            start: slices.start(row),
            end: slices.end(row),
            is_whole: slices.unfinished.get(row).is_none(),
        })
        .collect();
    steps.sort_by_key(|step| (step.start, step.row));
    if !steps.is_empty() {
        mark_incomplete(trace, links(), &mut steps);
    }
    steps
}

/// A recording cuts its first and its last step: device work of the first was launched before the
/// recording began, or launches of the last have no device row.
fn mark_incomplete(trace: &Trace, links: &Links, steps: &mut [Step]) {
    let slices = &trace.slices;
    let within = |step: &Step, time: i64| step.start <= time && time < step.end;
    let device = || trace.rows().filter(|row| trace.kind(*row).is_device_work());
    if let Some(first) = steps.first_mut() {
        let mut orphans = device().filter(|row| links.call(*row).is_none());
        // Work whose launch is never recorded, as on some vendors' streams, says nothing.
        if orphans.any(|row| within(first, slices.start(row)))
            && device().any(|row| links.call(row).is_some())
        {
            first.is_whole = false;
        }
    }
    if let Some(last) = steps.last_mut() {
        let is_lost = |row: u32| {
            trace.kind(row).is_call()
                && within(last, slices.start(row))
                && is_launch(trace.name(row))
                && links.work(row).is_empty()
        };
        if device().next().is_some() && trace.rows().any(is_lost) {
            last.is_whole = false;
        }
    }
}

/// Whether a call of this name puts work on a device.
///
/// # Source
/// CUDA runtime and driver API, HIP runtime API; the names Kineto writes.
pub fn is_launch(call: &str) -> bool {
    const LAUNCHES: [&str; 19] = [
        "LaunchKernel",
        "LaunchKernelEx",
        "LaunchKernelExC",
        "LaunchCooperativeKernel",
        "LaunchCooperativeKernelMultiDevice",
        "GraphLaunch",
        "ExtLaunchKernel",
        "ExtModuleLaunchKernel",
        "ModuleLaunchKernel",
        "ModuleLaunchCooperativeKernel",
        "DrvLaunchKernelEx",
        "Memcpy",
        "MemcpyAsync",
        "MemcpyPeerAsync",
        "MemcpyWithStream",
        "MemcpyFromSymbol",
        "MemcpyToSymbol",
        "Memset",
        "MemsetAsync",
    ];
    // CUPTI names versions of a call, such as `cudaLaunchKernel_v7000`, and a stream's default:
    // `cudaLaunchKernel_ptsz_v7000`.
    let plain = call.split_once("_v").map_or(call, |(plain, _)| plain);
    let plain =
        plain.strip_suffix("_ptsz").or_else(|| plain.strip_suffix("_ptds")).unwrap_or(plain);
    let vendor = ["cuda", "cu", "hip"].iter().find_map(|vendor| plain.strip_prefix(vendor));
    vendor.is_some_and(|call| LAUNCHES.contains(&call))
}

/// The span of everything recorded: operators, calls, annotations and device work. `None` of an
/// empty trace.
pub fn recorded(trace: &Trace) -> Option<(i64, i64)> {
    let lost = lost_start(trace);
    // Overhead rows may lie anywhere.
    let counts = |row: &u32| !matches!(trace.kind(*row), Kind::Overhead | Kind::Window);
    let mut span: Option<(i64, i64)> = None;
    for row in trace.rows().filter(counts) {
        let (from, to) = (trace.slices.start(row), trace.slices.end(row));
        if Some(from) != lost {
            let (start, end) = span.unwrap_or((from, to));
            span = Some((start.min(from), end.max(to)));
        }
    }
    span
}

/// The start that means "none was recorded": profilers write time 0 for work they lost sight of.
/// `None` where time 0 is near the other rows, as in a simulated trace.
pub fn lost_start(trace: &Trace) -> Option<i64> {
    const DAY: i64 = 86_400_000_000_000;
    let zero = trace.header.base_time_ns;
    let starts = &trace.slices.start;
    let first = starts.iter().filter(|start| **start != zero).min()?;
    (*first > zero.saturating_add(DAY)).then_some(zero)
}

#[cfg(test)]
mod tests;
