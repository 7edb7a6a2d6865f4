//! `rowmill bench …` as its users type it, on tiny sizes: the fields are there and are numbers.

use serde_json::{Value, json};

use crate::fixture::{Place, STATS};
use crate::processes::OPEN_MPI;

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
    positive(report, &["samples", "apparent_clock_ghz", "apparent_clock_ghz_best"]);
    finite(report, &["rejected_samples", "rejected_slow_clock", "rejected_foreign_cpu"]);
    assert!(report["trusted"].is_boolean(), "{report}");
}

const TRAIN: &str = "bench train --config job.toml --batch-size 512 --steps 2 --repeats 1";

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
fn products_in_bf16_are_compared_with_their_own_peak() {
    let place = Place::new();
    let report = place.done(&format!("{TRAIN} --precision bf16 --format json")).last();
    assert_eq!(report["precision"], "bf16");
    positive(&report, &["samples_per_s", "gemm_pct_of_peak"]);
    let gemms = report["gemms"].as_array().unwrap();
    // The logit's products stay f32.
    for (n, precision) in [(8, "bf16"), (1, "f32")] {
        let row = gemms.iter().find(|row| row["product"] == "forward" && row["n"] == n).unwrap();
        assert_eq!(row["precision"], precision);
    }
    let words = "bench gemm --precision bf16 --shape 63x13x31 --calls 2 --repeats 1 --format json";
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
            "bench embedding --tables 3 --rows 500 --dim 12 --pooling 4 --batch-size 64 --calls 2 \
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
    let words = "bench gemm --shape 64x13x32,8x8x1 --calls 2 --repeats 1 --format json";
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
    let refused = place.run("bench gemm --shape 64x13");
    assert!(refused.code == Some(2) && refused.stderr.contains("expected MxKxN"), "{refused:?}");
}

#[test]
fn the_interaction_is_compared_with_its_roofline() {
    let place = Place::new();
    let words = "bench interaction --features 3 --dim 8 --batch-size 64 --calls 2 --repeats 1";
    let report = place.done(&format!("{words} --format json")).last();
    has_quality(&report);
    positive(&report, &LIMITS);
    for pass in ["forward", "backward"] {
        for figure in ["ms", "gflop_per_s", "gb_per_s", "pct_of_roofline"] {
            positive(&report, &[&format!("{pass}_{figure}")]);
        }
    }
}

const COMM: &str = "bench comm --sizes 8 4K --repeats 1 --format json";

fn measures_collectives(report: &Value, worlds: &[u64]) {
    has_quality(report);
    positive(report, &["all_to_all_gb_per_s", "all_reduce_gb_per_s", "latency_us"]);
    let measured = report["worlds"].as_array().unwrap();
    assert!(measured.iter().map(|world| world["ranks"].as_u64().unwrap()).eq(worlds.to_vec()));
    for world in measured {
        positive(world, &["copy_gb_per_s"]);
        let points = world["points"].as_array().unwrap();
        // Five verbs of two sizes, and the barrier.
        assert_eq!(points.len(), 11, "{world}");
        for point in points.iter().filter(|point| point["verb"] != "barrier") {
            positive(point, &["us", "algorithm_gb_per_s", "bus_gb_per_s", "bus_pct_of_copy"]);
        }
        let fits = world["fits"].as_array().unwrap();
        assert_eq!(fits.len(), 6, "{world}");
        fits.iter().for_each(|fit| finite(fit, &["alpha_us"]));
    }
}

#[test]
fn issue_28_collectives_are_compared_with_a_copy() {
    let place = Place::new();
    let report = place.done(&format!("{COMM} --ranks 2 3")).last();
    assert_eq!(report["transport"], "in_process");
    measures_collectives(&report, &[2, 3]);
    // A link of 2 ms is seen: an all-reduce passes it twice.
    let words = format!("{COMM} --verbs all_reduce --latency 2000 --bandwidth 1");
    let report = place.done(&words).last();
    assert!(report["latency_us"].as_f64().unwrap() >= 4000.0, "{report}");
    assert_eq!(report["transport"], "in_process behind 2000 µs, 1 GB/s");
    for words in ["--sizes 10", "--sizes 1T", "--latency 5", "--verbs gather"] {
        assert_eq!(place.run(&format!("bench comm {words}")).code, Some(2), "{words}");
    }
    if OPEN_MPI.is_there() {
        let report = OPEN_MPI.done(&place, 2, COMM).last();
        assert_eq!(report["transport"], "mpi (Open MPI)");
        measures_collectives(&report, &[2]);
    }
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let ran = Place::new().run("bench embedding --rows 1000000000000");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("of memory") && ran.stderr.contains("--rows"), "{}", ran.stderr);
}

#[test]
fn every_stage_of_the_data_is_timed_in_a_process_of_its_own() {
    let place = Place::new();
    let report = place.done("bench data --megabytes 1 --repeats 1 --format json").last();
    has_quality(&report);
    positive(&report, &["text_bytes", "rows"]);
    for stage in ["scan", "convert", "parquet"] {
        for figure in ["mb_per_s", "rows_per_s", "peak_bytes"] {
            positive(&report, &[&format!("{stage}_{figure}")]);
        }
    }
}
