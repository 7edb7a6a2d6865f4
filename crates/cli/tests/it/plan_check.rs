//! `rowmill plan check`: predicted and measured stages of a run, a better plan, and refusals.

use std::fs;

use serde_json::Value;

use crate::fixture::Place;

const TRAIN: &str = "train dlrm-ddp --set rows_cap=1000 --set batch_size=256 --set steps=12 --set log_every=4 \
     --synthetic 4000";

#[test]
fn a_check_shows_each_stage_of_each_rank_and_writes_a_plan_that_trains() {
    let place = Place::new();
    // All tables lie on rank 0, so another plan is better.
    place.done(&format!("{TRAIN} --ranks 2 --run first"));
    let record = fs::read_to_string(place.path("first/run.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let mut tiles = record["tiles"].clone();
    tiles.as_array_mut().unwrap().iter_mut().for_each(|tile| tile["rank"] = 0.into());
    let plan = serde_json::json!({ "version": 1, "world_size": 2, "tiles": tiles });
    fs::write(place.path("uneven.json"), plan.to_string()).unwrap();
    place.done(&format!("{TRAIN} --plan uneven.json --run run"));
    let report = place.done("plan check run --format json").json();
    let rows = report["stages"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 8, "{rows:?}");
    let row = |rank: u64, stage: &str| {
        rows.iter().find(|row| row["rank"] == rank && row["stage"] == stage).unwrap()
    };
    let ns = |rank: u64, stage: &str| row(rank, stage)["measured_ns"].as_f64().unwrap();
    assert!(ns(0, "lookup") > ns(1, "lookup"), "{rows:?}");
    assert!(ns(0, "step") > ns(0, "dense") && ns(1, "dense") > 0.0, "{rows:?}");
    assert!(row(0, "embedding_update")["ratio"].as_f64().unwrap() > 0.0, "{rows:?}");
    let checked = place.run("plan check run --output better.json");
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.stderr.contains("time, without waits: lookup "), "{}", checked.stderr);
    for one in report["differences"].as_array().unwrap() {
        let ns = |key: &str| one[key].as_f64().unwrap();
        let step_ns = report["measured_step_ns"].as_f64().unwrap();
        assert!((ns("measured_ns") - ns("predicted_ns")).abs() > 0.05 * step_ns, "{one}");
    }
    // Programs find the figures of the text, and the price of the run's plan is its measurement.
    let steps = |rank: u64| ns(rank, "step");
    let measured_ns = report["measured_step_ns"].as_f64().unwrap();
    assert!((measured_ns / (0.5 * (steps(0) + steps(1))) - 1.0).abs() < 1e-9, "{report}");
    assert!(report["unpriced_ns"].is_f64() && report["ratios"]["dense"].is_f64(), "{report}");
    assert_eq!(report["verdict"] == "better-plan", report["gain_pct"].is_f64(), "{report}");
    if place.path("better.json").exists() {
        place.done(&format!("{TRAIN} --plan better.json --run better"));
    }
}

#[test]
fn runs_that_cannot_be_checked_are_refused() {
    let place = Place::new();
    place.refused("plan check missing", &["missing: expected a run folder with metrics.jsonl"]);
    place.done(&format!("{TRAIN} --ranks 1 --run alone"));
    place.refused("plan check alone", &["expected a run of several ranks", "got 1 rank"]);
    place.done(&format!("{TRAIN} --ranks 2 --run run"));
    let metrics = fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let put = |text: &str| fs::write(place.path("run/metrics.jsonl"), text).unwrap();
    // An earlier version recorded no times of lookups.
    put(&metrics.replace("lookup_ms", "earlier_ms"));
    place.refused("plan check run", &["expected metrics.jsonl with the times of lookups"]);
    put(&fs::read_to_string(place.path("alone/metrics.jsonl")).unwrap());
    place.refused("plan check run", &["expected the times of the plan's 2 ranks, got those of 1"]);
    put(&metrics);
    let record = fs::read_to_string(place.path("run/run.json")).unwrap();
    let other = record.replacen("\"table\": 0", "\"table\": 77", 1);
    assert_ne!(record, other);
    fs::write(place.path("run/run.json"), other).unwrap();
    fs::remove_dir_all(place.path("run/checkpoints")).ok();
    place.refused("plan check run", &["got one of another model"]);
}
