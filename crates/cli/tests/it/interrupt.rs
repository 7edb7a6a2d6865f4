//! Tests of Ctrl-C. The current step is finished, a checkpoint is saved, the command to resume is
//! printed, and the exit code is 130. No part of a file that was being written may remain.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use testkit::ProgramOutput;

use crate::fixture::{Place, interrupt};

/// A run that is long enough for the signal to arrive in the middle of it.
const TRAIN: &str = "train job.toml --train train.csv --format json --set epochs=400 \
                     --set checkpoint_every=5000";

#[test]
fn ctrl_c_saves_and_resuming_ends_like_the_uninterrupted_run() {
    let place = Place::new();
    let whole = place.done(&format!("{TRAIN} --run whole")).last();

    let mut command = place.command(&format!("{TRAIN} --run cut"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    await_steps(&place, &mut child);
    interrupt(&child);
    let ran = ProgramOutput::from(child.wait_with_output().unwrap());
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
fn learning_that_is_interrupted_before_it_has_rows_ends_with_130() {
    let place = Place::new();
    let mut command = place.command("predict learn --output cpu --threads 1");
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !place.path("cpu").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The handler of signals is installed before the folder is created.
    interrupt(&child);
    let ran = ProgramOutput::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
}

/// Waits until the metrics of the first steps of the run `cut` are written.
fn await_steps(place: &Place, child: &mut Child) {
    let metrics = place.path("cut/metrics.jsonl");
    while !fs::metadata(&metrics).is_ok_and(|found| found.len() > 0) {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it began to train");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    let place = Place::new();
    // After the first Ctrl-C, replica groups train on to their next average, which is far away.
    let groups = "--ranks 2 --groups 2 --sync-every 5000 --set log_every=1";
    let mut command = place.command(&format!("{TRAIN} {groups} --run cut"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    await_steps(&place, &mut child);
    interrupt(&child);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("press Ctrl-C again to stop at once")));
    interrupt(&child);
    let asked = Instant::now();
    assert_eq!(lines.last().as_deref(), Some("stopped at once"));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(5));
}

#[test]
fn ctrl_c_removes_partial_files() {
    let place = Place::new();
    let traced = |size| fs::write(place.path("rank_0.json"), long_trace(size)).unwrap();
    cut(&place, |size| {
        traced(size);
        "trace merge rank_0.json --out begun.json.gz".to_owned()
    });
    cut(&place, |size| {
        traced(size);
        "trace convert rank_0.json --out begun.pftrace".to_owned()
    });
    cut(&place, |size| format!("data synth --rows {size} begun.txt.gz"));
}

#[test]
fn ctrl_c_during_init_leaves_no_configuration_and_the_old_one_as_it_was() {
    let place = Place::new();
    fs::write(place.path("job.toml"), "# mine\n").unwrap();
    let fifo = place.path("rows.csv");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    if !made.is_ok_and(|status| status.success()) {
        testkit::skip("an interrupted init", "mkfifo in PATH");
        return;
    }
    for output in ["new.toml", "job.toml --force"] {
        let mut command = place.command(&format!("init rows.csv --output {output}"));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // The command waits for rows from the pipe, to which nothing is written.
        std::thread::sleep(Duration::from_millis(200));
        interrupt(&child);
        assert_ne!(child.wait().unwrap().code(), Some(0), "{output}");
        assert_eq!(fs::read_to_string(place.path("job.toml")).unwrap(), "# mine\n");
        assert_eq!(place.names("new"), [""; 0], "{output}");
    }
}

/// Interrupts the command as soon as it writes its file. If the file is complete before the signal
/// arrives, the command is run again with twice the `size`.
fn cut(place: &Place, words: impl Fn(u32) -> String) {
    let begun = || place.names("begun");
    for attempt in 0..6 {
        let words = words(200_000 << attempt);
        let mut command = place.command(&words);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while begun().is_empty() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if child.try_wait().unwrap().is_none() {
            interrupt(&child);
        }
        let code = child.wait().unwrap().code();
        let left = begun();
        let is_whole = left.iter().any(|name| name.matches('.').count() <= 2);
        if code == Some(130) && !is_whole {
            assert_eq!(left, [""; 0], "rowmill {words}");
            return;
        }
        left.iter().for_each(|name| fs::remove_file(place.path(name)).unwrap());
    }
    panic!("the command was done six times before it could be interrupted");
}

/// Formats a trace of one thread that runs the same operator `events` times.
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
