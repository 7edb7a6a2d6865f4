//! Kills a run with `kill -9` at random moments, five times or, in the long run, twenty times. The
//! run must end with the same bytes as an uninterrupted run. Once it has written how it was
//! started, it is resumed from its folder alone.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::Random;

use crate::fixture::Place;
use crate::resume::tensors;

const TRAIN: &str = "train job.toml --train train.csv --format json --set epochs=80";

#[test]
fn twenty_kills_end_like_an_uninterrupted_run() {
    let place = Place::new();
    let started = Instant::now();
    let whole = place.done(&format!("{TRAIN} --run whole")).last();
    let whole_ms = started.elapsed().as_millis() as u64;

    // If a run ends before it is killed, its result is compared and another run begins. The wanted
    // number of kills is thus always reached.
    let (mut kills, mut run) = (0, 0);
    let mut random = Random(1);
    let wanted = if testkit::has_time("fifteen of twenty kills") { 20 } else { 5 };
    while kills < wanted {
        let words = resumption(&place, run);
        let mut command = place.command(&words);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(whole_ms / 8 + 20)));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "run {run} failed after {kills} kills");
            check(&place, run, &whole);
            run += 1;
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    check(&place, run, &whole);
}

/// Returns the command that resumes a run. The run is resumed from its folder alone, unless it was
/// killed before `run.json` was written.
fn resumption(place: &Place, run: u32) -> String {
    if place.path(&format!("run-{run}/run.json")).exists() {
        return format!("train --resume --run run-{run} --format json");
    }
    format!("{TRAIN} --run run-{run} --resume")
}

/// Resumes a run to its end, and checks that its result equals the uninterrupted run.
fn check(place: &Place, run: u32, whole: &Value) {
    let resumed = place.done(&resumption(place, run)).last();
    same(whole, &resumed);
    let checkpoint = |last: &Value| place.path(last["checkpoint"].as_str().unwrap());
    let (whole, resumed) = (tensors(&checkpoint(whole)), tensors(&checkpoint(&resumed)));
    assert!(whole == resumed, "run {run}: other bytes than without a kill");
}

/// Compares the printed numbers, which have enough digits to distinguish all f64 values.
fn same(whole: &Value, resumed: &Value) {
    assert_eq!(resumed["step"], whole["step"]);
    assert_eq!(resumed["evaluation"], whole["evaluation"]);
    assert_eq!(resumed["loss"], whole["loss"]);
}
