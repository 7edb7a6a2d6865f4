//! Installs the programs that the stages need. Programs that are already installed are not changed.

use std::path::Path;
use std::process::Command;

use crate::ci::cargo::cargo;
use crate::command::{run, succeeds};
use crate::error::Error;

/// Installs rustfmt and clippy if they are missing.
pub fn install() -> Result<String, Error> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !succeeds(&mut cargo(&[subcommand, "--version"])) {
            run(Command::new("rustup").args(["component", "add", component]))?;
        }
    }
    let python =
        if succeeds(Command::new("python3").arg("--version")) { "present" } else { "absent" };
    Ok(format!("python3 {python} (needed by --full only)"))
}

/// Installs a cargo subcommand from the registry if it is missing.
pub fn install_subcommand(subcommand: &str, package: &str) -> Result<(), Error> {
    if succeeds(&mut cargo(&[subcommand, "--version"])) {
        return Ok(());
    }
    run(&mut cargo(&["install", package, "--locked"]))
}

/// A program that tests run, and the Debian package that contains it.
pub type Program = (&'static str, &'static str);
/// Open MPI, with whose launcher the everyday tests start ranks.
pub const OPEN_MPI: Program = ("mpirun.openmpi", "openmpi-bin");
/// Chromium, in which the everyday tests open reports.
pub const CHROMIUM: Program = ("chromium", "chromium");
/// MPICH, whose launcher only the tests of `--full` use.
pub const MPICH: Program = ("mpirun.mpich", "mpich");

/// Installs a program if it is missing. If that is impossible, returns a `SKIPPED` line, and the
/// tests that need the program skip themselves.
pub fn install_program((program, package): Program) -> Option<String> {
    // The daemons of Slurm accept only the short option `-V`.
    if ["--version", "-V"].iter().any(|version| succeeds(Command::new(program).arg(version))) {
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
    // The package lists may be outdated, so a failed installation is repeated after an update.
    let install = ["install", "--yes", "--no-install-recommends", package];
    apt(&install).or_else(|_| apt(&["update"]).and_then(|()| apt(&install)))
}
