//! Reports issues that are visible in the host's rows: steps, warm-up, the profiler's own work,
//! nesting.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::{EventKind as RowKind, StringId};

use super::issue::{Issue, IssueKind, Severity, milliseconds, place};
use crate::facts::calls;
use crate::facts::disturbance::Disturbance;
use crate::facts::interval;
use crate::facts::job::RankFacts;
use crate::facts::named::{is_named, names};
use crate::percent::percent;
use crate::tables::steps;
use crate::text::{agreeing, counted};

/// Minimum number of whole steps from which the variation of steps can be judged.
const STEPS_MIN: usize = 3;
/// A mean step is not representative if the coefficient of variation exceeds this value, in
/// percent.
const CV_PCT: f64 = 20.0;
/// Share of the window, in percent, above which the profiler's own work distorts the figures.
const OVERHEAD_PCT: f64 = 5.0;
/// Share of the window, in percent, above which set-up work distorts the figures.
const WARM_UP_PCT: f64 = 5.0;
/// Excess of a row over its parent that rounding to whole microseconds explains.
const ROUNDING_NS: i64 = 2_000;

pub(super) fn issues(rank: &RankFacts<'_>) -> Vec<Issue> {
    let mut issues = Vec::from_iter(step_count(rank));
    issues.extend(inferred_steps(rank));
    issues.extend(bad_nesting(rank));
    issues.extend(overhead(rank));
    issues.extend(warm_up(rank));
    issues.extend(missing_sync(rank));
    issues.extend(missing_arguments(rank));
    issues.extend(messages(rank));
    issues
}

fn inferred_steps(rank: &RankFacts<'_>) -> Option<Issue> {
    let source = rank.scope.step_mark?.source()?;
    let count = rank.scope.steps.len();
    let kind = IssueKind {
        id: "inferred-steps",
        severity: Severity::Info,
        matters: "a job that updates its weights more or less often than once per iteration has \
                  steps of another length",
        hint: "to be sure, call profiler.step() once per iteration",
    };
    let what = format!(
        "no ProfilerStep was recorded; {} {} inferred from {source}",
        counted(count as f64, "step"),
        agreeing(count as f64, "is", "are")
    );
    Some(kind.issue(Some(rank.scope.trace.rank), count as u64, what))
}

fn step_count(rank: &RankFacts<'_>) -> Option<Issue> {
    let of_rank = Some(rank.scope.trace.rank);
    let rows = rank.steps();
    let whole = rows.iter().filter(|step| step.is_whole).count();
    let matters = "figures cannot be given per step, and the window is the whole recording";
    let hint = match crate::facts::cpu_run::is_cpu_run(rank.scope.trace) {
        true => "record more steps: rowmill train --trace-steps A..B, for at least three",
        false => "call profiler.step() once per iteration, for at least three active steps",
    };
    if rows.is_empty() {
        // Annotations of steps that contain none of the work do not delimit steps.
        let mut names = rank.scope.trace.strings.iter();
        let (severity, what) = match names.any(|name| name.starts_with("ProfilerStep#")) {
            true => (Severity::Warning, "the steps that the trace names cover none of its work"),
            false => (Severity::Info, "the trace names no steps"),
        };
        let kind = IssueKind { id: "no-steps", severity, matters, hint };
        return Some(kind.issue(of_rank, 0, what.to_owned()));
    }
    if whole < STEPS_MIN {
        let matters = "means, quantiles and causes rest on too few steps";
        let kind = IssueKind { id: "few-steps", severity: Severity::Warning, matters, hint };
        let count = rows.len();
        let lacks = rank.scope.steps.iter();
        let lacks = lacks.filter_map(|step| Some((step.number, step.lack?.words())));
        let lacks = lacks.map(|(number, lack)| format!("step {number} {lack}"));
        let lacks = lacks.collect::<Vec<_>>().join(", ");
        let what = match (count, count - whole) {
            (1, 0) => "1 step recorded".to_owned(),
            (1, _) => format!("1 step recorded, which is not whole: {lacks}"),
            (_, 0) => format!("{count} steps recorded"),
            _ => format!("{count} steps recorded, {whole} of them whole: {lacks}"),
        };
        return Some(kind.issue(of_rank, whole as u64, what));
    }
    let summary = steps::summary(rank.scope.trace.rank, rows);
    let cv_pct = summary.cv_pct.filter(|cv_pct| *cv_pct > CV_PCT)?;
    let kind = IssueKind {
        id: "unsteady-steps",
        severity: Severity::Warning,
        matters: "a mean step stands for none of them; differences below the spread mean nothing",
        hint: "look at the longest step; leave out the first steps; profile more",
    };
    let what = format!(
        "step times vary by {cv_pct:.1} %: {} to {}",
        milliseconds(summary.durations.min_ns),
        milliseconds(summary.durations.max_ns)
    );
    Some(kind.issue(of_rank, summary.count, what).share(Some(cv_pct)))
}

