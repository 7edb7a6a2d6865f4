//! Selects the analyzed part of a trace and finds its steps.

mod optimizer;
mod step;

use std::collections::BTreeSet;

use serde::Serialize;
use trace::store::{EventKind, Trace};

use crate::facts::captures::Captures;
use crate::facts::distribution;
use crate::facts::frames::Frames;
use crate::facts::links::Links;
use crate::facts::named;

pub use step::{Lack, StepMark, TrainingStep};

/// The rule that selects the analyzed part of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowRule {
    All,
    /// The whole steps, or the whole trace if it has fewer than two whole steps.
    Steps,
    /// The part that Holistic Trace Analysis keeps. With two or more steps, that is everything
    /// launched before the last step began. The window is the span of the device work that is kept.
    Hta,
}

/// The analyzed stretch of time `start..end`, in absolute nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimeWindow {
    /// The rule that was applied, which is [`WindowRule::All`] if there were too few steps.
    pub rule: WindowRule,
    pub start: i64,
    /// End of the window, which is exclusive.
    pub end: i64,
    /// The steps inside the window, sorted by start; empty if the trace names no steps.
    pub steps: Vec<TrainingStep>,
}

impl TimeWindow {
    /// Returns the length of the window in nanoseconds.
    pub fn length(&self) -> i64 {
        self.end - self.start
    }
}

/// Returns the steps of a trace, sorted by start, and the kind of annotation that delimits them,
/// which is `None` without steps. `links` and `frames` are called only if they are needed.
pub(crate) fn steps<'a>(
    trace: &Trace,
    links: impl FnOnce() -> &'a Links,
    frames: impl FnOnce() -> &'a Frames,
) -> (Option<StepMark>, Vec<TrainingStep>) {
    let named = Some((StepMark::ProfilerStep, named_steps(trace))).filter(|(_, s)| !s.is_empty());
    let Some((mark, mut steps)) = named.or_else(|| optimizer::infer_steps(trace)) else {
        return (None, Vec::new());
    };
    mark_incomplete(trace, links(), frames, &mut steps);
    for step in &mut steps {
        step.is_whole = step.lack.is_none();
    }
    (Some(mark), steps)
}

/// Returns the steps that are named by `ProfilerStep#N` annotations. If several threads or
/// categories mark the same step, the first row counts.
pub(crate) fn named_steps(trace: &Trace) -> Vec<TrainingStep> {
    let slices = &trace.slices;
    let number =
        |name: &str| name.strip_prefix(StepMark::ProfilerStep.prefix())?.parse::<i64>().ok();
    let numbers: Vec<Option<i64>> = trace.strings.iter().map(number).collect();
    if numbers.iter().all(Option::is_none) {
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut steps: Vec<TrainingStep> = trace
        .rows()
        .filter_map(|row| Some((numbers[slices.name[row as usize].0 as usize]?, row)))
        .filter(|(_, row)| matches!(trace.kind(*row), EventKind::Annotation | EventKind::Operator))
        // Several threads may mark the same step, so only the first row with each number counts.
        .filter(|(number, _)| seen.insert(*number))
        .map(|(number, row)| TrainingStep {
            number,
            row,
            start: slices.start(row),
            end: slices.end(row),
            is_whole: true,
            lack: slices.unfinished.get(row).map(|_| Lack::End),
        })
        .collect();
    steps.sort_by_key(|step| (step.start, step.row));
    if are_beside_the_work(trace, &steps) {
        return Vec::new();
    }
    steps
}

/// Returns whether the step annotations cover almost none of the recorded time and work, as if
/// `prof.step()` was called only once after the loop.
pub(crate) fn are_beside_the_work(trace: &Trace, steps: &[TrainingStep]) -> bool {
    /// Steps must cover at least one part in this many of the recorded time and work.
    const PARTS: usize = 10;
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return false };
    let (from, to) = recorded(trace).unwrap_or_default();
    let marked: i64 = steps.iter().map(|step| step.end - step.start).sum();
    if PARTS as i64 * marked >= to - from {
        return false;
    }
    // A row counts as inside only if a step contains its start, because steps may have gaps between
    // them.
    let is_inside = |row: u32| {
        let start = trace.slices.start(row);
        let begun = steps.partition_point(|step| step.start <= start);
        first.start <= start && start < last.end && begun > 0 && start < steps[begun - 1].end
    };
    let share = |is_work: &dyn Fn(u32) -> bool| {
        let (mut all, mut inside) = (0, 0);
        for row in trace.rows().filter(|row| is_work(*row)) {
            all += 1;
            inside += usize::from(is_inside(row));
        }
        (all > 0).then_some(PARTS * inside < all)
    };
    let marks: BTreeSet<u32> = steps.iter().map(|step| step.row).collect();
    let is_mark = |row: u32| marks.contains(&row);
    // Traces without runtime calls, such as those of CPU jobs, are judged by their operators.
    share(&|row| trace.kind(row).is_call())
        .or_else(|| share(&|row| trace.kind(row) == EventKind::Operator && !is_mark(row)))
        .unwrap_or(false)
}

