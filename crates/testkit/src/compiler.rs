//! The C and C++ compilers of the machine, which build stubs of libraries and emulated GPU kernels.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip::skip;

/// Compiles a C file to a shared library, and creates its folder if it is missing. If there is no C
/// compiler, it prints that `what` is skipped and returns false.
pub fn compile_library(library: &Path, source: &Path, flags: &[&str], what: &str) -> bool {
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-w", "-o"]).arg(library).args(flags).arg(source);
    let Ok(status) = command.status() else {
        skip(what, "a C compiler: gcc in PATH, or its path in CC");
        return false;
    };
    assert!(status.success(), "{command:?}: {status}");
    true
}

/// Returns the path of the C++ compiler, which may not be installed.
pub fn cxx() -> PathBuf {
    std::env::var_os("CXX").map_or_else(|| "g++".into(), PathBuf::from)
}

/// Returns whether a C++ compiler is installed. If not, it prints that `what` is skipped.
pub fn has_cxx(what: &str) -> bool {
    let is_installed = Command::new(cxx()).arg("--version").output().is_ok();
    if !is_installed {
        skip(what, "a C++ compiler: g++ in PATH, or its path in CXX");
    }
    is_installed
}
