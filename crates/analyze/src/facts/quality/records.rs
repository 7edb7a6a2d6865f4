//! Reports device work that is lost, assigned to the wrong place or too long.

use std::collections::BTreeMap;

use trace::store::EventKind as RowKind;

use super::issue::{Issue, IssueKind, Severity, milliseconds, place};
use super::{losses, unknown};
use crate::facts::attribution::OwnerMethod;
use crate::facts::captures::Captures;
use crate::facts::coverage;
use crate::facts::cpu_run::is_exchange;
use crate::facts::job::RankFacts;
use crate::facts::named::{is_named, names};
use crate::facts::refuted::{self, Straggler};
use crate::facts::skew::Skew;
use crate::facts::window;
use crate::percent::percent;
use crate::text::{agreeing, counted};

/// Share of launches without device work, in percent, that the end of a recording alone does not
/// explain.
const LOST_PCT: f64 = 1.0;
const LOST_PCT_ERROR: f64 = 10.0;
/// Minimum clock offset of a device that affects figures in microseconds.
const OFFSET_NS: i64 = 50_000;
/// If less than this share of device rows has an operator, in percent, attribution is unreliable.
const COVERED_PCT: f64 = 90.0;
/// Device work that has a launch but no operator is not reported below this share of the device
/// time, in percent.
const UNOWNED_PCT: f64 = 1.0;

pub(super) fn issues(rank: &RankFacts<'_>) -> Vec<Issue> {
    let mut issues = losses::issues(rank);
    issues.extend(cut(rank));
    if !rank.scope.trace.is_usable() {
        return issues;
    }
    let understood = unknown::issue(rank);
    let is_foreign = understood.as_ref().is_some_and(|issue| issue.severity == Severity::Error);
    issues.extend(understood);
    if !rank.scope.trace.rows().any(|row| is_work(rank.scope.trace.kind(row))) {
        // A truncated recording may have lost the events, and rows of another program have an issue
        // of their own.
        if rank.scope.trace.cut.is_none() && !is_foreign {
            issues.push(no_events(rank));
        }
        return issues;
    }
    issues.extend(zero_times(rank));
    if rank.scope.trace.rows().all(|row| !rank.scope.trace.kind(row).is_device_work()) {
        // A truncated recording may have lost its device rows.
        if rank.scope.trace.cut.is_none() {
            issues.push(lost_device_rows(rank).unwrap_or_else(|| no_device_work(rank)));
        }
        return issues;
    }
    issues.extend(straggler(rank));
    issues.extend(devices_by_kind(rank));
    issues.extend(lost_device_rows(rank));
    issues.extend(clock_offsets(rank));
    issues.extend(repeated_ids(rank));
    issues.extend(streams(rank));
    issues.extend(coverage(rank));
    issues
}

fn cut(rank: &RankFacts<'_>) -> Option<Issue> {
    let what = coverage::describe_gap(rank.scope.trace)?;
    let kind = IssueKind {
        id: "cut-recording",
        severity: Severity::Broken,
        matters: "no figure includes what happened in the missing part",
        hint: "let the job finish writing; copy the file again; compare its size",
    };
    Some(kind.issue(Some(rank.scope.trace.rank), 1, what))
}

/// Returns whether rows of a kind are work, that is, operators, calls or device work. Marks,
/// annotations and frames alone do not show what a program did.
fn is_work(kind: RowKind) -> bool {
    kind == RowKind::Operator || kind.is_call() || kind.is_device_work()
}

fn no_events(rank: &RankFacts<'_>) -> Issue {
    let kind = IssueKind {
        id: "no-events",
        severity: Severity::Error,
        matters: "there is nothing to analyze",
        hint: "record some steps, and export the trace after the profiler has stopped",
    };
    let what = match rank.scope.trace.slices.is_empty() {
        true => "no event has a duration",
        false => "no operator, no runtime call and no device work was recorded",
    };
    kind.issue(Some(rank.scope.trace.rank), 0, what.to_owned())
}

fn no_device_work(rank: &RankFacts<'_>) -> Issue {
    let kind = IssueKind {
        id: "no-device-work",
        severity: Severity::Info,
        matters: "only the host can be analyzed",
        hint: "profile with ProfilerActivity.CUDA, or on a machine with a device",
    };
    kind.issue(Some(rank.scope.trace.rank), 0, "no work of a device was recorded".to_owned())
}

