//! Lists the ranges that users and frameworks name, with their time on the host and the device work
//! launched in them.

use std::collections::BTreeMap;

use schema::TableRow;
use serde::Serialize;
use trace::store::{EventKind, StringId, TrackKey};

use crate::facts::attribution::Attribution;
use crate::facts::distribution::{self, Distribution};
use crate::facts::scope::Scope;
use crate::facts::tree::OperatorTree;

/// All occurrences of one annotation name on one rank that start in the window.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct AnnotationRow {
    pub rank: u32,
    pub name: String,
    /// Number of occurrences on the host.
    pub count: u64,
    /// Total duration of the occurrences on the host.
    pub host_ns: i64,
    pub min_ns: i64,
    pub p50_ns: i64,
    /// 95th percentile of the durations on the host.
    pub p95_ns: i64,
    pub max_ns: i64,
    pub mean_ns: f64,
    /// Sample standard deviation of the durations on the host.
    pub std_ns: f64,
    /// Number of pieces of device work launched inside the annotation, on the annotation's own
    /// thread.
    pub kernel_count: u64,
    pub device_ns: i64,
    /// Total duration of the device work that any thread of the process launched during the
    /// annotation, such as the backward thread during `## backward ##`.
    pub device_any_thread_ns: i64,
    /// Number of spans that the profiler wrote for the annotation on a device.
    pub device_span_count: u64,
    /// Total duration of the spans that the profiler wrote on a device.
    pub device_span_ns: i64,
}

/// Sums over the annotations of one name, from which one row of the table is computed.
#[derive(Default)]
struct AnnotationSums {
    durations: Vec<i64>,
    kernels: u64,
    device_ns: i64,
    any_thread_ns: i64,
    spans: u64,
    span_ns: i64,
}

/// Lists the annotations of a scope by name, sorted by host time in descending order.
///
/// # Cost
/// The cost is `O(n log n)` in annotations and device rows.
pub fn list_annotations(
    scope: &Scope<'_>,
    tree: &OperatorTree,
    attribution: &Attribution,
) -> Vec<AnnotationRow> {
    let trace = scope.trace;
    let slices = &trace.slices;
    let launched = launched_by_process(scope);
    let mut found: BTreeMap<StringId, AnnotationSums> = BTreeMap::new();
    for row in trace.rows().filter(|row| scope.starts_inside(*row)) {
        let kind = trace.kind(row);
        if !matches!(kind, EventKind::Annotation | EventKind::DeviceAnnotation) {
            continue;
        }
        let sums = found.entry(slices.name[row as usize]).or_default();
        let duration = slices.duration[row as usize];
        if kind == EventKind::DeviceAnnotation {
            sums.spans += 1;
            sums.span_ns += duration;
            continue;
        }
        let inside = attribution.inclusive(tree, row);
        sums.durations.push(duration);
        sums.kernels += inside.count;
        sums.device_ns += inside.device_ns;
        // The backward pass runs on a thread of its own, so launches of the whole process are
        // counted too.
        let of_process = launched.get(&trace.track(row).pid);
        sums.any_thread_ns +=
            of_process.map_or(0, |work| between(work, slices.start(row), slices.end(row)));
    }
    let mut rows: Vec<AnnotationRow> = found
        .into_iter()
        .map(|(name, mut sums)| {
            let spread = distribution::describe_values(&mut sums.durations);
            row(trace.rank, trace.strings.get(name), &spread, &sums)
        })
        .collect();
    rows.sort_by(|a, b| b.host_ns.cmp(&a.host_ns).then_with(|| a.name.cmp(&b.name)));
    rows
}

fn row(rank: u32, name: &str, spread: &Distribution, sums: &AnnotationSums) -> AnnotationRow {
    AnnotationRow {
        rank,
        name: name.to_owned(),
        count: spread.count,
        host_ns: spread.total,
        min_ns: spread.min,
        p50_ns: spread.p50,
        p95_ns: spread.p95,
        max_ns: spread.max,
        mean_ns: spread.mean,
        std_ns: spread.std,
        kernel_count: sums.kernels,
        device_ns: sums.device_ns,
        device_any_thread_ns: sums.any_thread_ns,
        device_span_count: sums.spans,
        device_span_ns: sums.span_ns,
    }
}

/// Returns, for each process, the start of each launch in ascending order and the total duration of
/// all device work launched up to it.
fn launched_by_process<'a>(scope: &Scope<'a>) -> BTreeMap<&'a TrackKey, Vec<(i64, i64)>> {
    let trace = scope.trace;
    let mut launched: BTreeMap<&TrackKey, Vec<(i64, i64)>> = BTreeMap::new();
    for row in &scope.device_rows {
        let Some(call) = scope.links().call(*row) else { continue };
        let work = (trace.slices.start(call), trace.slices.duration[*row as usize]);
        launched.entry(&trace.track(call).pid).or_default().push(work);
    }
    for work in launched.values_mut() {
        work.sort_unstable();
        let mut sum = 0;
        for (_, total) in work {
            sum += *total;
            *total = sum;
        }
    }
    launched
}

fn between(work: &[(i64, i64)], start: i64, end: i64) -> i64 {
    let before = |time: i64| {
        let place = work.partition_point(|(at, _)| *at < time);
        place.checked_sub(1).map_or(0, |last| work[last].1)
    };
    before(end) - before(start)
}
