//! Compares counts and tables of real traces with the results of an independent parser.

use std::collections::BTreeMap;

use analyze::classify::{ClassRule, Classifier};
use analyze::{Scope, WindowRule, annotations, attribution, kernels, ops, sequences, steps, tree};
use trace::store::{EventKind, Trace};

use crate::attribution::whole;
use crate::fixture;
use crate::fixture::job;
use crate::tree::dlrm8;

#[test]
fn dlrm8_top_kernels_of_rank_0() {
    let Some(job) = dlrm8() else { return };
    let scope = whole(&job.traces[0]);
    let mut by_name: BTreeMap<String, (i64, u64)> = BTreeMap::new();
    for row in kernels::list_kernels(&scope) {
        let sum = by_name.entry(row.short_name).or_default();
        sum.0 += row.total_ns / 1000;
        sum.1 += row.count;
    }
    let mut top: Vec<_> = by_name.into_iter().map(|(name, (us, n))| (us, n, name)).collect();
    top.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.2.cmp(&b.2)));
    let top: Vec<String> =
        top.iter().take(12).map(|(us, n, name)| format!("{name} {n}/{us}")).collect();
    let expected = [
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t 5/3999",
        "ncclKernel_AllReduce_RING_LL_Sum_float 3/1799",
        "vectorized_elementwise_kernel 115/338",
        "unrolled_elementwise_kernel 21/86",
        "reduce_kernel 10/65",
        "volta_sgemm_128x32_nt 7/47",
        "CatArrayBatchedCopy 8/46",
        "elementwise_kernel 14/46",
        "DeviceScanKernel 8/39",
        "DeviceRadixSortSingleTileKernel 3/37",
        "gemmSN_TN_kernel 4/30",
        "linearize_index_kernel 2/30",
    ];
    assert_eq!(top, expected);
}

/// Counts the calls of the runtime and driver by name.
fn calls(trace: &Trace) -> BTreeMap<&str, u64> {
    let mut calls = BTreeMap::new();
    for row in trace.rows().filter(|row| trace.kind(*row) == EventKind::Runtime) {
        *calls.entry(trace.name(row)).or_default() += 1;
    }
    calls
}

#[test]
fn dlrm8_calls_of_the_runtime() {
    let Some(job) = dlrm8() else { return };
    let first = calls(&job.traces[0]);
    let expected = [
        ("cudaLaunchKernel", 245),
        ("cudaEventQuery", 72),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 54),
        ("cudaPeekAtLastError", 46),
        ("cudaStreamWaitEvent", 44),
        ("cudaMemcpyAsync", 16),
        ("cudaDeviceGetAttribute", 12),
        ("cudaStreamSynchronize", 10),
        ("cudaStreamIsCapturing", 8),
    ];
    for (name, count) in expected {
        assert_eq!(first.get(name), Some(&count), "{name}");
    }
    let all: Vec<_> = job.traces.iter().map(calls).collect();
    let sum = |name: &str| all.iter().filter_map(|calls| calls.get(name)).sum::<u64>();
    assert_eq!(sum("cudaLaunchKernel"), 1976);
    assert_eq!(sum("cudaMemcpyAsync"), 128);
    assert_eq!(sum("cudaMemsetAsync"), 12);
    assert_eq!(sum("cudaStreamSynchronize"), 80);
}

#[test]
fn dlrm8_annotations_and_the_step_of_rank_0() {
    let Some(job) = dlrm8() else { return };
    let trace = &job.traces[0];
    let (scope, tree) = (whole(trace), tree::build(trace));
    let rows = annotations::list_annotations(
        &scope,
        &tree,
        &attribution::attribute_device_work(&scope, &tree),
    );
    let us = |part: &str| {
        let found = rows.iter().filter(|row| row.name.contains(part));
        found.map(|row| row.host_ns / 1000).max()
    };
    let expected = [
        ("## zero_grad ##", 93),
        ("## copy_batch_to_gpu ##", 1394),
        ("## forward ##", 4498),
        ("## sparse_data_dist ##", 2367),
        ("## backward ##", 4414),
        ("## optimizer ##", 1437),
        ("enumerate(DataLoader)", 1101),
    ];
    assert_eq!(expected.map(|(name, _)| us(name)), expected.map(|(_, us)| Some(us)));
    let mut durations = Vec::new();
    for trace in &job.traces {
        let rows = steps::list_steps(&whole(trace));
        assert_eq!((rows.len(), rows[0].number), (1, 10));
        durations.push(rows[0].host_ns / 1000);
    }
    assert_eq!(durations, [14455, 19901, 13017, 19313, 17979, 17797, 13091, 12509]);
}

