//! The programs the stages need: what is missing is installed, what is there is left alone.

use std::path::Path;
use std::process::Command;

use crate::ci::cargo::cargo;
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

/// A program that tests run, and the Debian package that has it.
pub type Program = (&'static str, &'static str);
/// What the everyday tests start ranks with.
pub const OPEN_MPI: Program = ("mpirun.openmpi", "openmpi-bin");
/// What the everyday tests open reports with.
pub const CHROMIUM: Program = ("chromium", "chromium");
/// The other library, in `--full` only.
pub const MPICH: Program = ("mpirun.mpich", "mpich");

/// Installs a program where it is missing and this machine can; else the line that says why not,
/// and the tests that need it say so too.
pub fn install_program((program, package): Program) -> Option<String> {
    // The daemons of Slurm know the short form alone.
    if ["--version", "-V"].iter().any(|version| works(Command::new(program).arg(version))) {
        return None;
    }
    let skipped = |why: &str| Some(format!("SKIPPED tests with {program}: {package}: {why}"));
    if !Path::new("/usr/bin/apt-get").exists() {
        return skipped("not installed, and there is no apt-get");
    }
    match install_package(package) {
        Ok(()) => None,
        Err(error) => skipped(&error.to_string()),
    }
}

/// Installs a Debian package.
pub fn install_package(package: &str) -> Result<(), Error> {
    let apt = |words: &[&str]| {
        let mut apt = Command::new("apt-get");
        run(apt.args(words).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    // The lists may be older than the packages that the mirror has.
    let install = ["install", "--yes", "--no-install-recommends", package];
    apt(&install).or_else(|_| apt(&["update"]).and_then(|()| apt(&install)))
}
