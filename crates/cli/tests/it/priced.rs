//! Steps priced without a recording: `predict step --model` and `predict sweep`.

use std::fs;

use serde_json::Value;

use crate::fixture::Place;

fn rows(place: &Place, words: &str) -> Vec<Value> {
    let ran = place.done(&format!("{words} --format json"));
    let read: Value = serde_json::from_str(&ran.stdout).unwrap();
    match read {
        Value::Array(rows) => rows,
        row => vec![row],
    }
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

fn refused(place: &Place, words: &str, expected: &[&str]) {
    let ran = place.run(words);
    assert_eq!(ran.code, Some(2), "{words}: {}", ran.stderr);
    for text in expected {
        assert!(ran.stderr.contains(text), "{words}: {text:?} in {}", ran.stderr);
    }
}

#[test]
fn a_step_is_priced_from_its_configuration_alone() {
    let place = Place::new();
    let step = "predict step --model dlrm-mlperf --hardware a100-sxm4-80gbx8 --batch-size 16384";
    let row = &rows(&place, step)[0];
    assert!(number(row, "low_ns") < number(row, "step_ns"));
    assert!(number(row, "step_ns") < number(row, "high_ns"));
    let speed = 16_384.0 * 1e9 / number(row, "step_ns");
    assert!((number(row, "samples_per_s") / speed - 1.0).abs() < 1e-6);
    assert!(row["fits"].as_bool().unwrap() && number(row, "max_batch_size") > 16_384.0);
    let stages = rows(&place, &format!("{step} --by stage"));
    let sum: f64 = stages.iter().map(|stage| number(stage, "mean_ns")).sum();
    assert!((sum / number(row, "step_ns") - 1.0).abs() < 1e-6, "{stages:?}");
    let ranks = rows(&place, &format!("{step} --by rank"));
    assert_eq!(ranks.len(), 8);
    let peak = ranks.iter().map(|rank| number(rank, "total_bytes")).fold(0.0, f64::max);
    assert_eq!(peak, number(row, "peak_bytes"));
    // Of 33,762,577 rows of 32 values.
    let weights: f64 = ranks.iter().map(|rank| number(rank, "table_bytes")).sum();
    assert_eq!(weights, 33_762_577.0 * 32.0 * 4.0);
    let memory = rows(&place, &format!("{step} --by memory"));
    assert_eq!(memory.iter().map(|part| number(part, "bytes")).sum::<f64>(), peak);
    let ops = rows(&place, &format!("{step} --by op"));
    assert!(ops.iter().any(|op| op["op"] == "all_reduce"), "{ops:?}");
    // A host that needs a millisecond for each launch decides.
    let slow = &rows(&place, &format!("{step} --launch-us 1000"))[0];
    assert_eq!(number(slow, "step_ns"), 1e6 * number(slow, "launches"));
}

#[test]
fn what_does_not_fit_is_said_and_the_largest_batch_that_does() {
    let place = Place::new();
    let row = &rows(&place, "predict step --model dlrm-dcnv2 --hardware v100")[0];
    assert_eq!(row["fits"], false);
    assert!(row["max_batch_size"].is_null());
    let step = "predict step --model dlrm-dcnv2 --hardware h200x8";
    let row = &rows(&place, step)[0];
    let most = number(row, "max_batch_size") as usize;
    let fits = |batch: usize| {
        rows(&place, &format!("{step} --batch-size {batch}"))[0]["fits"].as_bool().unwrap()
    };
    assert!(fits(most) && !fits(most + 8), "{most}");
}

#[test]
fn a_sweep_covers_models_devices_and_batches() {
    let place = Place::new();
    let all = rows(&place, "predict sweep");
    assert_eq!(all.len(), 3 * 6 * 4);
    let best = all.iter().filter(|row| row["is_best"] == true);
    assert!(best.count() >= 3);
    place.done(
        "predict sweep --hardware t4,a100x2 --batch-size 64 --pooling 1,10 --format csv \
         --output s.csv",
    );
    let text = fs::read_to_string(place.path("s.csv")).unwrap();
    assert_eq!(text.lines().count(), 1 + 2 * 2 * 3, "{text}");
    assert!(text.starts_with("pooling,model,hardware,batch_size,ranks"), "{text}");
}

#[test]
fn steps_that_cannot_be_priced_are_refused() {
    let place = Place::new();
    let step = "predict step --model dlrm-ddp";
    refused(&place, &format!("{step} --hardware h1000"), &["h1000", "h100"]);
    refused(&place, &format!("{step} --hardware a100x2 --ranks 3"), &["2 ranks", "a plan of 3"]);
    refused(&place, &format!("{step} --hardware 400xa100x8"), &["at most 1024 ranks", "3200"]);
    refused(&place, &format!("{step} --hardware a100 --batch-size 0"), &["batch_size"]);
    refused(&place, step, &["--hardware"]);
    refused(&place, "predict step --hardware a100", &["--model"]);
    refused(&place, &format!("{step} --hardware a100 --launch-us=-1"), &["microseconds"]);
    refused(&place, "predict step --model none --hardware a100", &["none"]);
    refused(&place, "predict step", &["PATH"]);
    let recorded = "predict step t.json --calibration c.json";
    refused(&place, &format!("{recorded} --pooling 3"), &["expected --model", "a recording"]);
    refused(&place, &format!("{recorded} --by rank"), &["--model"]);
    fs::write(place.path("p.json"), r#"{"world_size": 1, "tiles": []}"#).unwrap();
    refused(&place, &format!("{step} --hardware a100 --plan p.json"), &["p.json", "tiles over"]);
}