fn bad_nesting(rank: &RankFacts<'_>) -> Option<Issue> {
    let clipped = &rank.tree().clipped;
    let worst = clipped.iter().max_by_key(|clip| clip.excess_ns)?;
    let is_rounding = worst.excess_ns <= ROUNDING_NS;
    let kind = IssueKind {
        id: "bad-nesting",
        severity: if is_rounding { Severity::Info } else { Severity::Warning },
        matters: "these rows were cut where their parent ends; host times of the parents may be short",
        hint: "look at these rows: asynchronous ranges belong on a track of their own",
    };
    let what = format!(
        "{} {}, by up to {}",
        counted(clipped.len() as f64, "host row"),
        agreeing(clipped.len() as f64, "reaches past its parent", "reach past their parent"),
        milliseconds(worst.excess_ns)
    );
    let share = percent(clipped.len() as i64, rank.tree().nodes.len() as i64);
    let issue = kind.issue(Some(rank.scope.trace.rank), clipped.len() as u64, what);
    Some(issue.share(share).at(place(rank.scope, worst.row)))
}

fn overhead(rank: &RankFacts<'_>) -> Option<Issue> {
    let trace = rank.scope.trace;
    let is_overhead = |row: &u32| trace.kind(*row) == RowKind::Overhead;
    let rows: Vec<u32> = trace.rows().filter(is_overhead).collect();
    let spans = rows.iter().map(|row| rank.scope.clipped(*row)).collect();
    let ns = interval::length(&interval::union(spans));
    let share = percent(ns, rank.scope.window.length()).filter(|share| *share > OVERHEAD_PCT)?;
    let kind = IssueKind {
        id: "profiler-overhead",
        severity: Severity::Warning,
        matters: "the job ran slower than without the profiler; host times are too long",
        hint: "record fewer activities: without stacks, shapes and memory; warm the profiler up",
    };
    let what = format!("the profiler's own work takes {} of the window", milliseconds(ns));
    Some(kind.issue(Some(trace.rank), rows.len() as u64, what).share(Some(share)))
}

/// Minimum duration from which the first call of its name counts as set-up. The first CUDA call of
/// a process creates the device's context, which takes hundreds of milliseconds, whereas calls of a
/// steady job take microseconds.
const FIRST_CALL_NS: i64 = 10_000_000;
/// A first call counts as set-up only if it takes this many times as long as each later call of its
/// name.
const FIRST_CALL_RATIO: i64 = 10;

