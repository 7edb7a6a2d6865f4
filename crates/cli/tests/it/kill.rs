//! Twenty times `kill -9` at random moments: the run still ends where the uninterrupted one does.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixture::{Place, Random};

const KILLS: u32 = 20;
const TRAIN: &str = "train job.toml --train train.csv --format json --set epochs=80";

#[test]
fn twenty_kills_end_like_an_uninterrupted_run() {
    let place = Place::new();
    let started = Instant::now();
    let whole = place.done(&format!("{TRAIN} --run whole")).last();
    let whole_ms = started.elapsed().as_millis() as u64;

    // A run that ends before its kill is compared and another one begins: twenty kills in any case.
    let (mut kills, mut run) = (0, 0);
    let mut random = Random(1);
    while kills < KILLS {
        let words = format!("{TRAIN} --run run-{run} --resume");
        let mut command = place.command(&words);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(whole_ms / 8 + 20)));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "run {run} failed after {kills} kills");
            same(&whole, &place.done(&words).last());
            run += 1;
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    same(&whole, &place.done(&format!("{TRAIN} --run run-{run} --resume")).last());
}

/// Compares the printed numbers, which have as many digits as their bits need.
fn same(whole: &Value, resumed: &Value) {
    assert_eq!(resumed["step"], whole["step"]);
    assert_eq!(resumed["evaluation"], whole["evaluation"]);
    assert_eq!(resumed["loss"], whole["loss"]);
}
