//! Tests of `rowmill-bench` through its command line, with tiny sizes. The tests check that all
//! fields of a report exist and are numbers.

mod published;

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use testkit::{Folder, ProgramOutput};

/// Locality statistics in the format in which `dlrm_datasets` publishes them.
const STATS: &str = include_str!("../../../schema/src/distribution/reuse/example.txt");

const JOB: &str = r#"
[model]
name = "small"
dense_features = 2
bottom = [8, 4]
top = [8, 1]
interaction = { kind = "dot" }
loss = "bce_with_logits"
tables = [{ name = "a", rows = 50, dim = 4 }, { name = "b", rows = 20, dim = 4, pooling = "mean" }]

[optimizer]
sparse = { kind = "rowwise_adagrad", learning_rate = 0.1 }
dense = { kind = "adagrad", learning_rate = 0.05 }

[training]
batch_size = 32
epochs = 2
shuffle_rows = 500
log_every = 20
checkpoint_every = 25

[data]
format = "csv"
hold_out = 0.2
label = { column = "y" }
dense = [{ column = "u" }, { column = "v", transform = "standardise" }]
categorical = [{ column = "a", kind = "integer" }, { column = "b", separator = "|" }]
"#;

/// A temporary folder with the file `job.toml`, in which the tests run commands.
struct Place(Folder);

impl Place {
    fn new() -> Self {
        let folder = Folder::new();
        folder.write("job.toml", JOB);
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// Runs `rowmill-bench` with `words` as its arguments.
    fn run(&self, words: &str) -> ProgramOutput {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowmill-bench"));
        command.args(words.split_whitespace()).current_dir(self.0.root());
        ProgramOutput::collect(&mut command)
    }

    /// Runs `rowmill-bench` and checks that it exits with code 0.
    fn done(&self, words: &str) -> ProgramOutput {
        self.run(words).expect_code(0, words)
    }
}

/// Checks that every field of a report is a finite number above 0.
fn positive(report: &Value, fields: &[&str]) {
    for field in fields {
        let value = report[field].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{field}: {report}");
    }
}

/// Checks that every field of a report is a finite number.
fn finite(report: &Value, fields: &[&str]) {
    for field in fields {
        assert!(report[field].as_f64().is_some_and(f64::is_finite), "{field}: {report}");
    }
}

const LIMITS: [&str; 4] = [
    "fma_peak_gflop_per_s",
    "stream_limit_gb_per_s",
    "gather_limit_gb_per_s",
    "read_modify_write_limit_gb_per_s",
];

/// Checks the fields about samples that every report has.
fn has_quality(report: &Value) {
    positive(report, &["samples", "apparent_clock_ghz", "apparent_clock_ghz_best"]);
    finite(report, &["rejected_samples", "rejected_slow_clock", "rejected_foreign_cpu"]);
    assert!(report["trusted"].is_boolean(), "{report}");
}

const TRAIN: &str = "train --config job.toml --batch-size 512 --steps 2 --repeats 1";

#[test]
fn steps_that_diverge_are_not_timed() {
    let place = Place::new();
    let rate = "--set optimizer.dense.learning_rate=1e30";
    let ran = place.run(&format!("{TRAIN} {rate} --format json"));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("expected a finite number"), "{}", ran.stderr);
    assert!(ran.stderr.contains("lower the learning rates"), "{}", ran.stderr);
}

