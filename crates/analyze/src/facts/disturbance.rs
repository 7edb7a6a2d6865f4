//! Finds host time that a job in steady state does not repeat: set-up, loading of kernels at their
//! first launch, autotuning, graph capture, and the profiler's own work.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use trace::store::{EventKind, StringId, TrackId};

use crate::facts::calls::{self, CallKind};
use crate::facts::captures::Captures;
use crate::facts::distribution;
use crate::facts::interval::{self, Interval};
use crate::facts::named::{is_named, names};
use crate::facts::scope::Scope;
use crate::facts::tree::{self, OperatorTree};

/// A kind of host work that steady steps do not repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Disturbance {
    /// Driver calls that allocate memory or load code outside steady steps, or a first step that
    /// takes far longer than the others.
    WarmUp,
    /// The first launch of a kernel, which loads the kernel's code.
    FirstLaunch,
    /// A search that tries and times several variants of a kernel.
    Autotuning,
    /// Capture of a CUDA graph, during which launches do not run.
    GraphCapture,
    /// The profiler's work on its own buffers, and its waits when it starts and stops.
    Profiler,
}

/// All kinds of disturbances, in the order in which reports name them.
pub const DISTURBANCES: [Disturbance; 5] = [
    Disturbance::Profiler,
    Disturbance::GraphCapture,
    Disturbance::Autotuning,
    Disturbance::FirstLaunch,
    Disturbance::WarmUp,
];

/// A first launch counts as a disturbance if it takes at least this many times as long as the
/// median launch.
const FIRST_LAUNCH_RATIO: i64 = 10;
/// Minimum duration of a first launch that counts, because loading code takes far longer than the
/// microseconds of a launch.
const FIRST_LAUNCH_NS: i64 = 50_000;
/// A first step counts as a disturbance if it takes at least this many times as long as the median
/// of the others.
const FIRST_STEP_RATIO: f64 = 1.5;
/// Minimum number of measurements that make up a tuning loop.
const MEASURED_MIN: usize = 3;
/// Maximum number of launches between the two events of one measurement.
const LAUNCHES_MAX: usize = 8;
/// Parts of the names of operators, annotations and frames that try several variants of a kernel.
const TUNING: [&str; 8] = [
    "do_bench",
    "benchmark_all_configs",
    "autotune_to_one_config",
    "benchmark_fused_nodes",
    "cudnnFind",
    "miopenFind",
    "TunableOp",
    "rocblas_gemm_tune",
];

/// The disturbed times of each thread, by kind of disturbance.
#[derive(Clone, Debug, Default)]
pub struct Disturbances {
    /// Disjoint spans of each kind and thread, sorted by time. The thread is `None` for
    /// disturbances that affect all threads.
    spans: BTreeMap<(Disturbance, Option<TrackId>), Vec<Interval>>,
}

impl Disturbances {
    /// Returns the time within a span in which one kind of disturbance affected a thread.
    pub fn length_within(&self, kind: Disturbance, track: TrackId, span: Interval) -> i64 {
        let spans_of =
            |key: Option<TrackId>| self.spans.get(&(kind, key)).map_or(&[][..], Vec::as_slice);
        // A disturbance of all threads may lie inside a disturbance of this thread, so the two are
        // not added.
        let both = [spans_of(None), spans_of(Some(track))];
        both.into_iter().map(|spans| interval::length_within(spans, span)).max().unwrap_or_default()
    }

    /// Returns the disjoint times in which one kind of disturbance affected any thread.
    pub fn intervals(&self, kind: Disturbance) -> Vec<Interval> {
        let spans = self.spans.iter().filter(|((of, _), _)| *of == kind);
        interval::union(spans.flat_map(|(_, spans)| spans.iter().copied()).collect())
    }

    /// Returns whether no disturbance was found in the recording.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    fn add(&mut self, kind: Disturbance, track: Option<TrackId>, span: Interval) {
        self.spans.entry((kind, track)).or_default().push(span);
    }
}

