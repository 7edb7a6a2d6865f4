//! Tests of the commands of `rowmill predict`, run by the real binary.

use std::fs;
use std::path::Path;

use serde_json::Value;
use testkit::fixture;

use crate::fixture::Place;

/// A trace of three steps, each with one operator, one launch and one kernel.
pub fn trace(device: &str) -> String {
    let step = |number: u32| {
        let at = 100 + 50 * number;
        let id = 7 + number;
        format!(
            r#"{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{number}","pid":9,"tid":9,"ts":{at},"dur":50,"args":{{}}}},
{{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":{},"dur":{},"args":{{"External id":{id},"Input Dims":[[4,8],[8,2]]}}}},
{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":{},"dur":5,"args":{{"correlation":{id}}}}},
{{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":{},"dur":10,"args":{{"correlation":{id},"stream":7,"device":0}}}}"#,
            at + 1,
            20 + number,
            at + 2,
            at + 9,
        )
    };
    let steps: Vec<String> = (0..3).map(step).collect();
    format!(
        r#"{{"schemaVersion": 1, "record_shapes": 1, "deviceProperties": [{{"id": 0, "name": "{device}"}}],
"distributedInfo": {{"rank": 0}}, "traceEvents": [
{}
]}}"#,
        steps.join(",\n")
    )
}

/// Creates a folder with a trace and its calibration.
pub fn place() -> Place {
    let place = Place::new();
    fs::write(place.path("t.json"), trace("Tesla V100")).unwrap();
    fs::write(place.path("other.json"), trace("Tesla P100")).unwrap();
    place.done("predict calibrate t.json --output c.json");
    place
}

#[test]
fn a_step_is_predicted_with_an_interval_and_its_sources() {
    let place = place();
    let words = "predict step t.json --calibration c.json --write-trace predicted --format json";
    let rows = place.done(words).json();
    let row = &rows[0];
    for field in [
        "step_ns",
        "low_ns",
        "high_ns",
        "busy_ns",
        "idle_pct",
        "measured_pct",
        "modeled_pct",
        "unknown_pct",
        "error_pct",
        "baseline_error_pct",
        "noise_pct",
    ] {
        assert!(row[field].is_number(), "{field}: {row}");
    }
    assert_eq!((&row["step_ns"], &row["busy_ns"]), (&Value::from(50_000), &Value::from(10_000)));
    assert_eq!(row["measured_pct"], Value::from(100.0));
    let (low, high) = (row["low_ns"].as_i64().unwrap(), row["high_ns"].as_i64().unwrap());
    assert!(low < 50_000 && 50_000 < high && high < 55_000, "{row}");

    let steps = place.done("trace steps predicted --format json").json();
    assert_eq!(steps[0]["host_ns"], Value::from(50_000), "a predicted step is a trace: {steps}");
}

#[test]
fn predictions_are_the_same_for_any_number_of_threads() {
    let place = place();
    for words in
        ["step t.json --calibration c.json", "evaluate t.json", "calibrate t.json --overheads"]
    {
        let run = |threads: u32| {
            place.done(&format!("predict {words} --format json --threads {threads}")).stdout
        };
        assert_eq!(run(1), run(2), "{words}");
        assert_eq!(run(1), run(7), "{words}");
    }
}

#[test]
fn predictions_are_of_steps_without_the_profiler_where_these_were_timed() {
    let place = place();
    fs::write(place.path("steps.txt"), "46000\n45000\n\n44000\n").unwrap();
    for given in ["45000", "steps.txt"] {
        let words = format!("predict calibrate t.json --unrecorded {given} --output u.json");
        let report = place.done(&format!("{words} --format json")).json();
        assert!(report["event_ns"].as_f64().unwrap() > 0.0, "{report}");
        let rows = place.done("predict step t.json --calibration u.json --format json").json();
        let step_ns = rows[0]["step_ns"].as_i64().unwrap();
        assert!((44_990..=45_010).contains(&step_ns), "{rows}");
    }
    let words = "predict calibrate t.json --output u.json --unrecorded";
    place.refused(&format!("{words} 0"), &["expected a time above 0 ns"]);
    place.refused(&format!("{words} 100"), &["at least 43000 ns", "without an event"]);
    fs::write(place.path("bad.txt"), "40000\nfast\n").unwrap();
    place.refused(&format!("{words} bad.txt"), &["line 2 of bad.txt", "fast"]);
    fs::write(place.path("none.txt"), "").unwrap();
    place.refused(&format!("{words} none.txt"), &["none.txt"]);
    let ran = place.done(&format!("{words} 60000"));
    assert!(ran.stderr.contains("no less"), "{}", ran.stderr);
}

#[test]
fn calibrations_merge_all_their_samples() {
    let place = place();
    let words = "predict calibrate t.json --merge c.json --output both.json --format json";
    let merged = place.done(words).json();
    let alone = place.done("predict calibrate t.json --output c.json --format json").json();
    let samples = |report: &Value| report["samples"].as_u64().unwrap();
    assert_eq!((samples(&merged), merged["steps"].as_u64()), (2 * samples(&alone), Some(6)));
}

#[test]
fn a_calibration_that_cannot_be_used_is_refused() {
    let place = place();
    let step = "predict step t.json --calibration";
    place.refused(&format!("{step} t.json"), &["expected a calibration", "hint:"]);
    let text = fs::read_to_string(place.path("c.json")).unwrap();
    let newer = text.replacen("\"rowmill_calibration\":5", "\"rowmill_calibration\":6", 1);
    fs::write(place.path("new.json"), newer).unwrap();
    place.refused(&format!("{step} new.json"), &["expected version 5, got version 6"]);
    fs::write(place.path("cut.json"), &text[..text.len() / 2]).unwrap();
    place.refused(&format!("{step} cut.json"), &["cut.json: calibration: expected"]);
    let huge = text.replacen("[29000", "[9223372036854775807", 1);
    fs::write(place.path("huge.json"), huge).unwrap();
    place.refused(&format!("{step} huge.json"), &["expected samples of less than a month"]);
}

#[test]
fn a_calibration_of_other_devices_needs_consent() {
    let place = place();
    let words = "predict step other.json --calibration c.json";
    place.refused(words, &["Tesla P100", "Tesla V100", "--force"]);
    let ran = place.done(&format!("{words} --force"));
    assert!(ran.stderr.contains("warning:") && ran.stderr.contains("Tesla V100"), "{}", ran.stderr);
    place.refused("predict calibrate other.json --merge c.json --output d.json", &["Tesla V100"]);
}

#[test]
fn a_calibration_of_another_kind_of_job_or_device_does_not_pass_in_silence() {
    let place = place();
    let is_work = |line: &&str| line.contains("cudaLaunchKernel") || line.contains("\"gemm\"");
    let text = trace("");
    let lines: Vec<&str> = text.lines().filter(|line| !is_work(line)).collect();
    let text = lines
        .join("\n")
        .replace(",\n]}", "\n]}")
        .replace(r#""deviceProperties": [{"id": 0, "name": ""}],"#, "");
    fs::write(place.path("cpu.json"), text).unwrap();
    place.done("predict calibrate cpu.json --output cpu-host.json");
    let words = "predict step t.json --calibration cpu-host.json";
    place.refused(words, &["Tesla V100", "no device", "--force"]);
    place.done(&format!("{words} --force"));
    let other = trace("Tesla V100").replace("aten::mm", "aten::other").replace("gemm", "kernel");
    fs::write(place.path("job.json"), other).unwrap();
    let ran = place.done("predict step job.json --calibration c.json");
    assert!(ran.stderr.contains("another kind of job"), "{}", ran.stderr);
    let ran = place.done("predict step t.json --calibration c.json");
    assert!(!ran.stderr.contains("another kind of job"), "{}", ran.stderr);
    fs::write(place.path("empty.json"), "[]").unwrap();
    let words = "predict step t.json --calibration empty.json";
    place.refused(words, &["expected a calibration, got JSON of another form"]);
}

#[test]
fn predicted_traces_need_a_folder_that_exists() {
    let place = place();
    let ran = place.run("predict step t.json --calibration c.json --write-trace no/where/x");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("no/where does not exist"), "{}", ran.stderr);
    assert!(!place.path("no").exists());
    place.done("predict step t.json --calibration c.json --write-trace x");
}

#[test]
fn predicted_kernels_of_models_are_compared_by_their_sum() {
    let place = place();
    let words = "predict evaluate t.json --measured t.json --format json";
    let rows = place.done(words).json();
    assert!(rows.as_array().unwrap().iter().any(|row| row["name"] == "gemm"), "{rows}");
    let other = trace("Tesla V100").replace("\"gemm\"", "\"modeled\"");
    fs::write(place.path("m.json"), other).unwrap();
    let ran = place.done("predict evaluate m.json --measured t.json --format json");
    assert!(ran.stderr.contains("only the sum of all device work"), "{}", ran.stderr);
    let rows = ran.json();
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows}");
    assert_eq!((&rows[1]["name"], &rows[1]["error_pct"]), (&"all device work".into(), &0.0.into()));
}

#[test]
fn execution_traces_need_as_many_devices_as_ranks() {
    let Some(traces) = fixture::path("traces/linear") else { return };
    let place = Place::new();
    let et = traces.join("linear_et.json.gz");
    let step = format!("predict step --execution-trace {}", et.display());
    let rows = place.done(&format!("{step} --hardware v100 --format json")).json();
    // The host is that of another job.
    assert_eq!(rows[0]["measured_pct"], 0.0, "{rows}");
    place.refused(&format!("{step} --hardware v100x8"), &["one for each rank", "got 8 devices"]);
    let kineto = traces.join("linear_kineto.json.gz");
    let step = format!("predict step --hardware v100 --execution-trace {}", kineto.display());
    let ran = place.run(&step);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("give a Kineto trace as PATH"), "{}", ran.stderr);
    // The GPU of this recording has no data sheet, but its other evaluations need none.
    let ran =
        place.done(&format!("predict evaluate {} --execution {}", kineto.display(), et.display()));
    assert!(ran.stderr.contains("kernels by models are not evaluated"), "{}", ran.stderr);
    assert!(ran.stdout.contains("Later steps"), "{}", ran.stdout);
}

#[test]
fn collectives_of_missing_ranks_stay_as_measured_and_that_is_said() {
    let place = Place::new();
    let collective =
        r#""correlation":8,"stream":7,"device":0,"Collective name":"allreduce","Group size":4,"#;
    let text = trace("Tesla V100").replace("\"gemm\"", "\"ncclKernel_AllReduce_RING_LL\"");
    let text =
        text.replace(r#""correlation":8,"stream":7,"device":0"#, collective.trim_end_matches(','));
    fs::write(place.path("t.json"), text).unwrap();
    let ran = place.done("predict evaluate t.json --format json");
    assert!(ran.stderr.contains("stay as measured"), "{}", ran.stderr);
    assert_eq!(ran.json()["replay"][0]["busy_ns"], Value::from(10_000));
}

#[test]
fn a_step_that_was_not_recorded_is_refused() {
    let words = "predict step t.json --calibration c.json --step 3";
    place().refused(words, &["step 3: expected a step in 0..3"]);
}

#[test]
fn edits_are_predicted_and_compared_to_what_was_measured_after_them() {
    let place = place();
    let edits = "[[edit]]\nkind = \"insert\"\noperator = \"aten::mm\"\nafter = \"aten::*\"\n";
    fs::write(place.path("more.toml"), edits).unwrap();
    fs::write(place.path("none.toml"), "").unwrap();
    let words = "predict what-if t.json --edits none.toml --edits more.toml --format json";
    let rows = place.done(words).json();
    assert_eq!((&rows[0]["edits"], &rows[0]["saving_ns"]), (&Value::from("none"), &0.into()));
    assert_eq!(rows[1]["edits"], Value::from("more"));
    assert!(rows[1]["saving_ns"].as_i64().unwrap() < -20_000, "{rows}");
    assert_eq!(rows[1]["error_pct"], Value::Null);
    let words = "predict what-if t.json --edits none.toml --measured other.json --format json";
    let rows = place.done(words).json();
    assert_eq!((&rows[0]["measured_ns"], &rows[0]["error_pct"]), (&50_000.into(), &0.0.into()));
    assert_eq!(rows[0]["baseline_error_pct"], Value::from(0.0));
}

/// A recording of one matrix product with `rows` rows, whose kernel takes `kernel` µs.
fn product(rows: u32, kernel: u32) -> String {
    let sizes = format!("[[{rows},8],[8,2]]");
    let text = trace("Tesla V100").replace("[[4,8],[8,2]]", &sizes);
    text.replace("\"dur\":10,", &format!("\"dur\":{kernel},"))
}

#[test]
fn a_step_between_two_recorded_sizes_has_kernels_between_theirs() {
    let place = place();
    for (name, rows, kernel) in [("a", 16, 4), ("b", 64, 16), ("c", 32, 9)] {
        fs::write(place.path(&format!("{name}.json")), product(rows, kernel)).unwrap();
    }
    let words = "predict resize a.json b.json --sizes 16,64 --to 32 --measured c.json";
    let rows = place.done(&format!("{words} --format json")).json();
    // Four times the size takes four times as long, so twice the size must take twice as long.
    assert_eq!((&rows[0]["size"], &rows[0]["busy_ns"]), (&32.into(), &8_000.into()), "{rows}");
    assert!(rows[0]["modeled_pct"].as_f64().unwrap() > 0.0, "{rows}");
    assert_eq!((&rows[0]["measured_ns"], &rows[0]["error_pct"]), (&50_000.into(), &0.0.into()));
    let own = place.done("predict resize a.json b.json --sizes 16,64 --to 64 --format json").json();
    assert_eq!((&own[0]["busy_ns"], &own[0]["modeled_pct"]), (&16_000.into(), &0.0.into()));

    let sizes = "predict resize a.json b.json --sizes";
    place.refused(&format!("{sizes} 16,16 --to 32"), &["two different recorded sizes"]);
    place.refused(&format!("{sizes} 16,64 --to 0"), &["sizes from 1 on, got 0"]);
    let twice = "predict resize a.json a.json --sizes 16,64 --to 32";
    place.refused(twice, &["recordings of two sizes", "equal or missing tensor sizes in both"]);
    let huge = format!("{sizes} 16,64 --to 18446744073709551615");
    place.refused(&huge, &["sizes from 0 to 9e15"]);
    for contradicting in ["64,16", "16,32"] {
        let expected =
            &["resize: expected tensor sizes that grow", "sizes that grow from 16 to 64"];
        place.refused(&format!("{sizes} {contradicting} --to 32"), expected);
    }
    let ran = place.done(&format!("{sizes} 16,64 --to 128"));
    assert!(ran.stderr.contains("128 is not between the recorded sizes"), "{}", ran.stderr);
    let other = trace("Tesla V100").replace("aten::mm", "aten::bmm");
    fs::write(place.path("d.json"), other).unwrap();
    let words = "predict resize a.json d.json --sizes 16,64 --to 32";
    place.refused(words, &["in both recordings", "aten::mm", "aten::bmm"]);
}

#[test]
fn edits_that_cannot_be_made_are_refused() {
    let place = place();
    let refuse = |text: &str, expected: &[&str]| {
        fs::write(place.path("e.toml"), text).unwrap();
        place.refused("predict what-if t.json --edits e.toml", expected);
    };
    refuse("[[edit]]\nkind = \"remove\"\noperators = \"aten::m\"\n", &["e.toml", "aten::mm"]);
    refuse("[[edit]]\nkind = \"melt\"\n", &["e.toml", "melt", "hint:"]);
    refuse("[[edit]]\nkind = \"scale\"\nkernels = \"gemm\"\nfactor = -1.0\n", &["factor from 0"]);
    refuse("[[edit]]\nkind = \"scale\"\nkernels = \"gemm\"\nfactors = 1.0\n", &["factor"]);
    refuse("[[edit]]\nkind = \"pin-copies\"\n", &["copies from pageable memory"]);
}

#[test]
fn overheads_are_printed_and_drawn() {
    let place = place();
    let ran = place.done("predict calibrate t.json --overheads --svg o.svg --format csv");
    assert!(ran.stdout.contains("before_first_launch") && ran.stdout.contains("aten::mm"));
    let svg = fs::read_to_string(place.path("o.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("between_ops"), "{svg}");
}

#[test]
fn the_evaluation_of_a_job_prints_its_constants_and_errors() {
    let Some(job) = fixture::path("traces/dlrm8") else { return };
    let place = Place::new();
    let ran = place.done(&format!("predict evaluate {} --format json", job.display()));
    let report = ran.json();
    assert!(report["constant_count"].as_u64().unwrap() <= 12);
    assert!(report["replay_worst_pct"].as_f64().unwrap() <= 0.5);
    assert!(report["leave_one_out_geomean_pct"].as_f64().unwrap() <= 3.0);
    let ran = place.done(&format!("predict evaluate {}", job.display()));
    for text in ["12 constants, of rank 0, 1, 2, 3", "Replay", "Leave one rank out"] {
        assert!(ran.stdout.contains(text), "{text}: {}", ran.stdout);
    }
}

/// Returns the names of the operators of a step, in order. The wait for input is left out, because
/// predictions do not contain it.
fn operators(path: &Path) -> Vec<String> {
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let step = events
        .iter()
        .rfind(|event| event["name"].as_str().is_some_and(|name| name.starts_with("ProfilerStep#")))
        .unwrap();
    let begin = step["ts"].as_f64().unwrap();
    let end = begin + step["dur"].as_f64().unwrap();
    let is_inside = |event: &&Value| {
        let at = event["ts"].as_f64().unwrap_or(-1.0);
        event["cat"] == "cpu_op" && begin <= at && at < end
    };
    let mut inside: Vec<&Value> = events.iter().filter(is_inside).collect();
    inside.sort_by(|a, b| a["ts"].as_f64().unwrap().total_cmp(&b["ts"].as_f64().unwrap()));
    let names = inside.iter().map(|event| event["name"].as_str().unwrap().to_owned());
    names.filter(|name| name != "rowmill::input_wait").collect()
}

/// Trains a few steps, calibrates on them, and predicts the same step from its configuration. The
/// predicted operators must equal the recorded ones.
fn written_down(config: &str, ranks: u32, set: &str) {
    let place = Place::new();
    let set = format!("{set} --set model.rows_cap=100 --set training.batch_size=64");
    place.done(&format!(
        "train {config} {set} --synthetic 640 --ranks {ranks} --threads 1 --run run \
         --trace traces --trace-steps 2..6"
    ));
    place.done("predict calibrate traces --output c.json");
    // The prediction uses as many threads per rank as the recording had.
    let predicted = place.done(&format!(
        "predict step --model {config} {set} --ranks {ranks} --threads 1 --calibration c.json \
         --write-trace predicted --format json"
    ));
    for rank in 0..ranks {
        let recorded = operators(&place.path(&format!("traces/kineto_rank{rank}.json")));
        let written = operators(&place.path(&format!("predicted/rank-{rank}.json")));
        assert_eq!(written, recorded, "{config}, rank {rank} of {ranks}");
    }
    for line in predicted.stdout.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let rows = row.as_array().map_or(vec![&row], |rows| rows.iter().collect());
        for row in rows {
            // Most costs are found by name and sizes. The exceptions are random sizes and what runs
            // beside the wait for input. Exchanges between ranks, which are 6 % of all operations
            // here, are interpolated between sizes and thus count as modeled.
            let least = if ranks > 1 { 91.0 } else { 95.0 };
            assert!(row["measured_pct"].as_f64().unwrap() > least, "{config}, {ranks}: {row}");
            assert_eq!(row["unknown_pct"].as_f64(), Some(0.0), "{row}");
        }
    }
}

#[test]
fn steps_of_the_trainer_are_written_down_as_they_are_recorded() {
    written_down("dlrm-ddp", 2, "");
    if !testkit::has_time("other numbers of ranks and rules") {
        return;
    }
    written_down("dlrm-ddp", 1, "");
    written_down("dlrm-ddp", 1, "--set optimizer.dense.kind=lamb");
    written_down("dlrm-ddp", 1, "--set optimizer.dense.kind=sparse_adam");
    written_down("dlrm-ddp", 2, "--set optimizer.sparse.kind=rowwise_adagrad");
}

/// Trains a few steps, calibrates on their timelines, and predicts a step from its execution trace.
fn from_execution(ranks: u32) {
    let place = Place::new();
    let set = "--set model.rows_cap=100 --set training.batch_size=64";
    place.done(&format!(
        "train dlrm-ddp {set} --synthetic 640 --ranks {ranks} --threads 1 --run run \
         --trace traces --trace-steps 2..6"
    ));
    place.done("predict calibrate traces --output c.json");
    let predicted = place
        .done(
            "predict step --execution-trace traces/execution_trace --calibration c.json \
         --write-trace predicted --format json",
        )
        .json();
    assert_eq!(predicted.as_array().unwrap().len(), ranks as usize);
    let recorded = place.done("predict step traces --calibration c.json --format json").json();
    for (rank, row) in (0..ranks).zip(predicted.as_array().unwrap()) {
        let recorded_names = operators(&place.path(&format!("traces/kineto_rank{rank}.json")));
        let written = operators(&place.path(&format!("predicted/rank-{rank}.json")));
        assert_eq!(written, recorded_names, "rank {rank} of {ranks}");
        assert_eq!(row["unknown_pct"].as_f64(), Some(0.0), "{row}");
        // The difference between the two step times depends on what else the machine does during
        // the recording. Fixed recordings are compared in the tests of the crate `predict`.
        let from_timeline = &recorded[rank as usize];
        for row in [from_timeline, row] {
            assert!(row["step_ns"].as_f64().unwrap() > 0.0, "rank {rank} of {ranks}: {row}");
        }
    }
}

#[test]
fn an_execution_trace_of_the_trainer_is_predicted_as_its_timeline() {
    from_execution(1);
    from_execution(2);
}

#[test]
fn execution_traces_without_the_needed_fields_are_refused() {
    let place = place();
    let step = "predict step --calibration c.json --execution-trace";
    let node = r#"{"id": 3, "name": "aten::mm", "parent": 2, "tid": 1, "scope": 0}"#;
    let thread = r#"{"id": 2, "name": "[pytorch|profiler|execution_trace|thread]", "parent": 1}"#;
    let process = r#"{"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "parent": 1}"#;
    let text = |nodes: &str| format!(r#"{{"schema": "1.0.1", "nodes": [{nodes}]}}"#);
    let whole = text(&[node, thread, process].join(", "));
    fs::write(place.path("e.json"), &whole).unwrap();
    let rows = place.done(&format!("{step} e.json --format json")).json();
    assert!(rows[0]["step_ns"].as_i64().unwrap() > 0, "{rows}");
    fs::write(place.path("cut.json"), &whole[..whole.len() / 2]).unwrap();
    place.refused(&format!("{step} cut.json"), &["cut.json", "whole execution trace", "hint:"]);
    let ring = text(&[&node.replace(": 2,", ": 3,"), thread, process].join(", "));
    let ring = ring.replacen(r#""id": 3"#, r#""id": 4, "x": 3"#, 1);
    let ring = ring.replacen(
        '[',
        r#"[{"id": 3, "name": "aten::mm", "parent": 4, "tid": 1, "scope": 0}, "#,
        1,
    );
    fs::write(place.path("ring.json"), ring).unwrap();
    place.refused(&format!("{step} ring.json"), &["ring.json", "none inside itself", "node 3"]);
    let ran = place.run(&format!("{step} t.json"));
    assert!(ran.code != Some(0) && ran.stderr.contains("t.json"), "{}", ran.stderr);
    place.refused(&format!("{step} e.json --step 1"), &["e.json", "step 1", "got 1 step"]);
    place.refused(&format!("{step} e.json t.json"), &["cannot be used with"]);
    let unknown = whole.replace("aten::mm", "my::op");
    fs::write(place.path("u.json"), unknown).unwrap();
    let ran = place.done(&format!("{step} u.json --format json"));
    assert!(ran.stderr.contains("my::op (1)"), "{}", ran.stderr);
}

#[test]
fn device_time_of_execution_traces_is_evaluated() {
    if !testkit::has_time("device times of a suite of execution traces") {
        return;
    }
    let (Some(job), Some(execution)) = (
        fixture::path("traces/dlrm8/dlrm_kineto.tar.gz"),
        fixture::path("traces/dlrm8/dlrm_pytorch_et.tar.gz"),
    ) else {
        return;
    };
    let place = Place::new();
    let words = format!("predict evaluate {} --execution {}", job.display(), execution.display());
    let report = place.done(&format!("{words} --format json")).json();
    let rows = report["launched"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    assert!(rows.iter().all(|row| row["models_error_pct"].is_number()), "{report}");
    assert!(report["on_device_own_worst_pct"].as_f64().unwrap() <= 15.0, "{report}");
    assert!(report["on_device_shared_median_pct"].as_f64().unwrap() <= 25.0, "{report}");
    // Each rank has a row with its own host, and with nine of the ten shipped ones.
    assert_eq!(report["on_device"].as_array().unwrap().len(), 8 * 10);
    let ran = place.done(&words);
    assert!(ran.stdout.contains("without exchanges between ranks"), "{}", ran.stdout);
    place.refused(&format!("{words} --hardware h1000"), &["h1000"]);
}

#[test]
fn errors_over_a_recorded_suite_are_those_of_the_papers_tables() {
    let place = Place::new();
    let record = |path: &str| format!("{}/../../bench/record/{path}", env!("CARGO_MANIFEST_DIR"));
    let h100 = record("nvidia-h100-80gb-hbm3/partial-suite/collect/dlrm-ddp-p1");
    let cpu = record("amd-epyc-2cpu/suite/collect/resnet50-b4");
    let words = format!("predict evaluate --tables {h100}-bags-b2048 {h100}-batched-b2048 {cpu}");
    let report = place.done(&format!("{words} --svg e.svg --format json")).json();
    let jobs = report["jobs"].as_array().unwrap();
    let error = |at: usize, name: &str| {
        jobs[at][name].as_f64().unwrap_or_else(|| panic!("{name}: {report}")).abs()
    };
    assert_eq!(jobs.len(), 3, "{report}");
    for at in [0, 1] {
        // Measured errors of E2E: -22 and 4 % with all other jobs of the suite.
        assert!(error(at, "own_pct") < 35.0, "{report}");
        assert!(error(at, "kernel_only_pct") > 70.0 && error(at, "active_pct") < 15.0, "{report}");
        assert_eq!(jobs[at]["shared_from"], "1 other job", "{report}");
    }
    // On a CPU, backward operators are found by the sizes of their forward operators.
    assert!(error(2, "own_pct") < 20.0 && jobs[2]["active_pct"].is_null(), "{report}");
    assert_eq!((&jobs[2]["device"], &jobs[2]["is_recommender"]), (&"CPU".into(), &false.into()));
    let summary = &report["errors"][0];
    assert_eq!((&summary["device"], &summary["measure"]), (&"all".into(), &"active".into()));
    assert!(fs::read_to_string(place.path("e.svg")).unwrap().contains("dlrm-ddp-p1-bags-b2048"));
    let text = place.done(&words).stdout;
    for title in ["Table V", "Figure 9", "Figure 10"] {
        assert!(text.contains(title), "{text}");
    }
    fs::create_dir(place.path("empty")).unwrap();
    place.refused("predict evaluate --tables empty", &["*kineto*", "got none"]);
    place.refused("predict evaluate t.json --svg e.svg", &["--tables"]);
}

#[test]
fn execution_traces_are_priced_by_models_of_a_gpu() {
    let Some(execution) = fixture::path("traces/dlrm8/dlrm_pytorch_et.tar.gz") else { return };
    let place = Place::new();
    let step = format!("predict step --execution-trace {}", execution.display());
    let ns = |row: &Value, name: &str| row[name].as_i64().unwrap_or_else(|| panic!("{row}"));
    let sum_ns = |words: &str| {
        let ran = place.done(&format!("{step} {words} --draws 20 --format json"));
        let rows = ran.json();
        let ranks = rows.as_array().unwrap();
        assert_eq!(ranks.len(), 8);
        for row in ranks {
            // The job is bound by its host, so a sum of kernels predicts less than a tenth.
            assert_eq!(row["binds"], "host", "{row}");
            assert!(ns(row, "step_ns") >= ns(row, "host_ns").max(ns(row, "device_ns")), "{row}");
            assert!(10 * ns(row, "kernel_only_ns") < 2 * ns(row, "step_ns"), "{row}");
            assert!(row["unknown_pct"] == 0.0 && row["modeled_pct"].as_f64() > Some(50.0), "{row}");
        }
        let sum = |name: &str| ranks.iter().map(|row| ns(row, name)).sum::<i64>();
        (sum("device_ns"), sum("step_ns"), ran.stderr.clone())
    };
    let (v100, step_ns, said) = sum_ns("--hardware v100-sxm2x8");
    assert!(said.contains("host: overheads v100-dlrm of v100-sxm2, the nearest GPU"), "{said}");
    assert!((80_000_000..130_000_000).contains(&step_ns), "{step_ns}");
    assert!(v100 > sum_ns("--hardware h100x8").0);
    let (_, other_ns, said) = sum_ns("--hardware v100-sxm2x8 --overheads rtx2080ti-linear");
    assert!(said.contains("rtx2080ti-linear") && other_ns > step_ns, "{said}");
    place.refused(&format!("{step} --hardware h1000"), &["h1000", "similar names are "]);
    let unknown = format!("{step} --hardware v100 --overheads v100-dlrn");
    place.refused(&unknown, &["v100-dlrn", "similar names are v100-dlrm"]);
    place.refused(&format!("{step} --overheads v100-dlrm"), &["applies only with --hardware"]);
    let listed = place.done("predict step --overheads list --format csv").stdout;
    assert_eq!(listed.lines().count(), 11, "{listed}");
}

#[test]
fn kernels_of_models_and_the_host_of_a_calibration_are_one_step() {
    let Some(execution) = fixture::path("traces/linear/linear_et.json.gz") else { return };
    let Some(timed) = fixture::path("traces/linear/linear_kineto.json.gz") else { return };
    let place = Place::new();
    place.done(&format!("predict calibrate {} --output host.json", timed.display()));
    let step = format!("predict step --execution-trace {} --draws 20", execution.display());
    let row = |words: &str| place.done(&format!("{step} {words} --format json")).json()[0].clone();
    let (alone, both) = (
        row("--calibration host.json"),
        row("--calibration host.json --hardware h100 --write-trace predicted"),
    );
    let ratio = both["host_ns"].as_f64().unwrap() / alone["host_ns"].as_f64().unwrap();
    assert!((0.8..1.25).contains(&ratio), "{alone} {both}");
    assert!(both["device_ns"].as_f64() < alone["device_ns"].as_f64(), "{alone} {both}");
    assert!(place.path("predicted").exists());
}

#[test]
fn a_former_verb_is_refused_with_the_present_command_line() {
    let place = Place::new();
    for (former, now) in [
        ("model m.toml --calibration c.json", "step --model m.toml --calibration c.json"),
        ("compare said --measured made --top 3", "evaluate said --measured made --top 3"),
        ("findings traces --top 0", "next --by finding traces --top 0"),
        ("overheads t.json --svg o.svg", "calibrate --overheads t.json --svg o.svg"),
        ("hardware v100 --this-machine", "kernels --list-hardware v100 --this-machine"),
        ("train-kernels a.csv --output m", "learn --kernels a.csv --output m"),
    ] {
        place.refused(&format!("predict {former}"), &[&format!("run: rowmill predict {now}")]);
    }
}

#[test]
fn options_of_another_mode_are_refused() {
    let place = place();
    for (words, option) in [
        ("calibrate t.json --overheads --merge c.json", "--merge"),
        ("calibrate t.json --output d.json --top 3", "--overheads"),
        ("calibrate t.json", "--output"),
        ("evaluate t.json --measured t.json --kernels", "--kernels"),
        ("evaluate t.json --top 3", "--measured"),
        ("kernels --list-hardware --hardware v100", "--hardware"),
        ("kernels --hardware v100 --this-machine", "--list-hardware"),
        ("learn --kernels --output m", "RECORDED"),
        ("learn --shots a.csv --output m", "--kernels"),
        ("learn --kernels a.csv --seed 3 --output m", "--seed"),
        ("step --model dlrm-ddp", "--calibration"),
        ("step --model dlrm-ddp --calibration c.json --by op", "--hardware"),
        ("step --model dlrm-ddp --calibration c.json --launch-us 3", "--hardware"),
        ("step --model dlrm-ddp --hardware a100 --write-trace w", "--hardware"),
    ] {
        place.refused(&format!("predict {words}"), &[option]);
    }
}

#[test]
fn steps_that_cannot_be_written_down_are_refused() {
    let place = place();
    let model = "predict step --calibration c.json --model";
    place.refused(&format!("{model} dlrm-ddp --batch-size 0"), &["batch_size"]);
    place.refused(&format!("{model} dlrm-ddp --ranks 0"), &["--ranks"]);
    let auto = "--set model.tables.t0.rows=\"auto\"";
    place.refused(&format!("{model} dlrm-ddp {auto} --set model.rows_cap=5"), &["rows"]);
}
