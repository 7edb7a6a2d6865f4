//! Processes that tests start: programs whose output is checked, and single tests that run in a
//! separate process.

use std::process::{Command, Output};

use serde_json::Value;

/// The output and the exit code of a program that has ended.
#[derive(Debug)]
pub struct ProgramOutput {
    /// The exit code, or `None` if a signal ended the program.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl ProgramOutput {
    /// Runs a program and waits until it ends.
    pub fn collect(command: &mut Command) -> Self {
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}")).into()
    }

    /// Fails the test and prints all output unless the program ended with `code`.
    pub fn expect_code(self, code: i32, command: &str) -> Self {
        assert_eq!(self.code, Some(code), "{command}\n{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Parses standard output as one JSON value.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// Parses each line of standard output as JSON.
    pub fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Parses the last line of standard output as JSON.
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

/// Prepares a command that runs one test of this test program in a new process, for example with
/// other libraries loaded. `test` is the full name of the test, which recognizes the new process by
/// an environment variable.
pub fn rerun_test(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// The launcher of Open MPI.
pub const OPEN_MPI: &str = "mpirun.openmpi";
/// The launcher of MPICH.
pub const MPICH: &str = "mpirun.mpich";

/// Prepares a command like [`rerun_test`] that starts `ranks` processes under a launcher. Returns
/// `None` if the launcher is not installed, and prints that the test is skipped.
pub fn launch_test(launcher: &str, ranks: u32, test: &str) -> Option<Command> {
    if !crate::has_program(launcher, "ranks as processes") {
        return None;
    }
    let mut command = Command::new(launcher);
    command.args(["-n", &ranks.to_string()]);
    if launcher == OPEN_MPI {
        command.args(["--allow-run-as-root", "--oversubscribe"]);
    }
    let rank = rerun_test(test);
    command.arg(rank.get_program()).args(rank.get_args());
    Some(command)
}
