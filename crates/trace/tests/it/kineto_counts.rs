//! Compares the content of public Kineto traces with the counts of an independent parser.

use std::collections::{BTreeMap, BTreeSet};

use trace::store::{EventKind, FlowPhase, Trace};

use crate::link::kineto;

fn count(trace: &Trace, kind: EventKind) -> u64 {
    trace.rows().filter(|row| trace.kind(*row) == kind).count() as u64
}

/// Counts the operators of each thread, in descending order.
fn operators_by_thread(trace: &Trace) -> Vec<u64> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for row in trace.rows().filter(|row| trace.kind(*row) == EventKind::Operator) {
        *counts.entry(trace.slices.track[row as usize].0).or_default() += 1;
    }
    let mut counts: Vec<u64> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

/// Counts the device work of each stream.
fn work_by_stream(trace: &Trace) -> BTreeMap<i32, u64> {
    let mut counts = BTreeMap::new();
    for row in trace.rows().filter(|row| trace.kind(*row).is_device_work()) {
        *counts.entry(trace.stream(row)).or_default() += 1;
    }
    counts
}

/// Counts the device work whose launch was not recorded.
fn orphans(trace: &Trace) -> usize {
    let calls = trace.rows().filter(|row| trace.kind(*row).is_call());
    let launched: BTreeSet<u64> = calls.filter_map(|row| trace.slices.correlation(row)).collect();
    let work = trace.rows().filter(|row| trace.kind(*row).is_device_work());
    work.filter(|row| trace.slices.correlation(*row).is_none_or(|id| !launched.contains(&id)))
        .count()
}

/// Counts the launches whose device work was not recorded.
fn barren(trace: &Trace) -> usize {
    let work = trace.rows().filter(|row| trace.kind(*row).is_device_work());
    let done: BTreeSet<u64> = work.filter_map(|row| trace.slices.correlation(row)).collect();
    let launches = ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"];
    let calls = trace.rows().filter(|row| launches.contains(&trace.name(*row)));
    calls.filter(|row| trace.slices.correlation(*row).is_none_or(|id| !done.contains(&id))).count()
}

#[test]
fn dlrm_ranks_have_the_expected_events() {
    let Some(job) = kineto("dlrm8/dlrm_kineto.tar.gz") else { return };
    // The columns are rank, events, events with a duration, runtime calls, kernels, memory sets,
    // and device work without a launch.
    let expected = [
        [0, 3290, 2460, 525, 245, 0, 0],
        [1, 3424, 2527, 527, 310, 0, 64],
        [2, 3268, 2449, 513, 246, 0, 0],
        [3, 3474, 2552, 541, 315, 6, 64],
        [4, 3310, 2470, 523, 251, 6, 0],
        [5, 3250, 2440, 505, 245, 0, 0],
        [6, 3272, 2451, 515, 246, 0, 0],
        [7, 3250, 2440, 504, 246, 0, 0],
    ];
    let found: Vec<[u64; 7]> = job
        .traces
        .iter()
        .map(|trace| {
            [
                trace.rank.into(),
                trace.event_count(),
                trace.slices.len() as u64,
                count(trace, EventKind::Runtime),
                count(trace, EventKind::Kernel),
                count(trace, EventKind::Memset),
                orphans(trace) as u64,
            ]
        })
        .collect();
    assert_eq!(found, expected);
    assert_eq!(found.iter().map(|counts| counts[4]).sum::<u64>(), 2104);
    for trace in &job.traces {
        assert!(trace.losses.is_empty(), "{:?}", trace.losses);
        assert_eq!(trace.phases["X"], trace.slices.len() as u64);
        assert_eq!((trace.phases["M"], trace.phases["i"]), (42, 2));
        let kinds =
            [EventKind::Operator, EventKind::Annotation, EventKind::Memcpy, EventKind::Window];
        assert_eq!(kinds.map(|kind| count(trace, kind)), [1633, 40, 16, 1]);
        assert_eq!(operators_by_thread(trace), [954, 679]);
        let streams = work_by_stream(trace);
        assert_eq!(streams.keys().copied().collect::<Vec<_>>(), [7, 22, 24, 84]);
        assert_eq!([streams[&22], streams[&24], streams[&84]], [5, 23, 8]);
        assert_eq!(barren(trace), 0);
        let ends = [FlowPhase::Start, FlowPhase::End]
            .map(|phase| trace.flows.iter().filter(|flow| flow.phase == phase).count() as u64);
        assert_eq!(ends, [trace.phases["s"], trace.phases["f"]]);
        let ids: BTreeSet<u64> = trace
            .rows()
            .filter(|row| matches!(trace.kind(*row), EventKind::Operator | EventKind::Annotation))
            .filter_map(|row| trace.slices.external_id(row))
            .collect();
        assert_eq!(ids.first(), Some(&1));
        assert_eq!(ids.len(), 1673);
    }
}

