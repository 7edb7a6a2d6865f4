//! Processes that tests start: programs whose output is compared, and tests in a process of their
//! own.

use std::process::{Command, Output};

use serde_json::Value;

/// What a finished program printed, and how it ended.
#[derive(Debug)]
pub struct ProgramOutput {
    /// The exit code, unless a signal ended the program.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl ProgramOutput {
    /// Runs a program and waits until it ends.
    pub fn collect(command: &mut Command) -> Self {
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}")).into()
    }

    /// Fails the test with all output unless the program ended with `code`.
    pub fn expect_code(self, code: i32, command: &str) -> Self {
        assert_eq!(self.code, Some(code), "{command}\n{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Parses stdout as one JSON value.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// Parses each line of stdout as JSON.
    pub fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Parses the last line of stdout as JSON.
    pub fn last(&self) -> Value {
        self.lines().pop().unwrap_or_else(|| panic!("no output\n{}", self.stderr))
    }
}

impl From<Output> for ProgramOutput {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

/// Runs one test of this test program in a new process, for example with other libraries loaded.
/// `test` is its full name. The test reads from an environment variable that it is the child.
pub fn rerun_test(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}