/// Finds all disturbances of a recording. `tree` must be the operator tree of the scope's trace.
///
/// # Cost
/// The cost is `O(n log n)` in the host rows of the trace.
pub fn find_disturbances(scope: &Scope<'_>, tree: &OperatorTree) -> Disturbances {
    let mut found = Disturbances::default();
    let captures = Captures::new(scope.trace, scope.frames());
    for (track, spans) in captures.by_thread() {
        for span in spans {
            found.add(Disturbance::GraphCapture, Some(track), *span);
        }
    }
    profiler(scope, tree, &mut found);
    counter_collection(scope, &mut found);
    named(scope, &mut found);
    first_launches(scope, &mut found);
    warm_up(scope, &captures, &mut found);
    behind_captures(scope, &captures, &mut found);
    // Only a program that reads event times can time kernel variants, so other traces skip this
    // search.
    let takes_time = names(scope.trace, |name| name.contains("EventElapsedTime"));
    for thread in tree.threads.iter().filter(|_| takes_time.contains(&true)) {
        measured(scope, tree, thread, &takes_time, &mut found);
    }
    // Several detectors may find the same time, which must count only once.
    for spans in found.spans.values_mut() {
        *spans = interval::union(std::mem::take(spans));
    }
    found
}

/// Adds the profiler's own rows. Also adds device synchronizations before or after all other work
/// that are inside no operator or user annotation.
fn profiler(scope: &Scope<'_>, tree: &OperatorTree, found: &mut Disturbances) {
    let trace = scope.trace;
    // Rows of loading and allocation are set-up of the program, although the profiler writes them
    // as overhead.
    let set_up = |row: u32| calls::SET_UP.contains(&trace.name(row));
    for row in trace.rows().filter(|row| trace.kind(*row) == EventKind::Overhead && !set_up(*row)) {
        found.add(Disturbance::Profiler, None, (trace.slices.start(row), trace.slices.end(row)));
    }
    let names = calls::names(trace);
    let does = |row: u32| names[trace.slices.name[row as usize].0 as usize];
    let launches = trace
        .rows()
        .filter(|row| trace.kind(*row).is_call() && !scope.links().work(*row).is_empty());
    let works = launches.map(|row| (trace.slices.start(row), trace.slices.end(row)));
    let Some((first, last)) = works.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) else { return };
    let is_wait = |row: &u32| trace.kind(*row).is_call() && does(*row) == CallKind::DeviceSync;
    for row in trace.rows().filter(is_wait) {
        let (start, end) = (trace.slices.start(row), trace.slices.end(row));
        // The profiler also synchronizes inside its own step annotations, so these do not show that
        // the user's code waits.
        let is_users = tree.ancestors(row).any(|around| {
            let is_step = trace.name(around).starts_with("ProfilerStep#");
            matches!(trace.kind(around), EventKind::Operator | EventKind::Annotation) && !is_step
        });
        if !is_users && (end <= first || start >= last) {
            let track = trace.slices.track[row as usize];
            found.add(Disturbance::Profiler, Some(track), (start, end));
        }
    }
}

/// Adds launches during the collection of hardware counters. The profiler saves the memory of each
/// kernel, replays the kernel once per group of counters, and only then lets the launch return.
///
/// # Source
/// CUPTI calls this range profiling with kernel replay, and Kineto writes its rows as
/// `cuda_profiler_range`.
fn counter_collection(scope: &Scope<'_>, found: &mut Disturbances) {
    let trace = scope.trace;
    let is_collected = trace.categories.iter().any(|one| one.name == "cuda_profiler_range");
    let launches = names(trace, |name| is_collected && name.contains("LaunchKernel"));
    for row in trace.rows().filter(|row| is_named(trace, &launches, *row)) {
        if trace.kind(row).is_call() {
            let track = trace.slices.track[row as usize];
            let span = (trace.slices.start(row), trace.slices.end(row));
            found.add(Disturbance::Profiler, Some(track), span);
        }
    }
}

