//! Runs a test of this program again with a stub of NVIDIA's library in the linker's search path.
//! The tests of the crate `train` include this file too.

use std::path::{Path, PathBuf};

use device::backend::SOURCES;
use device::cuda::{CudaOptions, LibrarySearch, LibraryVersion, nvrtc};
use testkit::ProgramOutput;
use testkit::compiler::compile_library;

/// The stub libraries that the child process can find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libraries {
    Driver,
    DriverAndBlas,
}

/// Returns options of a GPU whose libraries the linker finds, with compiled kernels in `cache`.
pub fn options(cache: &Path) -> CudaOptions {
    CudaOptions { libraries: LibrarySearch::default(), cache: cache.to_owned(), synchronous: false }
}

/// Returns options of a GPU as the program uses them, with compiled kernels in `ROWMILL_KERNELS`.
pub fn options_of_environment() -> CudaOptions {
    let cache = std::env::var_os("ROWMILL_KERNELS").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cubins"));
    CudaOptions::from_variables(|name| std::env::var_os(name), cache)
}

/// Stores placeholder code for all kernels of the stub's device in `folder`.
pub fn store_kernels(folder: &Path) {
    let version = LibraryVersion { major: 13, minor: 0, patch: None };
    for &source in SOURCES {
        nvrtc::store(folder, source, "sm_90a", b"code", version).unwrap();
    }
}

/// Compiles the stub with `flags`, and runs the test `child` in a new process that loads it.
/// Returns the driver calls that the process made, or `None` if there is no C compiler.
pub fn calls(child: &str, libraries: Libraries, flags: &[&str]) -> Option<Vec<String>> {
    let folder = format!("stub-{}", child.replace("::", "-"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let log = folder.join("calls");
    let mut wanted = vec![("stub.c", "libcuda.so.1"), ("stub.c", "libcuda.so")];
    if libraries == Libraries::DriverAndBlas {
        wanted.push(("stub_blas.c", "libcublasLt.so"));
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device/tests/it/cuda");
    let compile = |(source, library): &(&str, &str)| {
        compile_library(&folder.join(library), &sources.join(source), flags, "a stub of CUDA")
    };
    if !wanted.iter().all(compile) {
        return None;
    }
    let _ = std::fs::remove_file(&log);
    // The kernels come from the cache, because there is no NVRTC. The stub does not read their
    // code.
    store_kernels(&folder);
    let mut command = testkit::rerun_test(child);
    command.env("LD_LIBRARY_PATH", &folder).env("ROWMILL_STUB", &log);
    ProgramOutput::collect(&mut command).expect_code(0, child);
    Some(std::fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect())
}