/// Reports devices whose properties are guessed; see [`trace::store::TraceHeader::device`].
fn devices_by_kind(rank: &RankFacts<'_>) -> Option<Issue> {
    let header = &rank.scope.trace.header;
    let devices = rank.scope.devices();
    let mut guessed = devices.iter().filter(|id| !header.lists_device(i64::from(**id)));
    let first = *guessed.next()?;
    let device = header.device(i64::from(first))?;
    let kind = IssueKind {
        id: "devices-by-kind",
        severity: Severity::Info,
        matters: "the limits of this device are taken from the devices that the file lists",
        hint: "nothing to do if all devices of the host are alike",
    };
    let name = &device.name;
    let what =
        format!("the file does not list device {first}; it is taken for a {name} like the others");
    Some(kind.issue(Some(rank.rank()), 1 + guessed.count() as u64, what))
}

fn zero_times(rank: &RankFacts<'_>) -> Option<Issue> {
    let trace = rank.scope.trace;
    let lost = window::lost_start(trace)?;
    let is_zero = |row: &u32| trace.slices.start(*row) == lost;
    let mut rows = trace.rows().filter(is_zero);
    let first = rows.next()?;
    let count = 1 + rows.count() as u64;
    let kind = IssueKind {
        id: "zero-times",
        severity: Severity::Warning,
        matters: "rows at time 0 are left out of windows, busy time and kernel tables",
        hint: "a known fault of profilers that lose a buffer: profile fewer steps, or update",
    };
    let issue = kind.issue(
        Some(trace.rank),
        count,
        format!(
            "{} {} at time 0",
            counted(count as f64, "row"),
            agreeing(count as f64, "starts", "start")
        ),
    );
    Some(issue.at(trace.name(first).to_owned()))
}

/// Reports a single row of device work that begins or ends long after every other row.
fn straggler(rank: &RankFacts<'_>) -> Option<Issue> {
    let trace = rank.scope.trace;
    let Straggler { row, others_end } = refuted::find_straggler(trace)?;
    let kind = IssueKind {
        id: "far-device-work",
        severity: Severity::Warning,
        matters: "it counts only up to the end of the window; kernel tables contain its whole duration",
        hint: "a kernel that waits for something which never comes, or a wrong time: look at this row",
    };
    let behind = milliseconds(trace.slices.end(row) - others_end);
    let verb = if trace.slices.start(row) > others_end { "lies" } else { "runs on until" };
    let what = format!("1 piece of device work {verb} {behind} after everything else has ended");
    Some(kind.issue(Some(trace.rank), 1, what).at(place(rank.scope, row)))
}

/// Reports launches whose device work is missing from the file. If no device row has a correlation
/// id, launches cannot be paired with device work, and the issue says so instead.
fn lost_device_rows(rank: &RankFacts<'_>) -> Option<Issue> {
    let trace = rank.scope.trace;
    let id = |row: u32| trace.slices.correlation(row);
    let arrived = window::arrived(trace);
    if arrived.is_empty() && trace.rows().any(|row| trace.kind(row).is_device_work()) {
        let kind = IssueKind {
            id: "no-correlation-ids",
            severity: Severity::Warning,
            matters: "launches, launch delays and operators of device work are guessed or unknown",
            hint: "give the file that the profiler wrote: other tools drop these ids",
        };
        let what = "no device work has a correlation id".to_owned();
        return Some(kind.issue(Some(trace.rank), trace.slices.len() as u64, what));
    }
    let empty = window::empty_memsets(trace, &arrived);
    let launches = names(trace, window::is_launch);
    let is_call = |row: &u32| trace.kind(*row).is_call() && is_named(trace, &launches, *row);
    // Launches captured into a graph do not run, so they have no device work.
    let captures = Captures::new(trace, rank.scope.frames());
    let runs = |row: &u32| !captures.contains(trace, *row) && !empty.contains(row);
    let calls: Vec<u32> = trace.rows().filter(is_call).filter(runs).collect();
    // A runtime call and the driver call inside it share an id, but the device work is linked to
    // only one of them.
    let is_lost = |row: &&u32| id(**row).is_none_or(|id| arrived.binary_search(&id).is_err());
    let lost: Vec<&u32> = calls.iter().filter(is_lost).collect();
    let share = percent(lost.len() as i64, calls.len() as i64)?;
    if share <= LOST_PCT {
        return None;
    }
    let severity = if share > LOST_PCT_ERROR { Severity::Error } else { Severity::Warning };
    let kind = IssueKind {
        id: "lost-device-rows",
        severity,
        matters: "busy time, kernel tables and queue lengths miss this work; idle time is too long",
        hint: "profile fewer steps or with larger buffers; synchronize before the profiler stops",
    };
    let what = format!("{} of {} launches have no device work", lost.len(), calls.len());
    let issue = kind.issue(Some(trace.rank), lost.len() as u64, what);
    Some(issue.share(Some(share)).at(place(rank.scope, **lost.first()?)))
}

