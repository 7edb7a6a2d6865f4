//! Checks that outputs that cannot be written are found before the work begins. A failed command
//! must leave no empty folders. After an interrupted preparation, the user must be told what is
//! kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testkit::ProgramOutput;

use crate::fixture::{Place, interrupt};

/// Commands that write the file `OUT`. The inputs of these commands do not exist, so an error about
/// `OUT` proves that no input was read.
const FILES: [&str; 14] = [
    "score nowhere train.csv --output OUT",
    "data synth OUT --rows 1000",
    "checkpoint export nowhere --to torch OUT",
    "checkpoint export nowhere --to torch good --optimizer OUT",
    "trace nowhere.json --output OUT",
    "trace kernels nowhere.json --format csv --output OUT",
    "trace findings nowhere.json --output OUT",
    "trace diff nowhere.json other.json --output OUT",
    "trace doctor nowhere.json --output OUT",
    "trace merge nowhere.json --out OUT.json.gz",
    "trace convert nowhere.json --out OUT --to perfetto",
    "trace report nowhere.json -o OUT",
    "trace report nowhere.json --output OUT",
    "trace execution-trace nowhere.json --output OUT",
];

/// Commands that write to the folder `OUT`.
const FOLDERS: [&str; 8] = [
    "train job.toml --train nowhere.csv --run OUT",
    "train job.toml --train nowhere.csv --run run --trace OUT",
    "data convert nowhere.csv --config job.toml --out OUT",
    "checkpoint import nowhere --from torch --config job.toml --run OUT",
    "trace convert nowhere.json --out OUT --to parquet",
    "trace convert nowhere.json --out OUT.parquet",
    "capture --all --output OUT",
    "quickstart --folder OUT",
];

/// Runs a command that must fail because of its output, and checks that no file changes.
fn check(place: &Place, words: &str, out: &str, expected: &str) {
    let before = tree(&place.path(""));
    let words = words.replace("OUT", out);
    let started = Instant::now();
    let ran = place.run(&words);
    assert_eq!(ran.code, Some(1), "rowmill {words}\n{}", ran.stderr);
    assert!(ran.stderr.contains(expected), "rowmill {words}: no {expected:?} in\n{}", ran.stderr);
    assert!(ran.stderr.contains("hint: "), "rowmill {words}\n{}", ran.stderr);
    assert!(!ran.stderr.contains("os error"), "rowmill {words}\n{}", ran.stderr);
    assert!(started.elapsed() < Duration::from_secs(20), "rowmill {words}");
    assert_eq!(tree(&place.path("")), before, "rowmill {words}");
}

/// Returns the paths of all files and folders below a folder.
fn tree(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            paths.extend(tree(&path));
        }
        paths.push(path);
    }
    paths.sort();
    paths
}

#[test]
fn an_unwritable_output_is_refused_before_the_work() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).unwrap();
    for words in FILES {
        check(&place, words, "missing/out", "because missing does not exist");
        check(&place, words, "job.toml/out", "because job.toml is a file, not a folder");
        if !words.contains("OUT.") {
            check(&place, words, "folder", "folder: expected the name of a file to write");
        }
    }
    for words in FOLDERS {
        check(&place, words, "job.toml/out", "because job.toml is a file, not a folder");
        if !words.contains("OUT.")
            && !words.contains("capture")
            && !words.contains("convert nowhere.csv")
        {
            check(&place, words, "job.toml", "because job.toml is a file, not a folder");
        }
    }
}

