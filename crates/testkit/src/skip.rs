//! Reports tests that are skipped because the machine lacks something that they need.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Prints that `what` is skipped because it needs `need`.
///
/// `cargo xtask ci` counts these lines by `need`, so equal needs should have equal words.
pub fn skip(what: &str, need: &str) {
    println!("SKIPPED {what}: needs {need}");
}

/// Returns whether checks that take more than half a minute run too. If not, it prints that `what`
/// is skipped.
pub fn has_time(what: &str) -> bool {
    let has_time = std::env::var_os("ROWMILL_LONG").is_some();
    if !has_time {
        skip(what, "ROWMILL_LONG=1, as `cargo xtask ci --full` sets it");
    }
    has_time
}

/// Returns whether the test runs as root. If not, it prints that `what` is skipped.
pub fn has_root(what: &str) -> bool {
    if !is_root() {
        skip(what, "root");
    }
    is_root()
}

/// Returns whether the test runs as root.
pub fn is_root() -> bool {
    // The folder `/proc/self` belongs to the effective user of the process.
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Returns whether a program can be started. If not, it prints that `what` is skipped.
pub fn has_program(program: &str, what: &str) -> bool {
    let is_installed = Command::new(program).arg("--version").output().is_ok();
    if !is_installed {
        skip(what, &format!("{program} in PATH"));
    }
    is_installed
}
