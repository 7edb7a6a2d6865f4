use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::interval::Interval;
use crate::facts::window::WindowRule;

/// One row of the fixture trace, with its stream and its correlation id.
struct Row<'a> {
    category: &'a str,
    name: &'a str,
    stream: i64,
    span: Interval,
    id: u64,
}

const fn row<'a>(category: &'a str, name: &'a str, span: Interval, id: u64) -> Row<'a> {
    Row { category, name, stream: 7, span, id }
}

fn skews(rows: &[Row<'_>]) -> Vec<Skew> {
    let mut trace = Trace::default();
    for row in rows {
        let is_device = matches!(row.category, "kernel" | "gpu_memcpy");
        let track = if is_device { (0, row.stream) } else { (9, 9) };
        let slice = NewSlice::new(row.category, row.name, track, row.span);
        trace.push(&NewSlice { correlation: Some(row.id), ..slice });
    }
    measure_skews(&Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category)))
}

const LAUNCH: Row<'_> = row("cuda_runtime", "hipLaunchKernel", (0, 10), 1);
const KERNEL: Row<'_> = row("kernel", "gemm", (20, 100), 1);

#[test]
fn a_blocking_copy_that_ends_behind_its_call_shows_the_least_difference() {
    let call = row("cuda_runtime", "hipMemcpyWithStream", (30, 150), 2);
    let found =
        skews(&[LAUNCH, KERNEL, call, row("gpu_memcpy", "CopyDeviceToHost", (110, 153), 2)]);
    let [skew] = found[..] else { panic!("{found:?}") };
    assert_eq!((skew.lower_ns, skew.upper_ns), (Some(3), Some(20)));
    assert_eq!((skew.wait_count, skew.late_count, skew.launch_count), (1, 1, 2));
    assert_eq!(skew.shift_ns(), 3);
}

#[test]
fn a_pageable_cuda_copy_is_not_a_sync_point() {
    let lower = |name: &str, span: Interval| {
        let call = row("cuda_runtime", "cudaMemcpyAsync", (30, 60), 2);
        skews(&[LAUNCH, KERNEL, call, row("gpu_memcpy", name, span, 2)])[0].lower_ns
    };
    assert_eq!(lower("Memcpy HtoD (Pageable -> Device)", (50, 90)), None);
    assert_eq!(lower("Memcpy DtoH (Device -> Pageable)", (50, 62)), Some(2));
    assert_eq!(lower("Memcpy DtoH (Device -> Pinned)", (50, 62)), None);
}

#[test]
fn work_before_its_launch_shows_a_clock_that_is_behind() {
    let found = skews(&[LAUNCH, row("kernel", "gemm", (-4, 30), 1)]);
    assert_eq!((found[0].upper_ns, found[0].early_count, found[0].shift_ns()), (Some(-4), 1, -4));
}

#[test]
fn bounds_that_exclude_each_other_shift_nothing() {
    let call = row("cuda_runtime", "hipMemcpyWithStream", (30, 150), 2);
    let found =
        skews(&[LAUNCH, KERNEL, call, row("gpu_memcpy", "CopyDeviceToHost", (110, 190), 2)]);
    assert_eq!((found[0].lower_ns, found[0].upper_ns), (Some(40), Some(20)));
    assert!(found[0].is_contradictory());
    assert_eq!(found[0].shift_ns(), 0);
}

#[test]
fn only_waits_with_certain_work_bound_the_skew() {
    let sync = row("cuda_runtime", "hipStreamSynchronize", (30, 95), 3);
    assert_eq!(skews(&[LAUNCH, KERNEL, sync])[0].lower_ns, Some(5));
    // With a second stream, the call may have waited for either stream, so the bound must not be
    // used.
    let launch = row("cuda_runtime", "hipLaunchKernel", (11, 15), 2);
    let other = Row { stream: 8, ..row("kernel", "other", (20, 40), 2) };
    let sync = row("cuda_runtime", "hipStreamSynchronize", (30, 42), 3);
    assert_eq!(skews(&[LAUNCH, KERNEL, launch, other, sync])[0].lower_ns, None);
}
