//! Where that tool is judged wrong or cannot be met: what it says, what we say, and why. Its
//! stranger rules too, one by one; figures of the small files were printed by that tool.

use analyze::WorkClass;
use analyze::hta::{self, Cutoffs, HtaTable, IDLE_THRESHOLD_NS, Idle, IdleCause, QueueSummary};
use serde_json::Value;
use trace::store::{NewSlice, Trace};

use super::{job, traced};
use crate::fixture;

const CALL: &str = "cuda_runtime";
const LAUNCH: &str = "cudaLaunchKernel";

/// Of one trace: that tool's window and idle time, and the exact ones.
fn against_exact(prefix: &str, path: &str) -> Option<[(i64, i64); 2]> {
    let job = job(path, 0)?;
    let exact: Value =
        serde_json::from_str(&fixture::text(&format!("hta_truth/{prefix}.exact.json"))?).unwrap();
    let exact = |key: &str| exact["exact"][key].as_i64().unwrap();
    let theirs = &hta::temporal(&hta::views(&job.traces))[0];
    let theirs = (theirs.window_ns, theirs.idle_ns);
    Some([theirs, (exact("kernel_time_ns"), exact("idle_ns"))])
}

#[test]
fn waits_widen_that_tools_window_and_count_as_busy() {
    let path = "simple_add/benchmark_result_493459_1694039959_trace.json.gz";
    if let Some([(window, idle), (exact_window, exact_idle)]) = against_exact("simple_add", path) {
        assert_eq!((window, idle), (16_464_339_000, 16_414_376_000));
        assert!(exact_window < window && exact_idle < exact_window, "waits are no work");
    }
    let path = "alexnet/benchmark_result_2869224_1695835535_trace.json.gz";
    if let Some([(window, idle), (exact_window, exact_idle)]) = against_exact("alexnet", path) {
        assert_eq!((window, idle), (12_996_011_000, 12_929_684_000));
        assert!(exact_window < window && exact_idle < exact_window, "waits are no work");
    }
}

#[test]
fn rounding_turns_busy_time_into_idle_time() {
    let path = "nccl/nccl_data.json.gz";
    let Some([(window, idle), (exact_window, exact_idle)]) = against_exact("nccl", path) else {
        return;
    };
    assert_eq!((window, exact_window), (435_586_000, 435_587_561));
    assert_eq!((idle, exact_idle), (338_781_000, 336_419_714));
}

#[test]
fn a_row_within_a_microsecond_lasts_minus_one() {
    let trace = traced(&[("kernel", "k", 1_000_400, 1_000_900, None, Some(7))]);
    let row = hta::views([&trace])[0].device[0];
    assert_eq!((row.start_us, row.duration_us), (1001, -1));
}

#[test]
fn times_since_1970_are_rounded_to_quarters_first() {
    // 0.1 µs behind a whole microsecond is nearer to it than to the next quarter.
    let start = 1_711_964_646_000_000_100;
    let trace = traced(&[("kernel", "k", start, start + 1_000, None, Some(7))]);
    let row = hta::views([&trace])[0].device[0];
    assert_eq!((row.start_us, row.duration_us), (1_711_964_646_000_000, 1));
}

#[test]
fn an_operator_with_a_stream_is_device_work() {
    let Some(job) = job("odd/triton_example.json.gz", 0) else { return };
    let views = hta::views(&job.traces);
    let row = &hta::kernels(&views)[0];
    assert_eq!(row.name, "triton_poi_fused_add_cos_sin_0");
    assert_eq!((row.count, row.class, row.total_ns), (2, WorkClass::Compute, 95_000));
    assert_eq!((row.max_ns, row.min_ns, row.mean_ns), (94_000, 1_000, 47_500.0));
    assert!((row.std_ns - 65_760.931).abs() < 1e-3, "{}", row.std_ns);
    let temporal = &hta::temporal(&views)[0];
    assert_eq!((temporal.idle_ns, temporal.compute_pct), (0, Some(100.0)));
    let idle = hta::idle(&views, IDLE_THRESHOLD_NS);
    assert_eq!(idle, [gap(7, IdleCause::Other, 0, None)], "operators leave no gaps");
}

