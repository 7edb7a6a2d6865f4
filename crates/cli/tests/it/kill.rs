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

/// A run whose caches have 32 of the 50 rows of a table.
const STORED: &str = "train job.toml --train train.csv --format json --set epochs=8 \
                      --set storage.folder=. --set storage.cache_mib=1 \
                      --set model.bottom=[8,8192] --set model.tables.a.dim=8192 \
                      --set model.tables.b.dim=8192";

#[test]
fn twenty_kills_end_like_an_uninterrupted_run() {
    let wanted = if testkit::has_time("fifteen of twenty kills") { 20 } else { 5 };
    check_kills(TRAIN, TRAIN, wanted);
}

#[test]
fn fifty_kills_with_tables_in_files_end_like_a_run_in_memory() {
    if !testkit::has_time("fifty kills with tables in files") {
        return;
    }
    let memory: Vec<&str> =
        STORED.split(" --set ").filter(|word| !word.starts_with("storage.")).collect();
    check_kills(&memory.join(" --set "), STORED, 50);
}

/// Kills runs that `train` begins until `wanted` runs were killed, and compares their results with
/// that of `whole`.
fn check_kills(whole: &str, train: &str, wanted: u32) {
    let place = Place::new();
    let started = Instant::now();
    let whole = place.done(&format!("{whole} --run whole")).last();
    let whole_ms = started.elapsed().as_millis() as u64;

    // If a run ends before it is killed, its result is compared and another run begins. The wanted
    // number of kills is thus always reached.
    let (mut kills, mut run) = (0, 0);
    let mut random = Random(1);
    while kills < wanted {
        let words = resumption(&place, train, run);
        let mut command = place.command(&words);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(whole_ms / 8 + 20)));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "run {run} failed after {kills} kills");
            check(&place, train, run, &whole);
            run += 1;
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    check(&place, train, run, &whole);
}

/// Returns the command that resumes a run. The run is resumed from its folder alone, unless it was
/// killed before `run.json` was written.
fn resumption(place: &Place, train: &str, run: u32) -> String {
    if place.path(&format!("run-{run}/run.json")).exists() {
        return format!("train --resume --run run-{run} --format json");
    }
    format!("{train} --run run-{run} --resume")
}

/// Resumes a run to its end, and checks that its result equals the uninterrupted run.
fn check(place: &Place, train: &str, run: u32, whole: &Value) {
    let resumed = place.done(&resumption(place, train, run)).last();
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