/// Reports set-up: allocated or freed memory, loaded code, first launches of kernels, and long
/// first calls, such as the one that creates the device's context.
fn warm_up(rank: &RankFacts<'_>) -> Option<Issue> {
    let trace = rank.scope.trace;
    let set_up = names(trace, |name| calls::SET_UP.contains(&name));
    let first_launches = rank.disturbances().intervals(Disturbance::FirstLaunch);
    let calls_by_name = group_calls(rank);
    let first_calls = calls_by_name.values().filter_map(|calls| calls.first().copied());
    let first_call = first_calls.min_by_key(|row| (trace.slices.start(*row), *row));
    // Memory that is freed after the last launch belongs to the end of the job, not to its set-up.
    let launches = trace.rows().filter(|row| !rank.scope.links().work(*row).is_empty());
    let last_launch = launches.map(|row| trace.slices.start(row)).max().unwrap_or(i64::MAX);
    let is_long_first = |row: u32| {
        if trace.slices.duration[row as usize] < FIRST_CALL_NS {
            return false;
        }
        // A call that launches or waits may be long because it waits for the device.
        let is_plain = !calls::classify_call(trace.name(row)).waits();
        let launches = !rank.scope.links().work(row).is_empty();
        let duration = |row: u32| trace.slices.duration[row as usize];
        let calls = calls_by_name.get(&trace.slices.name[row as usize]);
        let later = calls.filter(|calls| calls[0] == row).map_or(&[][..], |calls| &calls[1..]);
        let longest = later.iter().map(|call| duration(*call)).max();
        let stands_out = longest.is_some_and(|ns| duration(row) >= FIRST_CALL_RATIO * ns);
        let is_first = first_call == Some(row) || stands_out;
        is_first && is_plain && !launches
    };
    let part = |row: u32| -> Option<&'static str> {
        let kind = trace.kind(row);
        let span = (trace.slices.start(row), trace.slices.end(row));
        let is_launch = || {
            kind.is_call()
                && trace.name(row).contains("LaunchKernel")
                && interval::length_within(&first_launches, span) == span.1 - span.0
        };
        match kind.is_call() || kind == RowKind::Overhead {
            true if is_named(trace, &set_up, row) => match trace.name(row) {
                name if name.contains("Load") => Some("code loading"),
                name if !name.contains("Free") => Some("allocating memory"),
                // A library may call `cudaFree` only to create the context or to synchronize,
                // without freeing memory.
                _ if span.0 <= last_launch => Some("calls that free memory and synchronize"),
                _ => None,
            },
            true if is_long_first(row) => Some(match first_call == Some(row) {
                true => "the first call, which sets the device up",
                false => "long first calls of other functions",
            }),
            true if !first_launches.is_empty() && is_launch() => Some("first launches of kernels"),
            _ => None,
        }
    };
    let rows: Vec<(u32, &str)> = trace.rows().filter_map(|row| Some((row, part(row)?))).collect();
    let length = |part: Option<&str>| {
        let of_part = rows.iter().filter(|(_, of)| part.is_none_or(|part| part == *of));
        interval::length(&interval::union(
            of_part.map(|(row, _)| rank.scope.clipped(*row)).collect(),
        ))
    };
    let ns = length(None);
    let share = percent(ns, rank.scope.window.length()).filter(|share| *share > WARM_UP_PCT)?;
    let (longest, _) = rows.iter().max_by_key(|(row, _)| trace.slices.duration[*row as usize])?;
    let mut parts: Vec<(&str, i64)> = rows
        .iter()
        .map(|(_, part)| *part)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(|part| (part, length(Some(part))))
        .collect();
    parts.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let kind = IssueKind {
        id: "warm-up",
        severity: Severity::Warning,
        matters: "the window holds set-up work that a running job does not do",
        hint: match rank.scope.steps.is_empty() {
            true => {
                "record when the job has run for a while: a schedule with wait and warm-up steps"
            }
            false => {
                "skip the first steps: --window steps, or a schedule with wait and warm-up steps"
            }
        },
    };
    let shown: Vec<String> =
        parts.iter().map(|(part, ns)| format!("{part} {}", milliseconds(*ns))).collect();
    let what = format!("set-up takes {}: {}", milliseconds(ns), shown.join(", "));
    let issue = kind.issue(Some(trace.rank), rows.len() as u64, what);
    Some(issue.share(Some(share)).at(place(rank.scope, *longest)))
}

