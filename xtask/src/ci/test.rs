//! Runs the tests, shows their output, and counts the passed, failed and skipped tests.
//!
//! A test that lacks its data or device calls `testkit::skip`, which prints a line that begins with
//! `SKIPPED`, and returns. The test runner hides the output of passing tests by default. So
//! `--show-output` is set, and these lines are counted here.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::ci::cargo::{PROFILE, cargo};
use crate::ci::tool;
use crate::command;
use crate::error::Error;

/// Number of test binaries that run at the same time. A single one leaves cores idle, because many
/// tests wait for a timer or for a program that they started.
const BINARIES_AT_A_TIME: usize = 2;

/// Results of one or more test binaries, summed over their lines `test result:`.
#[derive(Debug, Default, PartialEq, Eq)]
struct TestCount {
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
    /// Command line and exit status of each test binary that failed.
    problems: Vec<String>,
}

/// Runs all unit and integration tests. The further lines of the returned note list the needs of
/// skipped tests.
pub fn run() -> Result<String, Error> {
    let missing = [tool::OPEN_MPI, tool::CHROMIUM].into_iter().filter_map(tool::install_program);
    let missing: Vec<String> = missing.collect();
    let TestCount { passed, failed, skipped, problems } =
        run_binaries(build()?, |text| println!("{text}"))?;
    if !problems.is_empty() {
        let what = format!("{failed} of {} tests failed: {}", passed + failed, problems.join(", "));
        return Err(Error::Check { what });
    }
    let mut note = vec![format!("{passed} passed, {failed} failed, {} skipped", skipped.len())];
    note.extend(sum_needs(&skipped));
    note.extend(missing);
    Ok(note.join("\n"))
}

/// Runs the examples in doc comments.
pub fn run_documentation() -> Result<String, Error> {
    let mut cargo = cargo(&["test", "--profile", PROFILE, "--workspace", "--doc"]);
    let count = count(&mut cargo, &mut std::io::stdout())?;
    match count.problems.first() {
        Some(problem) => Err(Error::Check { what: problem.clone() }),
        None => Ok(format!("{} passed", count.passed)),
    }
}

/// Builds the unit and integration tests. Returns the commands that run them.
fn build() -> Result<Vec<Command>, Error> {
    let mut cargo = cargo(&["test", "--profile", PROFILE, "--workspace", "--tests", "--no-run"]);
    let messages = command::capture_output(cargo.arg("--message-format=json-render-diagnostics"))?;
    let commands = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["profile"]["test"].as_bool()?;
        let program = message["executable"].as_str().filter(|_| is_test)?;
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        Some((folder, program.to_owned()))
    });
    let mut commands: Vec<(PathBuf, String)> = commands.collect();
    commands.sort();
    let command = |(folder, program): (PathBuf, String)| {
        // The binary is started as `cargo test` does it. `--show-output` is needed, because the
        // output of passing tests has the lines of skipped ones. `env` restores Ctrl-C, which a
        // shell ignores for programs in the background: tests of interrupts would wait for ever.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", &program, "--show-output"]);
        command.env("CARGO_MANIFEST_DIR", &folder).current_dir(folder);
        command
    };
    Ok(commands.into_iter().map(command).collect())
}

/// Runs several test binaries at a time, and shows the output of each when it has ended.
fn run_binaries(commands: Vec<Command>, show: impl Fn(String) + Sync) -> Result<TestCount, Error> {
    let waiting = Mutex::new(commands.into_iter());
    let work = || {
        let mut counts = Vec::new();
        // The lock is held only while the next command is taken, not while the test binary runs.
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(mut command) = next() {
            let (began, mut shown) = (Instant::now(), Vec::new());
            counts.push(count(&mut command, &mut shown)?);
            let took = began.elapsed().as_secs_f64();
            let text = String::from_utf8_lossy(&shown);
            let line = command::command_line(&command);
            show(format!("\n{line} took {took:.1} s\n{}", text.trim()));
        }
        Ok(counts)
    };
    let counts: Result<Vec<_>, Error> = thread::scope(|scope| {
        let workers: Vec<_> = (0..BINARIES_AT_A_TIME).map(|_| scope.spawn(work)).collect();
        let stopped = |_| Err(Error::Check { what: "a thread of `ci` panicked".to_owned() });
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(stopped)).collect()
    });
    let mut total = TestCount::default();
    for count in counts?.into_iter().flatten() {
        total.passed += count.passed;
        total.failed += count.failed;
        total.skipped.extend(count.skipped);
        total.problems.extend(count.problems);
    }
    Ok(total)
}