#[test]
fn operators_add_up_to_what_the_device_did() {
    for path in [
        "dlrm8/dlrm_kineto.tar.gz",
        "linear/linear_kineto.json.gz",
        "nccl/nccl_data.json.gz",
        "trace_diff/test.json.gz",
    ] {
        let Some(job) = job(path) else { return };
        for trace in &job.traces {
            let (scope, tree) = (whole(trace), tree::build(trace));
            let found = attribution::attribute_device_work(&scope, &tree);
            let rows = ops::list_operators(&scope, &tree, &found);
            let total: i64 = kernels::list_kernels(&scope).iter().map(|row| row.total_ns).sum();
            let of_others: i64 = (0..scope.device_rows.len())
                .filter(|place| {
                    found.owner(*place).is_none_or(|row| trace.kind(row) != EventKind::Operator)
                })
                .map(|place| trace.slices.duration[scope.device_rows[place] as usize])
                .sum();
            let own: i64 = rows.iter().map(|row| row.device_self_ns).sum();
            assert_eq!(own + of_others, total, "{path} rank {}", trace.rank);
            for row in &rows {
                assert!(row.device_self_ns <= row.device_ns, "{row:?}");
                assert!(0 <= row.host_self_ns && row.host_self_ns <= row.host_ns, "{row:?}");
            }
        }
    }
}

#[test]
fn the_sequence_of_every_linear_layer_is_found() {
    let Some(job) = job("trace_diff/control.json.gz") else { return };
    let trace = &job.traces[0];
    let tree = tree::build(trace);
    let sequences = |rule| {
        let scope = Scope::new(trace, rule, &Classifier::new(ClassRule::Category));
        let found = attribution::attribute_device_work(&scope, &tree);
        let request = sequences::SequenceRequest { operator: "aten::linear", kernels_min: 3 };
        let rows = sequences::find_sequences(&scope, &tree, &found, request);
        let us = |row: &sequences::SequenceRow| (row.device_ns / 1000, row.host_ns / 1000);
        rows.iter().map(|row| (row.count, us(row), row.sequence.clone())).collect::<Vec<_>>()
    };
    // Two different kernels have the same short name, so the labels add what differs in their full
    // names.
    let kernels = "elementwise_kernel [direct_copy_kernel_cuda] | ampere_sgemm_32x128_tn | \
                   elementwise_kernel [CUDAFunctor_add]"
        .to_owned();
    // The expected values come from `trace_diff_control.frequent_sequences.csv`.
    assert_eq!(sequences(WindowRule::Hta), [(10, (986, 1123), kernels.clone())]);
    assert_eq!(sequences(WindowRule::All), [(12, (1183, 1348), kernels)]);
}

/// Reads the name and the figures of each line of an expected table, in which names may contain
/// commas.
fn truth(name: &str, figures: usize) -> Option<Vec<(String, Vec<f64>)>> {
    let text = fixture::text(&format!("hta_truth/{name}"))?;
    let line = |line: &str| {
        let mut parts: Vec<&str> = line.rsplitn(figures + 1, ',').collect();
        let name = parts.pop().unwrap_or_default().trim_matches('"').replace("\"\"", "\"");
        (name, parts.iter().rev().map(|part| part.parse().unwrap_or(f64::NAN)).collect())
    };
    Some(text.lines().skip(1).map(line).collect())
}

#[test]
fn annotations_equal_recorded_tables_where_no_step_is_trimmed() {
    for (path, table) in
        [("dlrm8/dlrm_kineto.tar.gz", "dlrm8"), ("linear/linear_kineto.json.gz", "linear_kineto")]
    {
        let Some(job) = job(path) else { return };
        let Some(truth) = truth(&format!("{table}.cpu_user_annotation_breakdown.csv"), 6) else {
            return;
        };
        let mut seen = 0;
        for trace in &job.traces {
            let (scope, tree) = (whole(trace), tree::build(trace));
            let rows = annotations::list_annotations(
                &scope,
                &tree,
                &attribution::attribute_device_work(&scope, &tree),
            );
            for (name, figures) in truth.iter().filter(|(_, row)| row[5] == f64::from(trace.rank)) {
                let row = rows.iter().find(|row| row.name == *name).expect(name);
                let ours = [row.host_ns, row.max_ns, row.min_ns].map(|ns| ns as f64 / 1000.0);
                assert_eq!(ours[..], figures[..3], "{name} rank {}", trace.rank);
                assert!((row.std_ns / 1000.0 - figures[3]).abs() < 1e-5, "{row:?}");
                assert!((row.mean_ns / 1000.0 - figures[4]).abs() < 1e-5, "{row:?}");
                seen += 1;
            }
        }
        assert_eq!(seen, truth.len(), "{table}");
    }
}

#[test]
fn inclusive_device_time_equals_the_recorded_call_graph() {
    let Some(job) = dlrm8() else { return };
    let Some(truth) = truth("dlrm8.op_kernel_attribution_inclusive_top40.csv", 4) else { return };
    let trace = &job.traces[0];
    let (scope, tree) = (whole(trace), tree::build(trace));
    let rows =
        ops::list_operators(&scope, &tree, &attribution::attribute_device_work(&scope, &tree));
    let mut differs = Vec::new();
    for (name, figures) in &truth {
        let row = rows.iter().find(|row| row.name == *name).expect(name);
        let ours = [row.kernel_count as f64, row.device_ns as f64 / 1000.0];
        // The expected table counts only the calls that launched kernels.
        if ours[..] != figures[1..3] {
            differs.push((name.as_str(), ours, [figures[1], figures[2]]));
        }
    }
    // Two of the five operators run inside another one of the same name, so the expected table
    // counts their kernels twice.
    assert_eq!(differs, [("aten::div_", [3.0, 12.0], [5.0, 20.0])]);
}