/// Adds operators, annotations and frames whose names show that they tune kernels.
fn named(scope: &Scope<'_>, found: &mut Disturbances) {
    let trace = scope.trace;
    let is_tuning = |name: &str| {
        let is_tuner = name.contains("autotuner.py(") && name.ends_with("_bench");
        is_tuner || TUNING.iter().any(|part| name.contains(part))
    };
    let tuning = names(trace, is_tuning);
    if !tuning.contains(&true) {
        return;
    }
    let is_host = |row: &u32| {
        matches!(trace.kind(*row), EventKind::Operator | EventKind::Annotation | EventKind::Python)
    };
    for row in trace.rows().filter(|row| is_named(trace, &tuning, *row)) {
        if is_host(&row) {
            let track = trace.slices.track[row as usize];
            let span = (trace.slices.start(row), trace.slices.end(row));
            found.add(Disturbance::Autotuning, Some(track), span);
        }
    }
}

/// Adds first launches of a kernel that take far longer than the median launch.
fn first_launches(scope: &Scope<'_>, found: &mut Disturbances) {
    let trace = scope.trace;
    let is_launch = names(trace, |name| name.contains("LaunchKernel"));
    let mut launches: Vec<u32> = trace
        .rows()
        .filter(|row| is_named(trace, &is_launch, *row) && trace.kind(*row).is_call())
        .collect();
    launches.sort_by_key(|row| (trace.slices.start(*row), *row));
    let mut lengths: Vec<i64> =
        launches.iter().map(|row| trace.slices.duration[*row as usize]).collect();
    let Some(usual) = distribution::integer_median(&mut lengths) else { return };
    // Both limits apply: the ratio alone would count jitter of launches that take only
    // microseconds.
    let least = (FIRST_LAUNCH_RATIO * usual).max(FIRST_LAUNCH_NS);
    let mut seen: BTreeSet<StringId> = BTreeSet::new();
    for row in launches {
        let Some(work) = scope.links().work(row).first() else { continue };
        let is_first = seen.insert(trace.slices.name[*work as usize]);
        if is_first && trace.slices.duration[row as usize] >= least {
            let track = trace.slices.track[row as usize];
            let span = (trace.slices.start(row), trace.slices.end(row));
            found.add(Disturbance::FirstLaunch, Some(track), span);
        }
    }
}

/// Adds set-up calls and compilation outside steady steps, and a first step that takes far longer
/// than the others. A step in which a graph is captured is not steady.
fn warm_up(scope: &Scope<'_>, captures: &Captures, found: &mut Disturbances) {
    let trace = scope.trace;
    let set_up = names(trace, |name| calls::SET_UP.contains(&name) || is_compilation(name));
    let steps = &scope.steps;
    let captured: Vec<Interval> =
        interval::union(captures.by_thread().flat_map(|(_, spans)| spans.to_vec()).collect());
    let is_steady = |time: i64| {
        let around = steps.iter().skip(1).find(|step| (step.start..step.end).contains(&time));
        around.is_some_and(|step| interval::length_within(&captured, (step.start, step.end)) == 0)
    };
    for row in trace.rows().filter(|row| is_named(trace, &set_up, *row)) {
        let (start, end) = (trace.slices.start(row), trace.slices.end(row));
        if !is_steady(start) {
            // Rows in which the profiler reports loading of code lie on tracks of their own, not on
            // a thread's.
            let is_of_thread = trace.kind(row) != EventKind::Overhead;
            let track = is_of_thread.then(|| trace.slices.track[row as usize]);
            found.add(Disturbance::WarmUp, track, (start, end));
        }
    }
    let mut others: Vec<i64> = steps.iter().skip(1).map(|step| step.end - step.start).collect();
    let usual = distribution::integer_median(&mut others).filter(|_| others.len() >= 2);
    if let (Some(first), Some(usual)) = (steps.first(), usual)
        && (first.end - first.start) as f64 >= FIRST_STEP_RATIO * usual as f64
    {
        found.add(Disturbance::WarmUp, None, (first.start, first.end));
    }
}

/// Returns whether PyTorch or Triton compiles in an annotation or a frame of this name.
fn is_compilation(name: &str) -> bool {
    let is_triton = name.contains("triton/compiler/compiler.py(") && name.ends_with(": compile");
    is_triton || name.contains("(dynamo_timed)") || name.contains("torch/_dynamo/convert_frame.py(")
}

