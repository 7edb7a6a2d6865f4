//! Runs the tests, shows their output and counts which passed and which were skipped.
//!
//! A test that lacks something calls `testkit::skip`, which prints a line that begins with
//! `SKIPPED`, and returns. The test runner hides the output of passing tests by default, so
//! `--show-output` is set and the lines are counted here.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::ci::cargo::cargo;
use crate::ci::tool;
use crate::command;
use crate::error::Error;

/// Sums over the summaries of several test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct TestCount {
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
}

/// Runs all unit and integration tests. Below its first line, the note says what skipped tests
/// need.
pub fn run() -> Result<String, Error> {
    let missing = [tool::OPEN_MPI, tool::CHROMIUM].into_iter().filter_map(tool::install_program);
    let missing: Vec<String> = missing.collect();
    // All of the library, the programs and the integration tests, where `test = false` is not set.
    let kinds = ["--tests"];
    let mut cargo = cargo(&["test", "--release", "--workspace", "--no-fail-fast"]);
    let command = cargo.args(kinds).args(["--", "--show-output"]);
    let TestCount { passed, failed, skipped } = count(command, &mut std::io::stdout())?;
    let mut note = vec![format!("{passed} passed, {failed} failed, {} skipped", skipped.len())];
    note.extend(missing);
    note.extend(sum_needs(&skipped));
    Ok(note.join("\n"))
}

/// Runs the examples in doc comments.
pub fn run_documentation() -> Result<String, Error> {
    let mut cargo = cargo(&["test", "--release", "--workspace", "--doc"]);
    let count = count(&mut cargo, &mut std::io::stdout())?;
    Ok(format!("{} passed", count.passed))
}

/// Runs a test command and counts its results. Shows the output without that of passing tests.
fn count(command: &mut Command, shown: &mut impl Write) -> Result<TestCount, Error> {
    let line = command::command_line(command);
    eprintln!("$ {line}");
    let start = |source| Error::Start { command: line.clone(), source };
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(start)?;
    let mut count = TestCount::default();
    if let Some(stdout) = child.stdout.take() {
        // Lines are shown as they arrive, because a full run takes many minutes.
        let mut is_passing = false;
        for text in BufReader::new(stdout).lines().map_while(Result::ok) {
            count.read(&text);
            match text.trim_end() {
                "successes:" => is_passing = true,
                "failures:" => is_passing = false,
                other if other.starts_with("test result:") => is_passing = false,
                _ => {}
            }
            if !is_passing {
                // A closed standard output is not an error: the tests still decide.
                let _ = writeln!(shown, "{text}");
            }
        }
    }
    let status = child.wait().map_err(|source| Error::Start { command: line.clone(), source })?;
    if !status.success() {
        let problem = format!("{status}, {} tests failed", count.failed);
        return Err(Error::Program { command: line, problem });
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
        if let Some(at) = line.find("SKIPPED") {
            self.skipped.push(line[at..].to_owned());
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
    use super::{TestCount, count, sum_needs};

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
        let expected = TestCount { passed: 7, failed: 0, skipped };
        assert_eq!(count(command.args(["-c", script]), &mut shown).unwrap(), expected);
        let shown = String::from_utf8(shown).unwrap();
        assert!(!shown.contains("SKIPPED") && shown.lines().count() == 2, "{shown}");
    }

    #[test]
    fn a_failed_test_is_an_error() {
        let script = "echo 'test result: FAILED. 3 passed; 2 failed; 0 ignored'; exit 101";
        let mut command = std::process::Command::new("sh");
        let error = count(command.args(["-c", script]), &mut std::io::sink()).unwrap_err();
        assert!(error.to_string().ends_with("exit status: 101, 2 tests failed"), "{error}");
    }
}
