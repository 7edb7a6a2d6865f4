//! Tests the Kineto files that the recorder writes: the expected rows, and invariants of all rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use expect_test::{Expect, expect};
use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, proptest};
use schema::{Nanos, Op, Stage};
use serde_json::Value;
use trace::{ExchangeSpan, ExchangeWork, OpSpan, Recorder, RunInfo};

use crate::recording::{all_ops, info, read, regular, span};

fn written(recorder: &Recorder) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    recorder.write_kineto(&path).unwrap();
    fs::read_to_string(path).unwrap()
}

fn check(recorder: &Recorder, expected: &Expect) {
    expected.assert_eq(&written(recorder));
}

#[test]
fn small_recording_is_written_as_expected_rows() {
    let mut recorder = Recorder::new(info());
    recorder.begin_step(7, Nanos(1_000));
    recorder.push(span(Op::InputWait { batch_size: 2 }, [1_000, 0, 0, 1_500]));
    recorder.push(span(Op::Loss { batch_size: 2 }, [1_500, 1_750, 2_750, 2_801]));
    recorder.push(span(Op::AllReduce { elements: 3 }, [2_900, 3_000, 4_001, 4_100]));
    recorder.end_step(Nanos(4_200));
    check(
        &recorder,
        &expect![[r#"
        {
          "schemaVersion": 1,
          "deviceProperties": [{"id":0,"name":"Test CPU","threads":4}],
          "distributedInfo": {"backend": "threads", "rank": 1, "world_size": 2},
          "record_shapes": 1,
          "with_flops": 1,
          "host_name": "mill",
          "moved_ns": 0,
          "displayTimeUnit": "ms",
          "baseTimeNanoseconds": 1700000000000000000,
          "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 4711, "tid": 0, "ts": 0.000, "args": {"name": "rowmill"}},
            {"ph": "M", "name": "process_labels", "pid": 4711, "tid": 0, "ts": 0.000, "args": {"labels": "CPU"}},
            {"ph": "M", "name": "process_sort_index", "pid": 4711, "tid": 0, "ts": 0.000, "args": {"sort_index": 4711}},
            {"ph": "M", "name": "thread_name", "pid": 4711, "tid": 4712, "ts": 0.000, "args": {"name": "thread 4712 (rowmill rank 1)"}},
            {"ph": "M", "name": "thread_sort_index", "pid": 4711, "tid": 4712, "ts": 0.000, "args": {"sort_index": 4712}},
            {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0.000, "args": {"name": "rowmill"}},
            {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 0.000, "args": {"labels": "pool 0: Test CPU"}},
            {"ph": "M", "name": "process_sort_index", "pid": 0, "tid": 0, "ts": 0.000, "args": {"sort_index": 5000000}},
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "ts": 0.000, "args": {"name": "stream 1"}},
            {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": 1, "ts": 0.000, "args": {"sort_index": 1}},
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "pid": 4711, "tid": 4712, "ts": 1.000, "dur": 3.200, "args": {"External id":1,"Record function id":1,"busy_ns":2001}},
            {"ph": "X", "cat": "cpu_op", "name": "rowmill::input_wait", "pid": 4711, "tid": 4712, "ts": 1.000, "dur": 0.500, "args": {"External id":2,"Record function id":2,"Input Dims":[[2]],"Input type":["float"],"flops":0,"bytes":0}},
            {"ph": "X", "cat": "cpu_op", "name": "rowmill::loss", "pid": 4711, "tid": 4712, "ts": 1.500, "dur": 1.301, "args": {"External id":3,"Record function id":3,"Input Dims":[[2]],"Input type":["float"],"flops":16,"bytes":32}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 4711, "tid": 4712, "ts": 1.500, "dur": 0.250, "args": {"External id":3,"correlation":1,"runtime":"rowmillLaunch"}},
            {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 4711, "tid": 4712, "ts": 1.500},
            {"ph": "X", "cat": "kernel", "name": "rowmill_loss", "pid": 0, "tid": 1, "ts": 1.750, "dur": 1.000, "args": {"External id":3,"correlation":1,"device":0,"stream":1}},
            {"ph": "f", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 1, "ts": 1.750, "bp": "e"},
            {"ph": "X", "cat": "cpu_op", "name": "rowmill::all_reduce", "pid": 4711, "tid": 4712, "ts": 2.900, "dur": 1.200, "args": {"External id":4,"Record function id":4,"Input Dims":[[3]],"Input type":["float"],"flops":3,"bytes":12}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 4711, "tid": 4712, "ts": 2.900, "dur": 0.100, "args": {"External id":4,"correlation":2,"runtime":"rowmillLaunch"}},
            {"ph": "s", "id": 2, "cat": "ac2g", "name": "ac2g", "pid": 4711, "tid": 4712, "ts": 2.900},
            {"ph": "X", "cat": "kernel", "name": "rowmill_all_reduce (in place of ncclKernel)", "pid": 0, "tid": 1, "ts": 3.000, "dur": 1.001, "args": {"External id":4,"correlation":2,"device":0,"stream":1,"Collective name":"allreduce","dtype":"Float","In msg nelems":3,"Out msg nelems":3,"Group size":2,"Process Group Name":"0","Process Group Description":"default_pg","Rank":1,"Seq":1}},
            {"ph": "f", "id": 2, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 1, "ts": 3.000, "bp": "e"}
          ]
        }
    "#]],
    );
}