fn repeated_ids(rank: &RankFacts<'_>) -> Option<Issue> {
    let contested = rank.scope.links().contested();
    let first = contested.first()?;
    let kind = IssueKind {
        id: "repeated-correlation-ids",
        severity: Severity::Warning,
        matters: "operators and launch delays of this work may be those of another process",
        hint: "profile each process into a file of its own",
    };
    let count = contested.len() as u64;
    let pieces = counted(count as f64, "piece of device work");
    let have = agreeing(count as f64, "has", "have");
    let what = format!("{pieces} {have} an id that several calls have");
    let issue = kind.issue(Some(rank.scope.trace.rank), count, what);
    Some(issue.at(place(rank.scope, *first)))
}

/// Reports clock offsets of a rank's devices, which follow from the times of waits and launches.
fn clock_offsets(rank: &RankFacts<'_>) -> Vec<Issue> {
    rank.skews().iter().filter_map(clock_offset).collect()
}

fn clock_offset(skew: &Skew) -> Option<Issue> {
    let shift_ns = skew.shift_ns();
    if shift_ns == 0 && !skew.is_contradictory() {
        return None;
    }
    let is_felt = skew.is_contradictory() || !(0..OFFSET_NS).contains(&shift_ns);
    let kind = IssueKind {
        id: "clock-offset",
        severity: if is_felt { Severity::Warning } else { Severity::Info },
        matters: "launch delays, queue lengths and idle causes are off by about this much; \
                  dependencies and savings take it into account unless it contradicts itself",
        hint: "update CUPTI or roctracer; shift the device's rows when comparing with the host",
    };
    let count = skew.late_count + skew.early_count;
    let all = i64::try_from(skew.wait_count + skew.launch_count).unwrap_or(i64::MAX);
    let share = percent(i64::try_from(count).unwrap_or(i64::MAX), all);
    Some(kind.issue(Some(skew.rank), count, skew.words()).share(share))
}

/// Reports rows that overlap on one stream. Small overlaps come from the profiler's rounding, and
/// large ones from wrong durations.
fn streams(rank: &RankFacts<'_>) -> Vec<Issue> {
    let trace = rank.scope.trace;
    let slices = &trace.slices;
    let mut last: BTreeMap<(i32, i32), u32> = BTreeMap::new();
    let (mut small, mut small_ns, mut absurd) = (Vec::new(), 0, Vec::new());
    for &row in &rank.scope.device_rows {
        let Some(before) = last.insert((trace.device(row), trace.stream(row)), row) else {
            continue;
        };
        // Rows are sorted by start, so an overlap shows between a row and the previous row of its
        // stream.
        let excess = slices.end(before) - slices.start(row);
        if excess >= refuted::REFUTED_NS {
            absurd.push((excess, before));
        } else if excess > 0 {
            small.push((excess, before));
            small_ns += excess;
        }
    }
    let worst = |rows: &[(i64, u32)]| rows.iter().copied().max();
    let mut issues = Vec::new();
    if let Some((_, row)) = worst(&small) {
        let kind = IssueKind {
            id: "stream-overlaps",
            severity: Severity::Info,
            matters: "sums of durations exceed busy time; viewers may hide one of the rows",
            hint: "nothing to do: busy time counts overlapping rows once",
        };
        let what = format!(
            "{} {} the next on {} stream, {} in all",
            counted(small.len() as f64, "piece of device work"),
            agreeing(small.len() as f64, "overlaps", "overlap"),
            agreeing(small.len() as f64, "its", "their"),
            milliseconds(small_ns)
        );
        issues.push(
            kind.issue(Some(trace.rank), small.len() as u64, what).at(place(rank.scope, row)),
        );
    }
    if let Some((excess, row)) = worst(&absurd) {
        let kind = IssueKind {
            id: "absurd-durations",
            severity: Severity::Error,
            matters: "busy time and kernel tables count time in which the work cannot have run",
            hint: "a known fault of profilers: update, or leave these rows out",
        };
        let what = format!(
            "{} {} past the next start on {} stream, by up to {}",
            counted(absurd.len() as f64, "piece of device work"),
            agreeing(absurd.len() as f64, "reaches", "reach"),
            agreeing(absurd.len() as f64, "its", "their"),
            milliseconds(excess)
        );
        issues.push(
            kind.issue(Some(trace.rank), absurd.len() as u64, what).at(place(rank.scope, row)),
        );
    }
    issues
}

