use trace::store::{Distributed, Loss, NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::job::JobFacts;
use crate::facts::scope::Scope;
use crate::facts::window::WindowRule;

fn issues(traces: &[Trace]) -> Vec<Issue> {
    let classifier = Classifier::new(ClassRule::Category);
    let scopes: Vec<_> =
        traces.iter().map(|trace| Scope::new(trace, WindowRule::All, &classifier)).collect();
    JobFacts::new(&scopes).issues().to_vec()
}

/// One row of the fixture as (category, name, start, end, correlation id). Device rows of the
/// fixture run on stream 7.
type Row = (&'static str, &'static str, i64, i64, u64);

fn trace(rows: &[Row]) -> Trace {
    let mut trace = Trace::default();
    for &(category, name, start, end, correlation) in rows {
        let is_device = matches!(category, "kernel" | "gpu_memcpy");
        let track = if is_device { (0, 7) } else { (90, 1) };
        let mut slice = NewSlice::new(category, name, track, (start, end));
        slice.correlation = Some(correlation).filter(|id| *id != 0);
        trace.push(&slice);
    }
    trace
}

fn check(rows: &[Row], id: &str, expected: Option<(Severity, u64)>) {
    let found = issues(&[trace(rows)]);
    let found = found.iter().find(|issue| issue.id == id);
    assert_eq!(found.map(|issue| (issue.severity, issue.count)), expected, "{id}: {found:?}");
}

const OPERATOR: Row = ("cpu_op", "op", 0, 100_000_000, 0);
const LAUNCH: Row = ("cuda_runtime", "cudaLaunchKernel", 10, 20, 1);
const KERNEL: Row = ("kernel", "gemm", 30, 40, 1);

#[test]
fn a_sound_trace_has_only_remarks() {
    let found = issues(&[trace(&[OPERATOR, LAUNCH, KERNEL])]);
    let ids: Vec<&str> = found.iter().map(|issue| issue.id).collect();
    assert_eq!(ids, ["no-stacks", "no-steps"]);
    assert_eq!(verdict(&found), QualityVerdict::Good);
    let kinds = by_kind(&found);
    assert_eq!((kinds.len(), kinds[0].rank_count), (2, 1));
}

#[test]
fn an_empty_trace_is_judged() {
    let found = issues(&[Trace::default()]);
    assert!(found.iter().any(|issue| issue.id == "no-events"));
    assert_eq!(issues(&[]), []);
}

#[test]
fn launches_without_work_are_lost_rows() {
    let lost = ("cuda_runtime", "cudaLaunchKernel", 50, 60, 2);
    check(&[OPERATOR, LAUNCH, KERNEL, lost], "lost-device-rows", Some((Severity::Error, 1)));
    // The driver call inside the runtime call has the same correlation id, so no work is lost.
    let inner = ("cuda_driver", "cuLaunchKernel", 12, 18, 1);
    check(&[OPERATOR, LAUNCH, inner, KERNEL], "lost-device-rows", None);
}

#[test]
fn work_before_its_launch_shows_the_clocks_offset() {
    let early = ("kernel", "gemm", 3, 9, 1);
    check(&[OPERATOR, LAUNCH, early], "clock-offset", Some((Severity::Warning, 1)));
    let found = issues(&[trace(&[OPERATOR, LAUNCH, early])]);
    let issue = found.iter().find(|issue| issue.id == "clock-offset").expect("an issue");
    let expected = "the clock of device 0 is at least 0.007 µs behind the host's, by one launch \
                    alone, 1 of which began after their work";
    assert_eq!(issue.what, expected);
    assert_eq!(issue.share_pct, Some(100.0));
}

#[test]
fn overlaps_on_a_stream_are_small_or_absurd() {
    let next = ("kernel", "relu", 35, 45, 0);
    check(&[OPERATOR, LAUNCH, KERNEL, next], "stream-overlaps", Some((Severity::Info, 1)));
    let long = ("kernel", "gemm", 30, 30_000_000, 1);
    check(&[OPERATOR, LAUNCH, long, next], "absurd-durations", Some((Severity::Error, 1)));
    check(&[OPERATOR, LAUNCH, long, next], "stream-overlaps", None);
}

#[test]
fn set_up_and_the_profilers_own_work_are_shares_of_the_window() {
    let free = ("cuda_runtime", "cudaFree", 1000, 9_000_000, 0);
    // Memory that is freed after the last launch belongs to the end of the job, not to warm-up.
    check(&[OPERATOR, LAUNCH, KERNEL, free], "warm-up", None);
    let launch = ("cuda_runtime", "cudaLaunchKernel", 10_000_000, 10_000_010, 2);
    let kernel = ("kernel", "gemm", 10_000_020, 10_000_030, 2);
    let rows = [OPERATOR, LAUNCH, KERNEL, free, launch, kernel];
    check(&rows, "warm-up", Some((Severity::Warning, 1)));
    let flush = ("overhead", "Buffer Flush", 1000, 9_000_000, 0);
    check(&[OPERATOR, LAUNCH, KERNEL, flush], "profiler-overhead", Some((Severity::Warning, 1)));
}

#[test]
fn steps_must_be_three_and_steady() {
    let step = |name, start, end| ("user_annotation", name, start, end, 0);
    let [a, b] = [step("ProfilerStep#1", 0, 100), step("ProfilerStep#2", 100, 200)];
    check(&[a, b], "few-steps", Some((Severity::Warning, 2)));
    let steady = step("ProfilerStep#3", 200, 305);
    check(&[a, b, steady], "unsteady-steps", None);
    let long = step("ProfilerStep#3", 200, 900);
    check(&[a, b, long], "unsteady-steps", Some((Severity::Warning, 3)));
}

#[test]
fn nesting_waits_and_coverage_are_reported() {
    let past = ("cpu_op", "past", 50, 100_009_000, 0);
    check(&[OPERATOR, past], "bad-nesting", Some((Severity::Warning, 1)));
    let wait = ("cuda_runtime", "cudaStreamSynchronize", 40, 50, 0);
    check(&[OPERATOR, LAUNCH, KERNEL, wait], "missing-sync-events", Some((Severity::Info, 1)));
    let orphan = ("kernel", "gemm", 60, 70, 0);
    check(&[OPERATOR, LAUNCH, KERNEL, orphan], "low-coverage", Some((Severity::Warning, 1)));
    check(&[OPERATOR, LAUNCH, KERNEL, orphan], "orphans", Some((Severity::Info, 1)));
}

#[test]
fn traces_of_several_ranks_must_belong_together() {
    let with = |rank, world, step: &'static str, start| {
        let mut trace = trace(&[("user_annotation", step, start, start + 100, 0)]);
        trace.rank = rank;
        trace.header.distributed =
            Some(Distributed { world_size: Some(world), ..Distributed::default() });
        trace
    };
    let ids = |traces: &[Trace]| -> Vec<&'static str> {
        let job = issues(traces).into_iter().filter(|issue| issue.rank.is_none());
        job.map(|issue| issue.id).collect()
    };
    let first = || with(0, 2, "ProfilerStep#1", 0);
    assert_eq!(ids(&[first(), with(1, 2, "ProfilerStep#1", 50)]), [""; 0]);
    assert_eq!(ids(&[first()]), ["missing-ranks"]);
    assert_eq!(
        ids(&[first(), with(0, 2, "ProfilerStep#1", 50)]),
        ["duplicate-ranks", "missing-ranks"]
    );
    assert_eq!(ids(&[first(), with(1, 2, "ProfilerStep#2", 50)]), ["mixed-steps"]);
    assert_eq!(ids(&[first(), with(1, 2, "ProfilerStep#1", 500)]), ["ranks-apart"]);
    assert_eq!(ids(&[first(), with(1, 4, "ProfilerStep#1", 50)]), ["mixed-jobs"]);
    // This fixture has two files that claim the same rank at times that do not overlap.
    let mut again = with(1, 2, "ProfilerStep#2", 500);
    again.losses.count(Loss::RankConflict, String::new);
    assert_eq!(ids(&[first(), again]), ["mixed-jobs", "duplicate-ranks", "ranks-apart"]);
}

#[test]
fn shared_correlation_ids_are_reported() {
    let again = ("cuda_runtime", "cudaLaunchKernel", 22, 24, 1);
    check(
        &[OPERATOR, LAUNCH, again, KERNEL],
        "repeated-correlation-ids",
        Some((Severity::Warning, 1)),
    );
    let inner = ("cuda_driver", "cuLaunchKernel", 12, 18, 1);
    check(&[OPERATOR, LAUNCH, inner, KERNEL], "repeated-correlation-ids", None);
}