#[test]
fn every_overlap_is_measured_alone_and_with_all_others() {
    let place = Place::new();
    let words = "ablation --config job.toml --set batch_size=64 --sharding row --delay 1ms \
                 --bandwidth 100MB/s --rounds 2 --steps 3 --threads 2";
    let report = place.done(&format!("{words} --format json")).last();
    positive(&report, &["pipelined_over_serial"]);
    finite(&report, &["pipelined_over_serial_low", "pipelined_over_serial_high"]);
    let schedules = report["schedules"].as_array().unwrap();
    let names: Vec<_> = schedules.iter().map(|row| row["schedule"].as_str().unwrap()).collect();
    assert_eq!(names, ["serial", "input", "pooled", "gradient", "all_reduce", "pipelined"]);
    schedules.iter().for_each(|row| positive(row, &["step_ms", "device_ms", "host_ms"]));
    let exchanges = report["exchanges"].as_array().unwrap();
    for row in exchanges {
        positive(row, &["exchange_ms", "beside_ms"]);
        finite(row, &["hidden_alone_pct", "hidden_pipelined_pct"]);
        // The input distribution sends lengths, ids and scales one after the other.
        assert!(row["exchange_ms"].as_f64().unwrap() > 0.9, "{row}");
    }
    assert_eq!(exchanges.len(), 4);
    let table = place.done(words).stdout;
    assert!(table.contains("pipelined ÷ serial") && table.contains("hidden alone"), "{table}");
    for (words, problem) in [
        ("--delay 2", "expected a time"),
        ("--bandwidth 1GB", "expected bytes per second"),
        ("--ranks 1", "1 is not in 2..=64"),
    ] {
        let ran = place.run(&format!("ablation --config job.toml {words}"));
        assert!(ran.code == Some(2) && ran.stderr.contains(problem), "{}", ran.stderr);
    }
}

/// Every plan has a predicted and a measured step, and plans are ordered by the former.
#[test]
fn plans_are_predicted_and_measured() {
    let place = Place::new();
    let words = "plans --model many-small --batch-size 64 --plans 3 --rounds 2 --steps 2";
    let report = place.done(&format!("{words} --bandwidth 1GB/s --format json")).last();
    positive(&report["costs"], &["flop_ns", "byte_ns", "link_empty_ns", "link_megabyte_ns"]);
    let models = report["models"].as_array().unwrap();
    assert_eq!((models.len(), &models[0]["model"]), (1, &json!("many-small")));
    finite(&models[0], &["kendall_tau", "best_slower", "spread"]);
    let plans = models[0]["plans"].as_array().unwrap();
    assert_eq!(plans.len(), 3);
    plans.iter().for_each(|plan| positive(plan, &["predicted_ms", "measured_ms"]));
    let predicted = |plan: &Value| plan["predicted_ms"].as_f64().unwrap();
    assert!(plans.is_sorted_by(|a, b| predicted(a) < predicted(b)), "{plans:?}");
    let stages = models[0]["stages"].as_array().unwrap();
    assert_eq!((stages.len(), &stages[0]["stage"]), (7, &json!("input_distribution")));
    stages.iter().for_each(|stage| finite(stage, &["error_ms", "error_pct_of_step"]));
    let ran = place.run("plans --model other");
    assert!(ran.code == Some(2) && ran.stderr.contains("many-small"), "{}", ran.stderr);
}

#[test]
fn training_steps_are_measured_and_taken_apart() {
    let place = Place::new();
    let report = place.done(&format!("{TRAIN} --pooling 3 --threads 2 --format json")).last();
    has_quality(&report);
    positive(&report, &LIMITS);
    let figures =
        ["samples_per_s", "step_ms", "profiled_step_ms", "gemm_gflop_per_s", "gemm_pct_of_peak"];
    positive(&report, &figures);
    finite(&report, &["rest_pct_of_step", "between_ops_pct_of_step"]);
    let ops = report["ops"].as_array().unwrap();
    for name in ["gemm_forward", "embedding_forward", "embedding_backward", "dense_update"] {
        let row = ops.iter().find(|row| row["op"] == name).unwrap_or_else(|| panic!("{name}"));
        positive(row, &["calls", "ms", "pct_of_step", "gflop", "gb", "pct_of_roofline"]);
    }
    let gemms = report["gemms"].as_array().unwrap();
    let first = |row: &Value| row["product"] == "forward" && row["k"] == 2 && row["n"] == 8;
    let row = gemms.iter().find(|row| first(row)).unwrap_or_else(|| panic!("{report}"));
    assert_eq!(row["m"], 512);
    positive(row, &["ms", "gflop_per_s", "pct_of_peak"]);
    let steps = report["steps"].as_array().unwrap();
    assert!(steps.len() >= 2 && steps.iter().all(|step| step["accepted"].is_boolean()));
    assert_eq!(report["pooling"], 3);
}

