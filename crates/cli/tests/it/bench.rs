//! `rowmill bench …` as its users type it, on tiny sizes: the fields are there and are numbers.

use serde_json::Value;

use crate::fixture::Place;

/// Every field is a number above 0.
fn positive(report: &Value, fields: &[&str]) {
    for field in fields {
        let value = report[field].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{field}: {report}");
    }
}

/// Every field is a number.
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

/// What every report says of its samples.
fn has_quality(report: &Value) {
    positive(report, &LIMITS);
    positive(report, &["samples", "apparent_clock_ghz", "apparent_clock_ghz_best"]);
    finite(report, &["rejected_samples", "rejected_slow_clock", "rejected_foreign_cpu"]);
    assert!(report["trusted"].is_boolean(), "{report}");
}

const TRAIN: &str = "bench train --config job.toml --batch-size 512 --steps 2 --repeats 1";

#[test]
fn training_steps_are_measured_and_taken_apart() {
    let place = Place::new();
    let report = place.done(&format!("{TRAIN} --pooling 3 --threads 2 --format json")).last();
    has_quality(&report);
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
fn the_table_of_a_bench_says_what_counted() {
    let place = Place::new();
    let words = format!("{TRAIN} --optimizer adagrad --distribution zipf:1.05 --rows-cap 10");
    let text = place.done(&words).stdout;
    for part in ["samples/s", "% of the FMA peak", "GHz", "samples rejected", "embedding_backward"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_wrong_law_or_rule_is_refused() {
    let place = Place::new();
    for (words, expected) in [
        ("--distribution pareto", "expected uniform or zipf:EXPONENT"),
        ("--optimizer magic", "magic"),
        ("--pooling 0", "at least 1"),
        ("--foreign-cpu-max 2", "a share from 0 to 1"),
    ] {
        let ran = place.run(&format!("{TRAIN} {words}"));
        assert_eq!(ran.code, Some(2), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{words}: {}", ran.stderr);
    }
}
