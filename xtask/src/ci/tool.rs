//! The programs the stages need: what is missing is installed, what is there is left alone.

use std::process::Command;

use crate::ci::cargo;
use crate::command::{run, works};
use crate::error::Error;

pub fn install() -> Result<String, Error> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !works(&mut cargo(&[subcommand, "--version"])) {
            run(Command::new("rustup").args(["component", "add", component]))?;
        }
    }
    let python = if works(Command::new("python3").arg("--version")) { "present" } else { "absent" };
    Ok(format!("python3 {python} (needed by --full only)"))
}

/// Installs a cargo subcommand from the registry where it is missing.
pub fn install_subcommand(subcommand: &str, package: &str) -> Result<(), Error> {
    if works(&mut cargo(&[subcommand, "--version"])) {
        return Ok(());
    }
    run(&mut cargo(&["install", package, "--locked"]))
}