#[test]
fn exchanges_that_overlap_are_on_streams_of_their_own() {
    let mut recorder = regular(info(), 1, 50);
    let exchange = |stage, start, end| {
        let work = ExchangeWork::Messages;
        ExchangeSpan { work, stage, start: Nanos(start), end: Nanos(end) }
    };
    recorder.push_exchange(exchange(Stage::AllReduce(0), 5_100, 6_000));
    recorder.push_exchange(exchange(Stage::AllReduce(1), 5_500, 7_000));
    recorder.push_exchange(exchange(Stage::AllReduce(2), 6_000, 6_000));
    recorder.push_exchange(exchange(Stage::PooledExchange, 4_000, 4_500));
    let copy = exchange(Stage::PooledExchange, 3_000, 4_100);
    recorder.push_exchange(ExchangeSpan { work: ExchangeWork::Copy, ..copy });
    let file: Value = serde_json::from_str(&written(&recorder)).unwrap();
    let rows = slices(&file).into_iter().filter(|row| row["args"].get("Stage").is_some());
    let rows = rows.filter(|row| row["cat"] != "cpu_op");
    let found: Vec<_> = rows.map(|row| (row["args"]["stream"].clone(), interval(row))).collect();
    let expected = [
        (2, (3_000, 4_100)),
        (3, (4_000, 4_500)),
        (4, (5_100, 6_000)),
        (5, (5_500, 7_000)),
        (4, (6_000, 6_001)),
    ];
    assert_eq!(found, expected.map(|(stream, times)| (Value::from(stream), times)));
    let text = written(&recorder);
    assert!(text.contains("stream 4: all_reduce"), "{text}");
    assert!(text.contains("rowmill_copy pooled_exchange"), "{text}");
    assert!(text.contains("rowmill_sendrecv all_reduce 1 (in place of ncclKernel)"), "{text}");
}

#[test]
fn a_narrowed_kernel_stays_within_its_operation() {
    let mut recorder = Recorder::new(info());
    recorder.begin_step(0, Nanos(0));
    let op = Op::OutputDist { elements: 3 };
    let stage = Some(Stage::PooledExchange);
    recorder.push(OpSpan { stage, ..span(op, [0, 10, 90, 100]) });
    recorder.narrow_kernel(Stage::GradientExchange, Nanos(30), Nanos(40));
    assert_eq!(recorder.busy(0), Some(Nanos(80)));
    recorder.narrow_kernel(Stage::PooledExchange, Nanos(30), Nanos(40));
    let kernel = |recorder: &Recorder| {
        let span = recorder.spans(0).unwrap()[0];
        (span.kernel_start.0, span.kernel_end.0, recorder.busy(0).unwrap().0)
    };
    assert_eq!(kernel(&recorder), (30, 40, 10));
    recorder.narrow_kernel(Stage::PooledExchange, Nanos(200), Nanos(300));
    assert_eq!(kernel(&recorder), (39, 40, 1));
}

/// Returns the complete events of a file.
fn slices(file: &Value) -> Vec<&Value> {
    file["traceEvents"].as_array().unwrap().iter().filter(|row| row["ph"] == "X").collect()
}

