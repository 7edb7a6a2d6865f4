//! The stage that rehearses the checks of a machine with a GPU. `bench/gpu/rehearse.py` checks
//! their results.

use std::process::Command;

use crate::ci::cargo::{PROFILE, cargo};
use crate::command;
use crate::error::Error;
use crate::tree;

/// Packs the programs and runs both commands of `bench/gpu/run.py` on the emulator and on a stub of
/// the driver, with injected faults.
pub fn rehearse() -> Result<String, Error> {
    for program in ["python3", "gcc", "g++", "strip"] {
        if !command::succeeds(Command::new(program).arg("--version")) {
            return Ok(format!("SKIPPED the rehearsal of bench/gpu: {program} is not there"));
        }
    }
    command::run(&mut cargo(&["build", "--profile", PROFILE]))?;
    let mut script = Command::new("python3");
    // The script builds the package by cargo. The variables of this cargo are removed, so that
    // nothing is rebuilt.
    command::forget_package(&mut script);
    script.env("ROWMILL_PROFILE", PROFILE);
    command::run(script.arg(tree::root().join("bench/gpu/rehearse.py")))?;
    Ok("each fault is one row of the table, every other row is there".to_owned())
}
