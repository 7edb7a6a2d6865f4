//! Ctrl-C: the step is finished, a checkpoint saved, the way to go on printed, 130 returned.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::{Place, Ran};

/// Long enough that the signal arrives in the middle.
const TRAIN: &str = "train job.toml --train train.csv --format json --set epochs=400 \
                     --set checkpoint_every=5000";

#[test]
fn ctrl_c_saves_and_resuming_ends_like_the_uninterrupted_run() {
    let place = Place::new();
    let whole = place.done(&format!("{TRAIN} --run whole")).last();

    let mut command = place.command(&format!("{TRAIN} --run cut"));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(400));
    interrupt(&child);
    let ran = Ran::of(&child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}\n{}", ran.stdout, ran.stderr);
    let last = ran.last();
    assert_eq!(last["interrupted"], true, "{last}");
    assert!(last["step"].as_u64() < whole["step"].as_u64(), "{last}");
    assert!(ran.stderr.contains("--resume"), "{}", ran.stderr);

    let resumed = place.done(&format!("{TRAIN} --run cut --resume")).last();
    assert_eq!(resumed["step"], whole["step"]);
    assert_eq!(resumed["loss"], whole["loss"]);
    assert_eq!(resumed["evaluation"], whole["evaluation"]);
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    let place = Place::new();
    let mut command = place.command(&format!("{TRAIN} --run cut"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(400));
    interrupt(&child);
    interrupt(&child);
    let asked = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(5));
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}
