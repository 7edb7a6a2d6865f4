//! Runs a test of this program again with a stub of NVIDIA's library in the linker's search path.
//! The tests of `train` include this file too.

use std::path::{Path, PathBuf};
use std::process::Command;

use device::backend::SOURCES;
use device::cuda::{CudaOptions, LibrarySearch, LibraryVersion, nvrtc};

/// The stub libraries that the child process can find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libraries {
    Driver,
    DriverAndBlas,
}

/// Options of a GPU whose libraries are found by the linker, with compiled kernels in `cache`.
pub fn options(cache: &Path) -> CudaOptions {
    CudaOptions { libraries: LibrarySearch::default(), cache: cache.to_owned(), synchronous: false }
}

/// Options of a GPU as the program uses them, with compiled kernels in `ROWMILL_KERNELS`.
pub fn options_of_environment() -> CudaOptions {
    let cache = std::env::var_os("ROWMILL_KERNELS").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cubins"));
    CudaOptions::from_variables(|name| std::env::var_os(name), cache)
}

/// Stores placeholder code of all kernels for the stub's device in `folder`.
pub fn store_kernels(folder: &Path) {
    let version = LibraryVersion { major: 13, minor: 0, patch: None };
    for &source in SOURCES {
        nvrtc::store(folder, source, "sm_90a", b"code", version).unwrap();
    }
}

/// Compiles the stub with `flags` and runs the test `child` in a new process that loads it. Returns
/// the driver calls that the process made, or `None` if there is no C compiler.
pub fn calls(child: &str, libraries: Libraries, flags: &[&str]) -> Option<Vec<String>> {
    let folder = format!("stub-{}", child.replace("::", "-"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("calls");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let mut wanted = vec![("stub.c", "libcuda.so.1"), ("stub.c", "libcuda.so")];
    if libraries == Libraries::DriverAndBlas {
        wanted.push(("stub_blas.c", "libcublasLt.so"));
    }
    for (source, library) in wanted {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/it/cuda");
        let mut command = Command::new(&compiler);
        command.args(["-shared", "-fPIC", "-w", "-o"]).arg(folder.join(library));
        command.args(flags);
        let Ok(status) = command.arg(sources.join(source)).status() else {
            eprintln!("SKIPPED: {} is not there, a C compiler (CC)", compiler.display());
            return None;
        };
        assert!(status.success(), "{status}");
    }
    let _ = std::fs::remove_file(&log);
    // Modules come from the cache, because there is no NVRTC. The stub does not read their code.
    store_kernels(&folder);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", child, "--nocapture"]).env("LD_LIBRARY_PATH", &folder);
    let output = command.env("ROWMILL_STUB", &log).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(std::fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect())
}