/// Returns start and end of a row in nanoseconds, converted from its decimal microseconds.
fn interval(row: &Value) -> (i64, i64) {
    let (start, length) = (nanos(&row["ts"]), nanos(&row["dur"]));
    (start, start + length)
}

fn nanos(value: &Value) -> i64 {
    (value.as_f64().unwrap() * 1000.0).round() as i64
}

#[test]
fn kernels_sum_to_the_busy_time_without_waits() {
    let recorder = regular(info(), 3, 50);
    let file: Value = serde_json::from_str(&written(&recorder)).unwrap();
    let steps: Vec<&Value> =
        slices(&file).into_iter().filter(|row| row["cat"] == "user_annotation").collect();
    assert_eq!(steps.len(), 3);
    for (number, step) in (10..).zip(steps) {
        let (begin, end) = interval(step);
        let kernels = slices(&file).into_iter().filter(|row| row["cat"] == "kernel");
        let inside = kernels.map(interval).filter(|&(start, _)| begin <= start && start < end);
        let sum: i64 = inside.map(|(start, end)| end - start).sum();
        let expected: i64 = (1..all_ops().len() as i64).map(|index| 1_000 + 137 * index).sum();
        assert_eq!(sum, expected);
        assert_eq!(recorder.busy(number), Some(Nanos(expected)));
        assert_eq!(step["args"]["busy_ns"], expected);
    }
    assert_eq!(recorder.moved_ns(), 0);
}