#[test]
fn the_table_shows_which_samples_counted() {
    let place = Place::new();
    let words = format!("{TRAIN} --optimizer adagrad --distribution zipf:1.05 --rows-cap 10");
    let text = place.done(&words).stdout;
    for part in ["samples/s", "% of the FMA peak", "GHz", "samples rejected", "embedding_backward"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn products_in_bf16_are_compared_with_their_own_peak() {
    let place = Place::new();
    let report = place.done(&format!("{TRAIN} --precision bf16 --format json")).last();
    assert_eq!(report["precision"], "bf16");
    positive(&report, &["samples_per_s", "gemm_pct_of_peak"]);
    let gemms = report["gemms"].as_array().unwrap();
    // The products of the last layer, which computes the logit, are always in f32.
    for (n, precision) in [(8, "bf16"), (1, "f32")] {
        let row = gemms.iter().find(|row| row["product"] == "forward" && row["n"] == n).unwrap();
        assert_eq!(row["precision"], precision);
    }
    let words = "gemm --precision bf16 --shape 63x13x31 --calls 2 --repeats 1 --format json";
    let report = place.done(words).last();
    assert_eq!(report["precision"], "bf16");
    positive(&report["shapes"][0], &["forward_pct_of_peak", "backward_weight_pct_of_peak"]);
}

#[test]
fn ids_of_measured_reuse_are_looked_up() {
    let place = Place::new();
    std::fs::write(place.path("stats.txt"), STATS).unwrap();
    let words = format!("{TRAIN} --distribution reuse:stats.txt --rows-cap 10 --format json");
    let report = place.done(&words).last();
    assert_eq!(report["distribution"], json!({"kind": "reuse", "file": "stats.txt"}));
    let ran = place.run(&format!("{TRAIN} --distribution reuse:absent.txt"));
    assert!(ran.stderr.contains("absent.txt"), "{}", ran.stderr);
}

#[test]
fn a_wrong_law_or_rule_is_refused() {
    let place = Place::new();
    for (words, expected) in [
        ("--distribution pareto", "expected uniform, zipf:EXPONENT"),
        ("--optimizer magic", "magic"),
        ("--precision f16", "expected `f32` or `bf16`"),
        ("--pooling 0", "at least 1"),
        ("--foreign-cpu-max 2", "a share from 0 to 1"),
    ] {
        let ran = place.run(&format!("{TRAIN} {words}"));
        assert_eq!(ran.code, Some(2), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{words}: {}", ran.stderr);
    }
}

#[test]
fn lookups_are_compared_with_random_access() {
    let place = Place::new();
    let report = place
        .done(
            "embedding --tables 3 --rows 500 --dim 12 --pooling 4 --batch-size 64 --calls 2 \
             --repeats 1 --optimizer rowwise_adagrad --threads 2 --format json",
        )
        .last();
    has_quality(&report);
    positive(&report, &LIMITS);
    let figures = [
        "forward_ms",
        "forward_gb_per_s",
        "forward_rows_per_s",
        "forward_pct_of_gather_limit",
        "backward_ms",
        "backward_gb_per_s",
        "backward_rows_per_s",
        "backward_pct_of_read_modify_write_limit",
    ];
    positive(&report, &figures);
    finite(&report, &["per_table_overhead_ns", "per_table_overhead_backward_ns"]);
    assert_eq!(report["optimizer"], "rowwise_adagrad");
}

#[test]
fn products_are_compared_with_multiply_adds() {
    let place = Place::new();
    let words = "gemm --shape 64x13x32,8x8x1 --calls 2 --repeats 1 --format json";
    let report = place.done(words).last();
    has_quality(&report);
    positive(&report, &LIMITS);
    let shapes = report["shapes"].as_array().unwrap();
    assert_eq!(shapes.len(), 2);
    for product in ["forward", "backward_input", "backward_weight"] {
        for (shape, figure) in shapes.iter().zip(["gflop_per_s", "pct_of_peak"]) {
            positive(shape, &[&format!("{product}_{figure}")]);
        }
    }
    let refused = place.run("gemm --shape 64x13");
    assert!(refused.code == Some(2) && refused.stderr.contains("expected MxKxN"), "{refused:?}");
}

#[test]
fn the_interaction_is_compared_with_its_roofline() {
    let place = Place::new();
    let words = "interaction --features 3 --dim 8 --batch-size 64 --calls 2 --repeats 1";
    let report = place.done(&format!("{words} --format json")).last();
    has_quality(&report);
    positive(&report, &LIMITS);
    for pass in ["forward", "backward"] {
        for figure in ["ms", "gflop_per_s", "gb_per_s", "pct_of_roofline"] {
            positive(&report, &[&format!("{pass}_{figure}")]);
        }
    }
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let ran = Place::new().run("embedding --rows 1000000000000");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("of memory") && ran.stderr.contains("--rows"), "{}", ran.stderr);
}

#[test]
fn every_stage_of_the_data_is_timed_in_a_process_of_its_own() {
    let place = Place::new();
    let report = place.done("data --megabytes 1 --repeats 1 --format json").last();
    has_quality(&report);
    positive(&report, &["text_bytes", "rows"]);
    for stage in ["scan", "convert", "parquet"] {
        for figure in ["mb_per_s", "rows_per_s", "peak_bytes"] {
            positive(&report, &[&format!("{stage}_{figure}")]);
        }
    }
}

#[test]
fn issue_19_recorded_and_unrecorded_steps_are_timed_in_turns() {
    let place = Place::new();
    let report = place
        .done(
            "train --config dlrm-ddp --rows-cap 100 --batch-size 64 --steps 2 --repeats 1 \
             --trace traces --format json",
        )
        .last();
    let number = |key: &str| report[key].as_f64().unwrap();
    let (step, recorded) = (number("step_ms"), number("recorded_step_ms"));
    assert!(step > 0.0 && recorded > 0.0);
    assert!((number("recording_pct") - 100.0 * (recorded - step) / step).abs() < 1e-6);
    assert!(place.path("traces").read_dir().unwrap().next().is_some());
}

#[test]
fn reading_a_trace_reports_speed_and_memory() {
    let ran = Place::new().done("trace --megabytes 2 --repeats 1 --format json --threads 2");
    let report = ran.last();
    for field in ["mb_per_s_1_thread", "mb_per_s_2_threads", "peak_memory_ratio", "gz_share"] {
        assert!(report[field].as_f64().is_some_and(|value| value > 0.0), "{field}: {report}");
    }
    assert!(report["text_bytes"].as_u64().unwrap() >= 2_000_000, "{report}");
}

#[test]
fn the_help_of_every_command_shows_examples() {
    let place = Place::new();
    for command in [
        "train",
        "ablation",
        "plans",
        "embedding",
        "gemm",
        "interaction",
        "data",
        "trace",
        "predict",
        "published",
    ] {
        let ran = place.done(&format!("{command} --help"));
        assert!(ran.stdout.contains("Example"), "{command}: {}", ran.stdout);
    }
}

#[test]
fn an_absent_device_is_refused() {
    let ran = Place::new().run("train --config job.toml --device cuda:99");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: --device cuda:99: "), "{}", ran.stderr);
}
