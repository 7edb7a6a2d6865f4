//! Tests of `rowmill doctor links` with tiny sizes. All fields of the report must exist and be
//! numbers.

use serde_json::Value;

use crate::fixture::Place;
use crate::processes::OPEN_MPI;

/// Checks that every field is a number above 0.
fn positive(report: &Value, fields: &[&str]) {
    for field in fields {
        let value = report[field].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{field}: {report}");
    }
}

/// Checks that every field is a finite number.
fn finite(report: &Value, fields: &[&str]) {
    for field in fields {
        assert!(report[field].as_f64().is_some_and(f64::is_finite), "{field}: {report}");
    }
}

/// Checks the fields about the quality of samples, which every report has.
fn has_quality(report: &Value) {
    positive(report, &["samples", "apparent_clock_ghz", "apparent_clock_ghz_best"]);
    finite(report, &["rejected_samples", "rejected_slow_clock", "rejected_foreign_cpu"]);
    assert!(report["trusted"].is_boolean(), "{report}");
}

const COMM: &str = "doctor links --sizes 8 4K --repeats 1 --format json";

fn measures_collectives(report: &Value, worlds: &[u64]) {
    has_quality(report);
    positive(report, &["all_to_all_gb_per_s", "all_reduce_gb_per_s", "latency_us"]);
    let measured = report["worlds"].as_array().unwrap();
    assert!(measured.iter().map(|world| world["ranks"].as_u64().unwrap()).eq(worlds.to_vec()));
    for world in measured {
        positive(world, &["copy_gb_per_s"]);
        let points = world["points"].as_array().unwrap();
        // Five collectives are measured at two sizes, and the barrier once.
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
    // An all-reduce passes the simulated link, with a latency of 2 ms, twice.
    let words = format!("{COMM} --verbs all_reduce --latency 2000 --bandwidth 1");
    let report = place.done(&words).last();
    assert!(report["latency_us"].as_f64().unwrap() >= 4000.0, "{report}");
    assert_eq!(report["transport"], "in_process behind 2000 µs, 1 GB/s");
    for words in ["--sizes 10", "--sizes 1T", "--latency 5", "--verbs gather"] {
        assert_eq!(place.run(&format!("doctor links {words}")).code, Some(2), "{words}");
    }
    if OPEN_MPI.is_there() {
        let report = OPEN_MPI.done(&place, 2, COMM).last();
        assert_eq!(report["transport"], "mpi (Open MPI)");
        measures_collectives(&report, &[2]);
    }
}

#[test]
fn the_former_name_answers_with_the_new_command() {
    let place = Place::new();
    for (words, now) in [
        ("bench comm --ranks 2 4", "hint: run: rowmill doctor links --ranks 2 4\n"),
        ("bench train --config job.toml", "hint: run: rowmill-bench train --config job.toml\n"),
    ] {
        let ran = place.run(words);
        assert_eq!(ran.code, Some(2), "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains("error: rowmill bench: no such command"), "{}", ran.stderr);
        assert!(ran.stderr.contains(now), "{words}: {}", ran.stderr);
    }
}
