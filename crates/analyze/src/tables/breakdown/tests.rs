use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::window::WindowRule;

fn scope(trace: &Trace) -> Scope<'_> {
    Scope::new(trace, WindowRule::All, &Classifier::new(ClassRule::Category))
}

fn parts(row: &Breakdown) -> i64 {
    row.compute_ns
        + row.exposed_communication_ns
        + row.exposed_memory_ns
        + row.exposed_other_ns
        + row.idle_ns
}

#[test]
fn the_parts_sum_to_the_window() {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("cpu_op", "aten::mm", (99, 99), (0, 100)));
    trace.push(&NewSlice::new("kernel", "gemm", (0, 7), (10, 40)));
    trace.push(&NewSlice::new("kernel", "ncclDevKernel_AllReduce", (0, 20), (30, 60)));
    trace.push(&NewSlice::new("gpu_memcpy", "Memcpy HtoD", (0, 7), (50, 70)));
    let row = compute_breakdown(&scope(&trace));
    assert_eq!(parts(&row), 100);
    assert_eq!((row.busy_ns, row.idle_ns, row.overlap_ns), (60, 40, 10));
    assert_eq!((row.exposed_communication_ns, row.exposed_memory_ns), (20, 10));
    assert_eq!(row.overlap_pct, Some(33.3333));
}

#[test]
fn two_devices_of_one_process_are_separate() {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("kernel", "gemm", (0, 7), (0, 10)));
    trace.push(&NewSlice::new("kernel", "gemm", (1, 7), (10, 40)));
    let scope = scope(&trace);
    let all = compute_breakdown(&scope);
    assert_eq!((all.device_count, all.busy_ns, all.device), (2, 40, None));
    let each = by_device(&scope);
    let seen: Vec<_> = each.iter().map(|row| (row.device, row.busy_ns, row.idle_ns)).collect();
    assert_eq!(seen, [(Some(0), 10, 30), (Some(1), 30, 10)]);
    assert!(each.iter().all(|row| parts(row) == row.window_ns));
}

#[test]
fn issue_24_a_host_without_devices_is_not_idle() {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("user_annotation", "step", (99, 99), (0, 100)));
    trace.push(&NewSlice::new("cpu_op", "aten::mm", (99, 99), (5, 25)));
    trace.push(&NewSlice::new("cpu_op", "aten::add", (99, 98), (20, 30)));
    let row = compute_recorded_breakdown(&scope(&trace));
    assert_eq!((row.window_ns, row.idle_ns, row.idle_pct), (100, 0, Some(0.0)));
    assert_eq!((row.compute_ns, row.exposed_other_ns, row.device_count), (25, 75, 0));
    assert_eq!(parts(&row), 100);
}

#[test]
fn a_trace_without_device_work_is_idle() {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("cpu_op", "aten::mm", (99, 99), (5, 25)));
    let row = compute_breakdown(&scope(&trace));
    assert_eq!((row.window_ns, row.idle_ns, row.idle_pct), (20, 20, Some(100.0)));
    assert_eq!(compute_breakdown(&scope(&Trace::default())).idle_pct, None);
}

#[test]
fn a_host_with_unrecorded_launches_counts_as_idle() {
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("cpu_op", "aten::mm", (99, 99), (5, 25)));
    trace.push(&NewSlice::new("cuda_runtime", "cudaLaunchKernel", (99, 99), (6, 9)));
    let row = compute_recorded_breakdown(&scope(&trace));
    assert_eq!((row.window_ns, row.idle_ns, row.idle_pct), (20, 20, Some(100.0)));
}