fn coverage(rank: &RankFacts<'_>) -> Vec<Issue> {
    let trace = rank.scope.trace;
    let mut issues = Vec::new();
    // Operators run when a graph is captured, not when it is launched, so work of a graph launch
    // never has an operator.
    let (of_graphs, others) = without_operator(rank);
    let all: i64 = rank.scope.device_rows.iter().map(|row| rank.duration(*row)).sum();
    let has_launch = |row: &u32| rank.scope.links().call(*row).is_some();
    // A few short kernels that are launched outside operators hide nothing in the tables.
    let is_much = !others.iter().all(has_launch)
        || percent(rank.total(&others), all).is_none_or(|share| share >= UNOWNED_PCT);
    let others = others.len() as u64;
    let could = could_have_operators(rank).count() as u64 - of_graphs;
    let covered = percent((could - others) as i64, could as i64);
    let covered = covered.filter(|covered| *covered < COVERED_PCT);
    // If the recording has no operators, device work cannot be attributed at all.
    let has_operators = trace.rows().any(|row| trace.kind(row) == RowKind::Operator);
    if let Some(covered) = covered.filter(|_| has_operators) {
        let kind = IssueKind {
            id: "low-coverage",
            severity: if is_much { Severity::Warning } else { Severity::Info },
            matters: "device time per operator is incomplete",
            hint: "profile CPU and device together, and from before the first launch on; name with \
                   record_function what launches kernels of its own",
        };
        let mut what = format!("only {covered:.1} % of the device work");
        what += match of_graphs {
            0 => " has an operator",
            _ => " that no graph launched has an operator",
        };
        issues.push(kind.issue(Some(trace.rank), others, what).share(Some(covered)));
    }
    let is_orphan = |(_, method): &(u32, OwnerMethod)| *method == OwnerMethod::Orphan;
    let orphans = could_have_operators(rank).filter(is_orphan).count();
    if orphans > 0 {
        let kind = IssueKind {
            id: "orphans",
            severity: Severity::Info,
            matters: "this work has no operator and no launch delay; it was queued when recording began",
            hint: "add warm-up steps to the profiler's schedule",
        };
        let pieces = counted(orphans as f64, "piece of device work");
        let have = agreeing(orphans as f64, "has", "have");
        let what = format!("{pieces} {have} no recorded launch");
        let share = percent(orphans as i64, rank.attribution().methods.len() as i64);
        issues.push(kind.issue(Some(trace.rank), orphans as u64, what).share(share));
    }
    issues
}

/// Returns the device work that a launch within an operator may have caused, with the way in which
/// its operator was found.
fn could_have_operators(rank: &RankFacts<'_>) -> impl Iterator<Item = (u32, OwnerMethod)> {
    let works = rank.scope.device_rows.iter().zip(&rank.attribution().methods);
    let works = works.map(|(row, method)| (*row, *method));
    works.filter(|(row, _)| !is_exchange(rank.scope.trace.name(*row)))
}

/// Counts the device work without an operator, separately for graph launches and for other calls.
fn without_operator(rank: &RankFacts<'_>) -> (u64, Vec<u32>) {
    let open = could_have_operators(rank).filter(|(_, method)| !method.is_covered());
    let (of_graphs, others): (Vec<u32>, Vec<u32>) =
        open.map(|(row, _)| row).partition(|row| rank.is_of_graph(*row));
    (of_graphs.len() as u64, others)
}
