//! Ctrl-C: the step is finished, a checkpoint saved, the way to go on printed, 130 returned. Of a
//! file that was being written nothing stays.

use std::fmt::Write as _;
use std::fs;
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

#[test]
fn ctrl_c_leaves_nothing_of_a_file_that_was_being_written() {
    let place = Place::new();
    fs::write(place.path("rank_0.json"), long_trace(200_000)).unwrap();
    cut(&place, "trace merge rank_0.json --out begun.json.gz");
    cut(&place, "trace convert rank_0.json --out begun.pftrace");
    cut(&place, "data synth --rows 500000 begun.txt.gz");
}

/// Interrupts the command as soon as it writes; ten attempts, as it may be done before.
fn cut(place: &Place, words: &str) {
    let begun = || place.names("begun");
    for _ in 0..10 {
        let mut command = place.command(words);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while begun().is_empty() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if child.try_wait().unwrap().is_none() {
            interrupt(&child);
        }
        if child.wait().unwrap().code() == Some(130) {
            assert_eq!(begun(), [""; 0], "rowmill {words}");
            return;
        }
        begun().iter().for_each(|name| fs::remove_file(place.path(name)).unwrap());
    }
    panic!("rowmill {words} ended ten times before it could be interrupted");
}

/// A trace of one thread that runs one operator again and again.
fn long_trace(events: u32) -> String {
    let mut text = String::from(r#"{"schemaVersion":1,"traceEvents":["#);
    for event in 0..events {
        let comma = if event == 0 { "" } else { "," };
        write!(
            text,
            r#"{comma}{{"ph":"X","cat":"cpu_op","name":"aten::relu","pid":7,"tid":7,"ts":{event}0,"dur":5,"args":{{"External id":{event}}}}}"#
        )
        .unwrap();
    }
    text + "]}"
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}