#[test]
fn waits_of_streams_are_busy_but_leave_no_gaps() {
    let Some(job) = job("odd/event_sync_trace.json.gz", 0) else { return };
    let views = hta::views(&job.traces);
    let row = &hta::temporal(&views)[0];
    assert_eq!((row.idle_ns, row.compute_ns), (207_000, 49_000));
    assert_eq!((row.compute_pct, row.non_compute_pct), (Some(18.63), Some(2.66)));
    let idle =
        [gap(7, IdleCause::HostWait, 212_000, Some(100.0)), gap(7, IdleCause::Other, 0, Some(0.0))];
    assert_eq!(hta::idle(&views, IDLE_THRESHOLD_NS), idle);
}

#[test]
fn a_wait_for_a_whole_context_is_busy_if_its_stream_was_written_unsigned() {
    let unsigned = traced(&[("cuda_sync", "Context Sync", 0, 2_000, Some(1), None)]);
    assert_eq!(hta::temporal(&hta::views([&unsigned]))[0].window_ns, 2_000);
    let signed = traced(&[("cuda_sync", "Context Sync", 0, 2_000, Some(1), Some(-1))]);
    assert_eq!(hta::temporal(&hta::views([&signed])), []);
}

#[test]
fn the_first_event_of_a_file_launches_what_has_no_launch_and_is_launched_by_nothing() {
    let rows = [
        (CALL, LAUNCH, 50_000, 51_000, Some(1), None),
        ("kernel", "k", 10_000, 20_000, Some(2), Some(7)),
        ("kernel", "k", 60_000, 70_000, Some(3), Some(7)),
    ];
    let trace = traced(&rows);
    let idle =
        [gap(7, IdleCause::HostWait, 40_000, Some(100.0)), gap(7, IdleCause::Other, 0, Some(0.0))];
    assert_eq!(hta::idle(&hta::views([&trace]), IDLE_THRESHOLD_NS), idle);
    let first = ("kernel", "k", 60_000, 70_000, Some(1), Some(7));
    let trace = traced(&[first, rows[0]]);
    let views = hta::views([&trace]);
    assert_eq!(hta::queue(&views), [], "the call is linked to 0, which is no link");
    assert_eq!(hta::launches(&views).len(), 1, "launches do not use the link");
}

#[test]
fn rows_without_a_correlation_id_are_no_launches() {
    // That tool gives all such host rows the id −1 and pairs each with each such device row.
    let trace = traced(&[
        (CALL, LAUNCH, 0, 1_000, None, None),
        ("cpu_op", "aten::add", 0, 1_000, None, None),
        ("cpu_op", "triton", 0, 1_000, None, Some(0)),
    ]);
    assert_eq!(hta::launches(&hta::views([&trace])), []);
}

#[test]
fn simultaneous_launch_and_start_count_in_this_order() {
    // That tool's sort may put the start first: its shortest queue is then −1, its longest 0.
    let trace = traced(&[
        ("cpu_op", "aten::add", 0, 9_000, None, None),
        (CALL, LAUNCH, 1_000, 2_000, Some(1), None),
        ("kernel", "k", 1_000, 3_000, Some(1), Some(7)),
    ]);
    let queue = QueueSummary { rank: 0, stream: 7, change_count: 2, length_min: 0, length_max: 1 };
    assert_eq!(hta::queue(&hta::views([&trace])), [queue]);
}

/// A step and a kernel it launched, and a second host row of the same id.
fn step(name: &str, from: i64, id: u64) -> Trace {
    traced(&[
        ("user_annotation", name, from, from + 100_000, None, None),
        (CALL, LAUNCH, from + 1_000, from + 2_000, Some(id), None),
        ("cuda_driver", "cuLaunchKernel", from + 1_000, from + 2_000, Some(id), None),
        ("kernel", "k", from + 5_000, from + 9_000, Some(id), Some(7)),
    ])
}