/// Runs a test command and counts its results. The output is shown without the sections of passing
/// tests.
fn count(command: &mut Command, shown: &mut impl Write) -> Result<TestCount, Error> {
    let line = command::command_line(command);
    eprintln!("$ {line}");
    let start = |source| Error::Start { command: line.clone(), source };
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(start)?;
    let mut count = TestCount::default();
    if let Some(stdout) = child.stdout.take() {
        let mut is_passing = false;
        for text in BufReader::new(stdout).lines().map_while(Result::ok) {
            count.read(&text);
            match text.trim_end() {
                // With `--show-output`, the output of passing tests follows the line `successes:`.
                "successes:" => is_passing = true,
                "failures:" => is_passing = false,
                other if other.starts_with("test result:") => is_passing = false,
                _ => {}
            }
            if !is_passing {
                // If standard output is closed, the tests still decide about success, so the error
                // is ignored.
                let _ = writeln!(shown, "{text}");
            }
        }
    }
    let status = child.wait().map_err(|source| Error::Start { command: line.clone(), source })?;
    if !status.success() {
        count.problems.push(format!("`{line}`: {status}, {} tests failed", count.failed));
    }
    Ok(count)
}

/// Groups the lines of skipped tests, `SKIPPED what: needs need`, by what they need, and counts
/// them.
fn sum_needs(skipped: &[String]) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in skipped {
        let need = line.split_once(": needs ").map_or(line.as_str(), |(_, need)| need);
        *counts.entry(need).or_default() += 1;
    }
    counts.iter().map(|(need, count)| format!("SKIPPED {count}: needs {need}")).collect()
}

impl TestCount {
    fn read(&mut self, line: &str) {
        if line.starts_with("SKIPPED") {
            self.skipped.push(line.to_owned());
        }
        let Some(summary) = line.strip_prefix("test result:") else { return };
        let words: Vec<&str> = summary.split_whitespace().collect();
        for pair in words.windows(2) {
            let number = pair[0].parse().unwrap_or(0);
            match pair[1] {
                "passed;" => self.passed += number,
                "failed;" => self.failed += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TestCount, count, run_binaries, sum_needs};

    #[test]
    fn skipped_tests_are_counted_by_need() {
        let lines = [
            "SKIPPED a.json: needs the fixtures",
            "SKIPPED an attack: needs root",
            "SKIPPED b.json: needs the fixtures",
        ];
        let expected = ["SKIPPED 1: needs root", "SKIPPED 2: needs the fixtures"];
        assert_eq!(sum_needs(&lines.map(str::to_owned)), expected);
    }

    #[test]
    fn summaries_add_up_and_skips_are_kept() {
        let mut command = std::process::Command::new("sh");
        let script = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured'
                      echo successes:
                      echo 'SKIPPED: no data'
                      echo 'test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured'";
        let skipped = vec!["SKIPPED: no data".to_owned()];
        let mut shown = Vec::new();
        let expected = TestCount { passed: 7, skipped, ..TestCount::default() };
        assert_eq!(count(command.args(["-c", script]), &mut shown).unwrap(), expected);
        let shown = String::from_utf8(shown).unwrap();
        assert!(!shown.contains("SKIPPED") && shown.lines().count() == 2, "{shown}");
    }

    #[test]
    fn binaries_are_summed_and_a_failed_one_is_a_problem() {
        let script = |script: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let passing = || script("echo 'test result: ok. 3 passed; 0 failed; 0 ignored'");
        let failing = script("echo 'test result: FAILED. 3 passed; 2 failed; 0 ignored'; exit 101");
        let count = run_binaries(vec![passing(), failing, passing()], drop).unwrap();
        assert_eq!((count.passed, count.failed), (9, 2));
        let [problem] = &count.problems[..] else { panic!("{:?}", count.problems) };
        assert!(problem.ends_with("exit status: 101, 2 tests failed"), "{problem}");
    }
}