#[test]
fn dlrm_headers_name_job_and_devices() {
    let Some(job) = kineto("dlrm8/dlrm_kineto.tar.gz") else { return };
    for trace in &job.traces {
        let distributed = trace.header.distributed.as_ref().unwrap();
        assert_eq!(distributed.backend, "nccl");
        assert_eq!((distributed.rank, distributed.world_size), (Some(trace.rank), Some(8)));
        assert_eq!(trace.header.devices.len(), 8);
        for device in &trace.header.devices {
            assert_eq!(device.name, "Tesla V100-SXM2-32GB");
            assert_eq!((device.memory_bytes, device.sm_count), (34_079_899_648, 80));
            assert_eq!(device.compute_capability, (7, 0));
        }
        assert_eq!(trace.header.rest["record_shapes"], 1);
    }
    let windows = job.traces.iter().flat_map(|trace| {
        let rows = trace.rows().filter(|row| trace.kind(*row) == EventKind::Window);
        rows.map(|row| (trace.slices.start(row), trace.rank))
    });
    assert_eq!(windows.min(), Some((1_694_128_201_421_058_000, 1)));
}

#[test]
fn dlrm_collectives_are_eight_kernels() {
    let Some(job) = kineto("dlrm8/dlrm_kineto.tar.gz") else { return };
    for trace in &job.traces {
        let mut names: BTreeMap<&str, u64> = BTreeMap::new();
        for row in trace.rows().filter(|row| trace.kind(*row).is_device_work()) {
            if trace.stream(row) == 84 {
                let name = trace.name(row);
                *names.entry(name.split('(').next().unwrap_or(name)).or_default() += 1;
            }
        }
        let expected = [
            ("ncclKernel_AllReduce_RING_LL_Sum_float", 3),
            ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", 5),
        ];
        assert_eq!(names, BTreeMap::from(expected));
    }
}

#[test]
fn linear_has_the_expected_events() {
    let Some(job) = kineto("linear/linear_kineto.json.gz") else { return };
    let [trace] = &job.traces[..] else { panic!("{} traces", job.traces.len()) };
    assert!(trace.losses.is_empty(), "{:?}", trace.losses);
    assert_eq!((trace.event_count(), trace.slices.len()), (86_859, 61_950));
    let phases: Vec<(&str, u64)> =
        trace.phases.iter().map(|(phase, count)| (phase.as_str(), *count)).collect();
    assert_eq!(phases, [("M", 36), ("X", 61_950), ("f", 14_515), ("i", 2), ("s", 10_356)]);
    let kinds = [
        EventKind::Operator,
        EventKind::Runtime,
        EventKind::Kernel,
        EventKind::Memset,
        EventKind::Annotation,
    ];
    assert_eq!(kinds.map(|kind| count(trace, kind)), [36_998, 14_515, 8_716, 1_640, 80]);
    assert_eq!(operators_by_thread(trace), [24_722, 12_276]);
    assert_eq!(work_by_stream(trace), BTreeMap::from([(7, 10_356)]));
    assert_eq!((orphans(trace), barren(trace)), (0, 0));
    let devices: BTreeSet<&str> =
        trace.header.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(trace.header.devices.len(), 8);
    assert_eq!(devices, BTreeSet::from(["NVIDIA GeForce RTX 2080 Ti"]));
}

#[test]
fn later_iterations_of_linear_have_261_device_rows() {
    let Some(job) = kineto("linear/linear_kineto.json.gz") else { return };
    let trace = &job.traces[0];
    let slices = &trace.slices;
    let mut begins: Vec<i64> = trace
        .rows()
        .filter(|row| trace.name(*row).starts_with("Optimizer.zero_grad"))
        .map(|row| slices.start(row))
        .collect();
    begins.sort_unstable();
    assert_eq!(begins.len(), 40);
    let work: BTreeSet<u64> = trace
        .rows()
        .filter(|row| trace.kind(*row).is_device_work())
        .filter_map(|row| slices.correlation(row))
        .collect();
    let mut counts = vec![0; begins.len() + 1];
    for row in trace.rows().filter(|row| trace.kind(*row).is_call()) {
        if slices.correlation(row).is_some_and(|id| work.contains(&id)) {
            counts[begins.partition_point(|begin| *begin <= slices.start(row))] += 1;
        }
    }
    // The last iteration is truncated, so it is left out.
    assert_eq!(counts[20..40], [261; 20]);
}