#[test]
fn steps_are_dropped_if_the_ranks_together_have_two() {
    let traces = [step("ProfilerStep#1", 0, 1), step("ProfilerStep#2", 0, 1)];
    assert_eq!(hta::views(&traces[..1])[0].device.len(), 1);
    let together = hta::views(&traces);
    assert!(together.iter().all(|view| view.is_trimmed && view.device.is_empty()));
    assert_eq!(hta::temporal(&together), [], "that tool fails here");
}

#[test]
fn dropping_steps_repeats_a_row_for_each_host_row_of_its_id() {
    let mut trace = step("ProfilerStep#1", 0, 1);
    let last = ("user_annotation", "ProfilerStep#2", (1, 1), (200_000, 300_000));
    trace.push(&NewSlice::new(last.0, last.1, last.2, last.3));
    let views = hta::views([&trace]);
    let row = &hta::kernels(&views)[0];
    assert_eq!((row.count, row.total_ns, row.std_ns), (2, 8_000, 0.0));
    assert_eq!(hta::temporal(&views)[0].window_ns, 4_000, "unions do not change");
    let launches = hta::launch_summary(&hta::launches(&views), Cutoffs::HTA);
    assert_eq!(launches[0].work_count, 4, "two calls, two copies");
}

#[test]
fn a_negative_row_is_idle_time_as_often_as_it_is_repeated() {
    let mut trace = step("ProfilerStep#1", 0, 1);
    for (category, name, start, end, correlation, stream) in [
        ("kernel", "short", 15_400, 15_900, Some(1), Some(7)),
        ("kernel", "last", 20_000, 21_000, Some(1), Some(7)),
        ("user_annotation", "ProfilerStep#2", 200_000, 300_000, None, None),
    ] {
        let row = NewSlice::new(category, name, (1, 1), (start, end));
        trace.push(&NewSlice { correlation, stream, ..row });
    }
    let row = &hta::temporal(&hta::views([&trace]))[0];
    // Busy are 4 + 1 − 1 − 1 of 16 microseconds.
    assert_eq!((row.window_ns, row.idle_ns), (16_000, 13_000));
}

#[test]
fn gaps_count_from_the_previous_row_even_if_an_earlier_one_still_runs() {
    let trace = traced(&[
        ("cpu_op", "aten::add", 0, 1_000, None, None),
        ("kernel", "long", 0, 90_000, Some(1), Some(7)),
        ("kernel", "short", 10_000, 20_000, Some(2), Some(7)),
        ("kernel", "later", 100_000, 110_000, Some(3), Some(7)),
    ]);
    let idle =
        [gap(7, IdleCause::KernelWait, -80_000, None), gap(7, IdleCause::Other, 80_000, None)];
    assert_eq!(hta::idle(&hta::views([&trace]), IDLE_THRESHOLD_NS), idle);
}

#[test]
fn rows_without_a_category_and_of_the_category_trace_are_not_read() {
    let trace = traced(&[
        ("", "k", 0, 1_000, None, Some(7)),
        ("Trace", "PyTorch Profiler (0)", 0, 1_000, None, Some(7)),
    ]);
    let views = hta::views([&trace]);
    assert_eq!((views[0].device.len(), views[0].host.len()), (0, 0));
}

#[test]
fn differences_are_told_with_the_rows_they_touch() {
    let trace = traced(&[
        ("cpu_op", "triton", 0, 1_000, None, Some(0)),
        ("cuda_sync", "Stream Sync", 0, 2_000, Some(4), Some(7)),
        ("kernel", "k", 100, 1_000, Some(1), Some(7)),
    ]);
    let told: Vec<(HtaTable, Option<u64>)> = hta::explain(&hta::views([&trace]))
        .iter()
        .filter(|difference| difference.table == HtaTable::Temporal)
        .map(|difference| (difference.table, difference.row_count))
        .collect();
    let touched = [Some(1), Some(0), Some(1), Some(1), None, None];
    assert_eq!(told, touched.map(|count| (HtaTable::Temporal, count)));
}

fn gap(stream: i32, cause: IdleCause, idle_ns: i64, idle_pct: Option<f64>) -> Idle {
    Idle { rank: 0, stream, cause, idle_ns, idle_pct }
}