/// Share of a step's launches without device work, in percent, above which the step is incomplete.
const LOST_PCT: usize = 1;
/// A step without launches is dropped if it is shorter than the shortest other step divided by
/// this.
const BEGUN_PART: i64 = 10;

/// Marks steps that the recording cut. The first step is cut if earlier work ran among its work,
/// and a last step if its launches have no device work or the recording ended as the step began.
fn mark_incomplete<'a>(
    trace: &Trace,
    links: &Links,
    frames: impl FnOnce() -> &'a Frames,
    steps: &mut [TrainingStep],
) {
    let launched = StepLaunches::new(trace, links, frames, steps);
    if let Some(first) = steps.first_mut()
        && launched.is_mixed_with_earlier(trace, links)
    {
        first.lack = first.lack.or(Some(Lack::EarlierLaunches));
    }
    if let ([others @ .., last], [.., before, 0]) = (&mut *steps, launched.count.as_slice()) {
        let shortest = others.iter().map(|step| step.end - step.start).min();
        let is_short = shortest.is_some_and(|ns| BEGUN_PART * (last.end - last.start) < ns);
        if *before > 0 && is_short {
            last.lack = last.lack.or(Some(Lack::Launches));
        }
    }
    // If earlier steps end with launches without work too, that is usual for this job. Only more
    // launches without work in the last step show that the recording ended there.
    let usual = launched.trailing.iter().rev().skip(1).max().copied().unwrap_or(0);
    for (at, step) in steps.iter_mut().enumerate() {
        let is_last = at + 1 == launched.count.len();
        let is_cut = is_last && launched.trailing[at] > usual;
        if is_cut || 100 * launched.lost[at] > LOST_PCT * launched.count[at] {
            step.lack = step.lack.or(Some(Lack::DeviceWork));
        }
    }
}

/// Counts the launches of each step that lack device work.
struct StepLaunches {
    count: Vec<usize>,
    lost: Vec<usize>,
    /// Number of launches without device work after the last launch with device work, per step.
    trailing: Vec<usize>,
    /// The span of the device work that the first step launched.
    first: Option<(i64, i64)>,
}

impl StepLaunches {
    /// Counts the launches without device work in each step. Launches captured into a graph do not
    /// count, and neither do calls whose name never has device work.
    fn new<'a>(
        trace: &Trace,
        links: &Links,
        frames: impl FnOnce() -> &'a Frames,
        steps: &[TrainingStep],
    ) -> Self {
        let slices = &trace.slices;
        let names: Vec<bool> = trace.strings.iter().map(is_launch).collect();
        let name = |row: u32| slices.name[row as usize].0 as usize;
        let step_of = |row: u32| {
            let begun = steps.partition_point(|step| step.start <= slices.start(row));
            let at = begun.checked_sub(1)?;
            (slices.start(row) < steps[at].end).then_some(at)
        };
        let mut has_work = vec![false; names.len()];
        let mut found = Self {
            count: vec![0; steps.len()],
            lost: vec![0; steps.len()],
            trailing: vec![0; steps.len()],
            first: None,
        };
        let mut last_start = vec![i64::MIN; steps.len()];
        let mut lost: Vec<(u32, usize)> = Vec::new();
        let has_devices = trace.rows().any(|row| trace.kind(row).is_device_work());
        let launches = trace.rows().filter(|row| names[name(*row)] && trace.kind(*row).is_call());
        for row in launches {
            let works = links.work(row);
            has_work[name(row)] |= !works.is_empty();
            let Some(at) = step_of(row) else { continue };
            found.count[at] += 1;
            if works.is_empty() && has_devices {
                lost.push((row, at));
            } else {
                last_start[at] = last_start[at].max(slices.start(row));
            }
            for work in works.iter().filter(|_| at == 0) {
                let (from, to) = found.first.unwrap_or((i64::MAX, i64::MIN));
                found.first = Some((from.min(slices.start(*work)), to.max(slices.end(*work))));
            }
        }
        lost.retain(|(row, _)| has_work[name(*row)]);
        if lost.is_empty() {
            return found;
        }
        let captures = Captures::new(trace, frames());
        let arrived = arrived(trace);
        let empty = empty_memsets(trace, &arrived);
        lost.retain(|(row, _)| {
            // Nested calls share an id, but the device work is linked to only one of them.
            let id = slices.correlation(*row);
            !captures.contains(trace, *row)
                && !empty.contains(row)
                && id.is_none_or(|id| arrived.binary_search(&id).is_err())
        });
        for (row, at) in lost {
            found.lost[at] += 1;
            found.trailing[at] += usize::from(slices.start(row) > last_start[at]);
        }
        found
    }

    /// Returns whether work launched before the recording began ran among the work of the first
    /// step. Streams whose launches are never recorded do not count.
    fn is_mixed_with_earlier(&self, trace: &Trace, links: &Links) -> bool {
        let slices = &trace.slices;
        self.first.is_some_and(|(from, to)| {
            let mut works = trace.rows().filter(|row| trace.kind(*row).is_device_work());
            works.any(|row| {
                let is_among = slices.end(row) > from && slices.start(row) < to;
                is_among && links.call(row).is_none()
            })
        })
    }
}