#[cfg(unix)]
#[test]
fn an_unwritable_folder_is_refused_before_the_work() {
    use std::os::unix::fs::PermissionsExt;

    if testkit::is_root() {
        testkit::skip("a folder without permission", "a user other than root");
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("closed")).unwrap();
    fs::set_permissions(place.path("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    for words in FILES.iter().chain(&FOLDERS) {
        check(&place, words, "closed/out", "Permission denied");
    }
}

#[cfg(unix)]
#[test]
fn standard_output_as_a_file_is_written_in_place() {
    let place = Place::new();
    place.done("train job.toml --train train.csv --run run");
    let scores = place.done("score run train.csv").stdout;
    let into = place.done("score run train.csv --output /dev/stdout").stdout;
    assert!(into.starts_with(&scores), "{into}");
    assert!(fs::symlink_metadata("/dev/stdout").unwrap().is_symlink());
}

#[cfg(unix)]
#[test]
fn a_pipe_as_output_is_refused_where_a_file_would_replace_it() {
    use std::os::unix::fs::FileTypeExt;

    let place = Place::new();
    for name in ["pipe", "pipe.json.gz"] {
        assert!(Command::new("mkfifo").arg(place.path(name)).status().unwrap().success());
    }
    for words in [
        "data synth pipe --rows 1000",
        "checkpoint export nowhere --to torch pipe",
        "checkpoint export nowhere --to torch good --optimizer pipe",
        "trace merge nowhere.json --out pipe.json.gz",
        "trace convert nowhere.json --out pipe --to perfetto",
    ] {
        check(&place, words, "", "expected the name of a regular file to write, got a pipe");
    }
    assert!(fs::metadata(place.path("pipe")).unwrap().file_type().is_fifo());
}

#[test]
fn failed_commands_leave_no_empty_folders() {
    let place = Place::new();
    place.done("data convert train.csv --config job.toml --out prepared");
    fs::write(place.path("other.csv"), "q,r\n1,2\n").unwrap();
    fs::write(place.path("empty.csv"), "").unwrap();
    fs::write(place.path("broken.json"), "{\"traceEvents\": [").unwrap();
    fs::write(place.path("weights"), "no tensors").unwrap();
    for words in [
        "train job.toml --train other.csv --run new/run --trace new/trace",
        "train job.toml --train empty.csv --run new/run",
        "train job.toml --train prepared --run new/run --trace new/t --trace-steps 900000..900001",
        "train job.toml --train prepared --evaluation other.csv --run new/run",
        "train job.toml --train train.csv --run new/run --plan broken.json",
        "train job.toml --train prepared --run new/run --resume-from nowhere",
        "data convert other.csv --config job.toml --out new/deep/prepared",
        "data convert train.csv other.csv --config job.toml --out new/deep/prepared",
        "checkpoint import weights --from torch --config job.toml --run new/run",
        "checkpoint import weights --from torch --config job.toml --run new/run --data other.csv",
        "trace convert broken.json other.csv --out new/tables --to parquet",
        "capture --all --timeout 100ms --socket-dir . --output new/capture",
        "capture --all --timeout 100ms --socket-dir nowhere --output new/capture",
    ] {
        let before = tree(&place.path(""));
        let ran = place.run(words);
        assert_ne!(ran.code, Some(0), "rowmill {words}");
        assert!(!ran.stderr.contains("os error"), "rowmill {words}\n{}", ran.stderr);
        assert_eq!(tree(&place.path("")), before, "rowmill {words}\n{}", ran.stderr);
    }
    // Parts that were finished must be kept, but no empty folders may remain beside them.
    let far = "--run kept --trace kept-trace --trace-steps 900000..900001";
    assert_eq!(place.run(&format!("train job.toml --train train.csv {far}")).code, Some(1));
    assert!(place.path("kept/data").exists() && !place.path("kept-trace").exists());
    assert!(!place.path("kept/checkpoints").exists());
}

/// Starts a command, and interrupts it as soon as `is_time` returns true. Ten attempts are made,
/// because the command may end before it is interrupted.
fn interrupted(place: &Place, words: &str, is_time: impl Fn() -> bool) -> ProgramOutput {
    for _ in 0..10 {
        let mut command = place.command(words);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        while !is_time() && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        if child.try_wait().unwrap().is_none() {
            interrupt(&child);
        }
        let ran = ProgramOutput::from(child.wait_with_output().unwrap());
        if ran.code == Some(130) {
            return ran;
        }
        assert_eq!(ran.code, Some(0), "rowmill {words}\n{}", ran.stderr);
        for made in ["prepared", "run"] {
            let _ = fs::remove_dir_all(place.path(made));
        }
    }
    panic!("rowmill {words} ended ten times before it could be interrupted");
}

#[test]
fn ctrl_c_in_preparation_says_what_is_kept_and_how_to_resume() {
    let place = Place::new();
    place.done("data synth rows.txt --rows 1300000");
    let convert = "data convert rows.txt --config dlrm-criteo-kaggle --out prepared";
    let state = place.path("prepared.partial/progress.json");
    // A part consists of 64 row groups of 16,384 rows.
    let has_part = || fs::read_to_string(&state).is_ok_and(|text| text.contains("\"parts\":[{"));
    let ran = interrupted(&place, convert, has_part);
    assert!(ran.stderr.contains("prepared rows are kept in prepared.partial"), "{}", ran.stderr);
    assert!(ran.stderr.contains("the same command goes on from there"), "{}", ran.stderr);
    let ran = place.done(convert);
    assert!(ran.stderr.contains("by an earlier, interrupted preparation"), "{}", ran.stderr);

    // Standard input cannot be read again, so nothing can be kept for a resume.
    fs::remove_dir_all(place.path("prepared")).unwrap();
    let mut command =
        place.command("data convert - --config dlrm-criteo-kaggle --out new/prepared");
    let child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !place.path("new/prepared.partial").exists() {
        thread::sleep(Duration::from_millis(1));
    }
    interrupt(&child);
    let mut child = child;
    let stdin = child.stdin.take();
    let ran = ProgramOutput::from(child.wait_with_output().unwrap());
    drop(stdin);
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(ran.stderr.contains("nothing was prepared that could be kept"), "{}", ran.stderr);
    assert!(!place.path("new").exists());
}

#[test]
fn ctrl_c_while_generating_removes_partial_files() {
    let place = Place::new();
    let train = "train job.toml --synthetic 3000000 --run run";
    // The folder exists before the preparation begins, so the test waits for a file in the folder.
    let has_begun =
        || fs::read_dir(place.path("run/data")).is_ok_and(|mut data| data.next().is_some());
    let ran = interrupted(&place, train, has_begun);
    assert!(ran.stderr.contains("no result of it is kept"), "{}", ran.stderr);
    assert!(!place.path("run").exists(), "{:?}", tree(&place.path("run")));
    let ran = interrupted(&place, "quickstart --folder run", || place.path("run").exists());
    assert!(!place.path("run").exists(), "{:?}\n{}", tree(&place.path("run")), ran.stderr);
}
