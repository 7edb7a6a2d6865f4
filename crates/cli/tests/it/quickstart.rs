//! Tests of a short `rowmill quickstart`. A quickstart must succeed, and may replace its own folder
//! but no other folder.

use std::fs;

use crate::fixture::Place;

#[test]
fn quickstart_runs_twice_in_one_folder() {
    let place = Place::new();
    let ran = place.done("quickstart --seconds 2 --format json");
    let last = ran.last();
    let (auc, ceiling) = (last["auc"].as_f64().unwrap(), last["ceiling_auc"].as_f64().unwrap());
    assert!(0.75 < ceiling && ceiling < 0.85 && 0.6 < auc && auc < ceiling, "{last}");
    for path in ["checkpoint", "trace", "report", "curves", "text", "config"] {
        assert!(place.path(last[path].as_str().unwrap()).exists(), "{path}: {last}");
    }
    assert!(ran.stderr.contains("Next:"), "{}", ran.stderr);
    assert!(ran.stderr.contains(last["curves"].as_str().unwrap()), "{}", ran.stderr);
    // The change was predicted, with an interval, before it was measured.
    let change = &last["change"];
    let number = |key: &str| change[key].as_f64().unwrap_or_else(|| panic!("{key}: {last}"));
    assert_eq!(number("changed_batch_size"), 2.0 * number("batch_size"));
    assert!(number("low_ns") <= number("high_ns") && number("measured_ns") > 0.0, "{change}");
    let error = 100.0 * (number("predicted_ns") - number("measured_ns")) / number("measured_ns");
    assert!((error - number("error_pct")).abs() < 0.01, "{change}");
    assert!(ran.stderr.contains("predicted step of"), "{}", ran.stderr);
    let drift = 100.0 * (number("base_again_ns") / number("base_ns") - 1.0);
    let was_disturbed = change["was_disturbed"].as_bool().unwrap();
    assert_eq!(was_disturbed, drift.abs() > 10.0, "{change}");
    assert_eq!(ran.stderr.contains("the machine was disturbed"), was_disturbed, "{}", ran.stderr);
    let last_hint = ran.stderr.trim_end().lines().last().unwrap().trim_start().to_owned();
    assert!(last_hint.starts_with("rowmill init FILE..."), "{last_hint}");

    fs::write(place.path("rowmill-quickstart/mine.txt"), "kept").unwrap();
    let partial = place.path("rowmill-quickstart/train.txt.123.partial");
    fs::write(&partial, "left by an interrupted quickstart").unwrap();
    place.done("quickstart --seconds 1");
    assert!(place.path("rowmill-quickstart/mine.txt").exists() && !partial.exists());
    place.done("eval rowmill-quickstart/run");
    place.done("report rowmill-quickstart/run");
}

#[test]
fn quickstart_refuses_a_folder_with_other_files() {
    let place = Place::new();
    let ran = place.run("quickstart --folder .");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("not a quickstart's"), "{}", ran.stderr);
    assert!(place.path("train.csv").exists());
}