/// Adds the time after a graph capture in which a thread warms up and compiles the next graph,
/// until the thread launches a graph or the step ends.
fn behind_captures(scope: &Scope<'_>, captures: &Captures, found: &mut Disturbances) {
    let trace = scope.trace;
    let is_replay = names(trace, |name| name.contains("GraphLaunch"));
    let replays = trace
        .rows()
        .filter(|row| is_named(trace, &is_replay, *row) && trace.kind(*row).is_call())
        .map(|row| trace.slices.start(row));
    let mut replays: Vec<i64> = replays.collect();
    replays.sort_unstable();
    for (track, spans) in captures.by_thread() {
        for (at, (_, end)) in spans.iter().enumerate() {
            let next = spans.get(at + 1).map(|(start, _)| *start);
            let replay = replays.get(replays.partition_point(|start| start < end)).copied();
            let step = scope.steps.iter().find(|step| (step.start..step.end).contains(end));
            let until = [next, replay, step.map(|step| step.end)].into_iter().flatten().min();
            if let Some(until) = until {
                found.add(Disturbance::WarmUp, Some(track), (*end, until));
            }
        }
    }
}

/// Adds loops that time kernel variants with events: operators that read several event times, and
/// consecutive measurements of the same kernels.
fn measured(
    scope: &Scope<'_>,
    tree: &OperatorTree,
    thread: &tree::TreeThread,
    takes_time: &[bool],
    found: &mut Disturbances,
) {
    let trace = scope.trace;
    let rows: Vec<u32> =
        tree.rows_of(thread).iter().copied().filter(|row| trace.kind(*row).is_call()).collect();
    let timed: Vec<usize> =
        (0..rows.len()).filter(|at| is_named(trace, takes_time, rows[*at])).collect();
    if timed.len() < MEASURED_MIN {
        return;
    }
    let span = |from: u32, to: u32| (trace.slices.start(from), trace.slices.end(to));
    let mut inside: BTreeMap<u32, usize> = BTreeMap::new();
    for at in &timed {
        if let Some(operator) = tree.operator(trace, rows[*at]) {
            *inside.entry(operator).or_default() += 1;
        }
    }
    for (operator, _) in inside.iter().filter(|(_, count)| **count >= MEASURED_MIN) {
        found.add(Disturbance::Autotuning, Some(thread.track), span(*operator, *operator));
    }
    // A tuning loop reads all event times together, after its last measurement.
    let is_between = |from: usize, to: usize| {
        rows[from + 1..to].iter().all(|row| scope.links().work(*row).is_empty())
    };
    for run in timed.chunk_by(|a, b| is_between(*a, *b)) {
        if run.len() >= MEASURED_MIN
            && let Some(first) = first_measured(scope, &rows[..run[0]], run.len())
        {
            let last = rows[run[run.len() - 1]];
            found.add(Disturbance::Autotuning, Some(thread.track), span(first, last));
        }
    }
}

/// Returns the first call of the last `count` measurements. Each must have launched the same few
/// kernels between two events, and nothing may have been launched after the last one. Collectives
/// do not count as measurements, because they always run between two events.
fn first_measured(scope: &Scope<'_>, calls: &[u32], count: usize) -> Option<u32> {
    let trace = scope.trace;
    let is_event = |row: &u32| calls::classify_call(trace.name(*row)) == CallKind::EventRecord;
    let events: Vec<usize> = (0..calls.len()).filter(|at| is_event(&calls[*at])).collect();
    let events = &events[events.len().checked_sub(2 * count)?..];
    let launched = |pair: &[usize]| {
        let between = calls[pair[0] + 1..pair[1]].iter();
        let works = between.filter_map(|call| scope.links().work(*call).first());
        works.map(|work| trace.slices.name[*work as usize]).collect::<Vec<StringId>>()
    };
    let first = launched(&events[..2]);
    let is_few = (1..=LAUNCHES_MAX).contains(&first.len());
    let is_own = first.iter().all(|name| {
        let name = trace.strings.get(*name);
        !name.starts_with("nccl") && !name.starts_with("rccl")
    });
    let is_same = events.chunks(2).all(|pair| launched(pair) == first);
    let is_last = launched(&[events[events.len() - 1], calls.len()]).is_empty();
    (is_few && is_own && is_same && is_last).then(|| calls[events[0]])
}
