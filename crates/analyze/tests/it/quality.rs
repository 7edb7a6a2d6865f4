//! Checks the quality issues and verdicts of real traces.

use analyze::Scope;
use analyze::quality::{self, QualityVerdict};
use analyze::summary::{self, Era, Summary};
use trace::store::Job;

use crate::attribution::whole;
use crate::fixture::job;

fn summary(job: &Job) -> Summary {
    let scopes: Vec<Scope<'_>> = job.traces.iter().map(whole).collect();
    summary::summarize_job(&analyze::JobFacts::new(&scopes), 3)
}

/// Checks the profiler version, the verdict, and for each kind of issue its name, the number of
/// ranks that have it and the text of the first one.
fn check(path: &str, era: Era, verdict: QualityVerdict, kinds: &[(&str, u64, &str)]) {
    let Some(job) = job(path) else { return };
    let summary = summary(&job);
    let found = quality::by_kind(&summary.issues);
    let found: Vec<_> =
        found.iter().map(|kind| (kind.id, kind.rank_count, kind.what.as_str())).collect();
    assert_eq!(found, kinds, "{path}");
    assert_eq!((summary.job.era, summary.verdict), (era, verdict), "{path}");
    let parts: i64 = summary.parts.iter().map(|part| part.time_ns).sum();
    assert_eq!(parts, summary.job.window_ns, "{path}");
}

const NO_STACKS: (&str, u64, &str) = ("no-stacks", 1, "no frame of Python was recorded");
const NO_STEPS: (&str, u64, &str) = ("no-steps", 1, "the trace names no steps");

#[test]
fn the_doctor_lists_what_dlrm8_lacks() {
    let expected = [
        ("few-steps", 8, "1 step recorded"),
        ("low-coverage", 2, "only 80.4 % of the device work has an operator"),
        ("missing-sync-events", 8, "55 calls wait, and no cuda_sync row says for what"),
        ("no-stacks", 8, "no frame of Python was recorded"),
        ("orphans", 2, "64 pieces of device work have no recorded launch"),
    ];
    let path = "dlrm8/dlrm_kineto.tar.gz";
    check(path, Era::KinetoMicroseconds, QualityVerdict::Doubtful, &expected);
}

#[test]
fn the_doctor_reports_warm_up_unsteady_steps_and_lost_rows() {
    use Era::KinetoMicroseconds;
    let inferred =
        "no ProfilerStep was recorded; 39 steps are inferred from the ends of Optimizer.step";
    let expected = [
        ("unsteady-steps", 1, "step times vary by 25.8 %: 16.689 ms to 59.435 ms"),
        (
            "warm-up",
            1,
            "set-up takes 986.095 ms: calls that free memory and synchronize 981.079 ms, allocating \
             memory 3.676 ms, first launches of kernels 1.340 ms",
        ),
        ("inferred-steps", 1, inferred),
        ("missing-sync-events", 1, "1 call waits, and no cuda_sync row says for what"),
        NO_STACKS,
    ];
    check("linear/linear_kineto.json.gz", KinetoMicroseconds, QualityVerdict::Doubtful, &expected);
    let overlaps = "31 pieces of device work overlap the next on their stream, 0.115 ms in all";
    let expected = [
        ("unsteady-steps", 1, "step times vary by 28.9 %: 81.971 ms to 166.403 ms"),
        ("missing-ranks", 0, "1 of 2 ranks are there"),
        ("missing-sync-events", 1, "247 calls wait, and no cuda_sync row says for what"),
        NO_STACKS,
        ("orphans", 1, "614 pieces of device work have no recorded launch"),
        ("stream-overlaps", 1, overlaps),
    ];
    check("trace_diff/test.json.gz", KinetoMicroseconds, QualityVerdict::Doubtful, &expected);
    let expected = [
        (
            "warm-up",
            1,
            "set-up takes 42210.781 ms: the first call, which sets the device up 29927.377 ms, \
             calls that free memory and synchronize 6534.982 ms, first launches of kernels \
             3055.567 ms, allocating memory 1960.198 ms, long first calls of other functions \
             732.657 ms",
        ),
        NO_STACKS,
        NO_STEPS,
    ];
    let path = "alexnet/benchmark_result_2869224_1695835535_trace.json.gz";
    check(path, KinetoMicroseconds, QualityVerdict::Doubtful, &expected);
}

#[test]
fn the_doctor_reports_sound_and_empty_traces() {
    let expected = [
        ("missing-ranks", 0, "1 of 8 ranks are there"),
        ("missing-sync-events", 1, "247 calls wait, and no cuda_sync row says for what"),
        NO_STACKS,
    ];
    check("trace_diff/control.json.gz", Era::KinetoMicroseconds, QualityVerdict::Good, &expected);
    let expected = [
        ("few-steps", 1, "1 step recorded"),
        ("no-device-work", 1, "no work of a device was recorded"),
        NO_STACKS,
    ];
    check("odd/rank_non_gpu.json.gz", Era::KinetoMicroseconds, QualityVerdict::Doubtful, &expected);
}