/// Finds calls of memset with zero bytes. Such calls launch nothing, so they did not lose device
/// work. Traces do not record the size of a memset, but calls with zero bytes return in a tenth of
/// the usual time.
///
/// # Cost
/// The cost is `O(n log n)` in the memset calls.
pub(crate) fn empty_memsets(trace: &Trace, arrived: &[u64]) -> BTreeSet<u32> {
    /// A memset call without device work counts as empty if it takes less than a fifth of the
    /// median call with work.
    const PART: i64 = 5;
    let is_set = named::names(trace, |name| is_launch(name) && name.contains("Memset"));
    let is_call = |row: &u32| trace.kind(*row).is_call() && named::is_named(trace, &is_set, *row);
    let has_work = |row: &u32| {
        let id = trace.slices.correlation(*row);
        id.is_some_and(|id| arrived.binary_search(&id).is_ok())
    };
    let (with, without): (Vec<u32>, Vec<u32>) = trace.rows().filter(is_call).partition(has_work);
    let duration = |row: u32| trace.slices.duration[row as usize];
    let mut usual: Vec<i64> = with.into_iter().map(duration).collect();
    let median = distribution::integer_median(&mut usual).unwrap_or_default();
    without.into_iter().filter(|row| PART * duration(*row) <= median).collect()
}

/// Returns the correlation ids of all device work, ascending.
pub(crate) fn arrived(trace: &Trace) -> Vec<u64> {
    let works = trace.rows().filter(|row| trace.kind(*row).is_device_work());
    let mut ids: Vec<u64> = works.filter_map(|row| trace.slices.correlation(row)).collect();
    ids.sort_unstable();
    ids
}

/// Returns whether a call of this name launches device work.
///
/// # Source
/// The names are those of the CUDA runtime and driver API and of the HIP runtime API, as Kineto
/// writes them.
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
    // CUPTI appends the version to the name of a call, as in `cudaLaunchKernel_v7000`, and marks
    // the per-thread default stream, as in `cudaLaunchKernel_ptsz_v7000`.
    let plain = call.split_once("_v").map_or(call, |(plain, _)| plain);
    let plain =
        plain.strip_suffix("_ptsz").or_else(|| plain.strip_suffix("_ptds")).unwrap_or(plain);
    let vendor = ["cuda", "cu", "hip"].iter().find_map(|vendor| plain.strip_prefix(vendor));
    vendor.is_some_and(|call| LAUNCHES.contains(&call))
}

/// Returns the span of all operators, calls, annotations and device work, or `None` if the trace is
/// empty.
pub fn recorded(trace: &Trace) -> Option<(i64, i64)> {
    let lost = lost_start(trace);
    // The profiler's own rows may lie outside the recorded time, so they do not extend it.
    let counts = |row: &u32| !matches!(trace.kind(*row), EventKind::Overhead | EventKind::Window);
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

/// Returns the start time by which lost work is recognized, because profilers write time 0 for it.
/// The result is `None` if time 0 is close to the other rows, as in a simulated trace.
pub fn lost_start(trace: &Trace) -> Option<i64> {
    const DAY: i64 = 86_400_000_000_000;
    let zero = trace.header.base_time_ns;
    let starts = &trace.slices.start;
    let first = starts.iter().filter(|start| **start != zero).min()?;
    (*first > zero.saturating_add(DAY)).then_some(zero)
}

#[cfg(test)]
mod tests;