#[test]
fn every_kernel_has_a_launch_that_ends_at_its_start_and_an_arrow() {
    let file: Value = serde_json::from_str(&written(&regular(info(), 2, 50))).unwrap();
    let by_correlation = |category: &str| -> BTreeMap<u64, &Value> {
        let rows = slices(&file).into_iter().filter(|row| row["cat"] == category);
        rows.map(|row| (row["args"]["correlation"].as_u64().unwrap(), row)).collect()
    };
    let (launches, kernels) = (by_correlation("cuda_runtime"), by_correlation("kernel"));
    assert_eq!(kernels.len(), 2 * (all_ops().len() - 1));
    assert_eq!(launches.keys().collect::<Vec<_>>(), kernels.keys().collect::<Vec<_>>());
    for (correlation, kernel) in &kernels {
        let launch = launches[correlation];
        assert_eq!(interval(launch).1, interval(kernel).0);
        assert_eq!(launch["args"]["External id"], kernel["args"]["External id"]);
        let arrow: Vec<&Value> = file["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["cat"] == "ac2g" && row["id"] == *correlation)
            .collect();
        let ends: Vec<_> = arrow.iter().map(|row| (&row["ph"], &row["ts"])).collect();
        assert_eq!(ends, [(&"s".into(), &launch["ts"]), (&"f".into(), &kernel["ts"])]);
    }
}

#[test]
fn names_with_quotes_and_other_scripts_survive() {
    let awkward = "a \"quoted\" \\ näme,\n\t粉挽き \u{1} 🌾";
    let mut info = info();
    info.host = awkward.to_owned();
    info.device = awkward.to_owned();
    info.backend = awkward.to_owned();
    let file: Value = serde_json::from_str(&written(&regular(info, 1, 0))).unwrap();
    assert_eq!(file["host_name"], awkward);
    assert_eq!(file["deviceProperties"][0]["name"], awkward);
    assert_eq!(file["distributedInfo"]["backend"], awkward);
    let labels = file["traceEvents"].as_array().unwrap().iter();
    let labels: Vec<&Value> = labels.map(|row| &row["args"]["labels"]).collect();
    assert!(labels.contains(&&Value::from(format!("pool 0: {awkward}"))));
}

#[test]
fn late_times_keep_every_nanosecond() {
    let mut recorder = Recorder::new(RunInfo { base_time_ns: 0, ..info() });
    let late = 1_694_128_201_421_058_007;
    recorder.begin_step(0, Nanos(late));
    recorder.push(span(Op::Loss { batch_size: 1 }, [late, late + 1, late + 3, late + 6]));
    recorder.end_step(Nanos(late + 6));
    let text = written(&recorder);
    for expected in [
        "\"ts\": 1694128201421058.007, \"dur\": 0.006",
        "\"ts\": 1694128201421058.007, \"dur\": 0.001",
        "\"ts\": 1694128201421058.008, \"dur\": 0.002",
    ] {
        assert!(text.contains(expected), "expected {expected} in {text}");
    }
}

#[test]
fn step_without_an_end_ends_with_its_last_operation() {
    let mut recorder = regular(info(), 1, 0);
    recorder.begin_step(11, Nanos(1_000_000));
    assert_eq!(recorder.steps().collect::<Vec<_>>(), [10]);
    let op = Op::Loss { batch_size: 1 };
    recorder.push(span(op, [1_000_000, 1_000_100, 1_000_200, 1_000_300]));
    let file: Value = serde_json::from_str(&written(&recorder)).unwrap();
    let steps = slices(&file).into_iter().filter(|row| row["cat"] == "user_annotation");
    let ends: Vec<i64> = steps.map(|row| interval(row).1).collect();
    assert_eq!(ends.last(), Some(&1_000_300));
}

#[test]
#[should_panic(expected = "operation recorded outside a step")]
fn operation_outside_a_step_panics() {
    Recorder::new(info()).push(span(Op::Loss { batch_size: 1 }, [0, 1, 2, 3]));
}

#[test]
fn kernel_names_lead_to_the_right_class() {
    // Holistic Trace Analysis takes a kernel for a collective if its name contains `ncclKernel`. A
    // kernel whose name contains any of these words does not count as computation.
    let words = ["nccl", "Memcpy", "Memset", "dma", "Sync", "LaunchKernel", "Stream Wait Event"];
    let file: Value = serde_json::from_str(&written(&regular(info(), 1, 50))).unwrap();
    for row in slices(&file).into_iter().filter(|row| row["cat"] == "kernel") {
        let name = row["name"].as_str().unwrap();
        let is_collective = row["args"].get("Collective name").is_some();
        assert_eq!(name.contains("ncclKernel"), is_collective, "{name}");
        assert!(is_collective || !words.iter().any(|word| name.contains(word)), "{name}");
        assert!(name.starts_with("rowmill_"));
    }
}

#[test]
fn a_recorded_operation_takes_at_most_100_bytes() {
    assert!(size_of::<OpSpan>() <= 100, "{} bytes", size_of::<OpSpan>());
}

/// Generates spans as a broken clock could produce them: in any order, empty, or backwards.
fn any_spans() -> impl Strategy<Value = Vec<Vec<OpSpan>>> {
    let times = proptest::array::uniform4(0..200_i64);
    let op = (0..all_ops().len(), times).prop_map(|(op, times)| span(all_ops()[op], times));
    proptest::collection::vec(proptest::collection::vec(op, 0..12), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn slices_never_overlap_whatever_the_times(steps in any_spans(), drift in any::<bool>()) {
        let mut recorder = Recorder::new(info());
        for (number, spans) in steps.iter().enumerate() {
            let at = if drift { 100 * number as i64 } else { 0 };
            recorder.begin_step(number as u64, Nanos(at));
            for &span in spans {
                recorder.push(span);
            }
            recorder.end_step(Nanos(at));
        }
        let file: Value = serde_json::from_str(&written(&recorder)).unwrap();
        let mut tracks: BTreeMap<(u64, u64), Vec<(i64, i64)>> = BTreeMap::new();
        for row in slices(&file) {
            let (pid, tid) = (row["pid"].as_u64().unwrap(), row["tid"].as_u64().unwrap());
            let (start, end) = interval(row);
            prop_assert!(start < end, "empty slice {row}");
            tracks.entry((pid, tid)).or_default().push((start, end));
        }
        for ((pid, _), mut intervals) in tracks {
            intervals.sort_by_key(|&(start, end)| (start, -end));
            let mut open: Vec<i64> = Vec::new();
            for (start, end) in intervals {
                while open.last().is_some_and(|&until| until <= start) {
                    open.pop();
                }
                prop_assert!(open.last().is_none_or(|&until| end <= until), "not nested");
                prop_assert!(pid != 0 || open.is_empty(), "kernels overlap");
                open.push(end);
            }
        }
        let numbers: BTreeSet<u64> = recorder.steps().collect();
        prop_assert_eq!(numbers.len(), steps.len());
    }
}

#[test]
fn files_are_replaced_atomically() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    fs::write(&path, "what stood there").unwrap();
    regular(info(), 1, 10).write_kineto(&path).unwrap();
    assert_eq!(read(&path)["schemaVersion"], 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