/// Returns the calls of each name, sorted by start.
fn group_calls(rank: &RankFacts<'_>) -> BTreeMap<StringId, Vec<u32>> {
    let trace = rank.scope.trace;
    let mut calls: BTreeMap<StringId, Vec<u32>> = BTreeMap::new();
    for row in trace.rows().filter(|row| trace.kind(*row).is_call()) {
        calls.entry(trace.slices.name[row as usize]).or_default().push(row);
    }
    calls.values_mut().for_each(|rows| rows.sort_by_key(|row| (trace.slices.start(*row), *row)));
    calls
}

fn missing_sync(rank: &RankFacts<'_>) -> Option<Issue> {
    let trace = rank.scope.trace;
    let waiting = names(trace, |name| name.contains("Synchronize") || name.contains("WaitEvent"));
    let is_wait = |row: &u32| trace.kind(*row).is_call() && is_named(trace, &waiting, *row);
    let waits = trace.rows().filter(is_wait).count();
    let has_sync = trace.rows().any(|row| trace.kind(row) == RowKind::Sync);
    if waits == 0 || has_sync {
        return None;
    }
    let kind = IssueKind {
        id: "missing-sync-events",
        severity: Severity::Info,
        matters: "the critical path infers what the host and streams waited for from names and times",
        hint: "profile with experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
    };
    let calls = if waits == 1 { "call waits" } else { "calls wait" };
    let what = format!("{waits} {calls}, and no cuda_sync row says for what");
    Some(kind.issue(Some(trace.rank), waits as u64, what))
}

fn missing_arguments(rank: &RankFacts<'_>) -> Vec<Issue> {
    let trace = rank.scope.trace;
    let is_off = |key: &str| {
        let value = trace.header.rest.get(key);
        value.is_some_and(|value| value.as_i64() == Some(0) || value.as_bool() == Some(false))
    };
    let mut issues = Vec::new();
    if is_off("record_shapes") {
        let kind = IssueKind {
            id: "no-shapes",
            severity: Severity::Info,
            matters: "operators cannot be grouped by shape, and their FLOPs and bytes are unknown",
            hint: "profile with record_shapes=True",
        };
        issues.push(kind.issue(Some(trace.rank), 0, "shapes were not recorded".to_owned()));
    }
    // Traces of rowmill's own trainer on a CPU contain no Python frames.
    let has_frames = !trace.slices.python.is_empty() || !trace.slices.call_stack.is_empty();
    if !has_frames && !crate::facts::cpu_run::is_cpu_run(trace) {
        let kind = IssueKind {
            id: "no-stacks",
            severity: Severity::Info,
            matters: "operators cannot be traced back to lines of Python",
            hint: "profile with with_stack=True, at some cost on the host",
        };
        issues.push(kind.issue(Some(trace.rank), 0, "no frame of Python was recorded".to_owned()));
    }
    issues
}

/// Reports the warnings that the profiler wrote into the trace file.
fn messages(rank: &RankFacts<'_>) -> Vec<Issue> {
    let trace = rank.scope.trace;
    let issue = |key: &str| {
        let messages = trace.header.rest.get(key)?.as_array()?;
        let first = messages.first()?.as_str().unwrap_or_default();
        // The warning of a failed device count is harmless on a machine without an NVIDIA or AMD
        // GPU.
        let counts_none = |message: &serde_json::Value| {
            message.as_str().is_some_and(|text| text.contains("gpuGetDeviceCount failed"))
        };
        let is_harmless = messages.iter().all(counts_none);
        let kind = IssueKind {
            id: "profiler-messages",
            severity: if is_harmless { Severity::Info } else { Severity::Warning },
            matters: "the profiler itself reported a problem",
            hint: "read them in the file's header",
        };
        let count = messages.len() as u64;
        let what = format!("the profiler wrote {count} × {key}");
        Some(kind.issue(Some(trace.rank), count, what).at(first.to_owned()))
    };
    ["ERROR", "WARNING"].into_iter().filter_map(issue).collect()
}
