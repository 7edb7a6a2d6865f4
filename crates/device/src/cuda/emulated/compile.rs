//! Compiles a kernel source to a shared library with the C++ compiler, once per source and flags.
//! `emulated.rs` loads and runs the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cuda::emulation::{Checks, Emulation};
use crate::cuda::error::DriverError;
use crate::cuda::kernel_cache::{KernelCache, key};
use crate::cuda::source::PRELUDE;

/// Part of the file names in the cache that marks libraries made by the host's compiler.
const COMPILER: &str = "host";

const SHIM: &str = include_str!("shim.h");
const RUNTIME: &str = include_str!("runtime.cpp");

/// Compiler flags for all files. With `-ffp-contract=off`, multiplications and additions round
/// separately, as in the oracles.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O1",
    // With DWARF 5, `addr2line` does not find the file names that #line gives, so we use DWARF 4.
    "-g1",
    "-gdwarf-4",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-Wall",
    "-Wno-unused-function",
];
/// Compiler flags for kernels. Uninitialized variables are filled with a pattern that is not a
/// valid number.
const KERNEL_FLAGS: &[&str] = &["-ftrivial-auto-var-init=pattern", "-Werror=uninitialized"];
/// Compiler flags for kernels whose accesses are checked. The compiler inserts a call before
/// every access. `runtime.cpp` defines the called functions, so no sanitizer library is linked.
const CHECKED_FLAGS: &[&str] = &["-fsanitize=thread"];
/// Flags for AddressSanitizer and UndefinedBehaviorSanitizer. The first error ends the process.
const SANITIZER_FLAGS: &[&str] =
    &["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

fn flags_of(checks: Checks) -> &'static [&'static str] {
    match checks {
        Checks::Every => CHECKED_FLAGS,
        Checks::Few => &[],
        Checks::Sanitizers => SANITIZER_FLAGS,
    }
}

/// Returns the path of a source's library in the cache, and compiles the library if it is
/// missing.
pub fn compiled(emulation: &Emulation, name: &str, text: &str) -> Result<PathBuf, DriverError> {
    let replaced = emulation.replaced.iter().find(|(name, _)| *name == "prelude");
    let prelude = replaced.map_or(PRELUDE, |(_, text)| text);
    let source = format!("#include \"shim.h\"\n{prelude}\n#line 1 \"{name}\"\n{text}");
    let flags: Vec<&str> = [FLAGS, KERNEL_FLAGS, flags_of(emulation.checks)].concat();
    let compiler = emulation.compiler.display().to_string();
    let key = key(&[&compiler, SHIM, RUNTIME, &source, &flags.join(" ")]);
    let stem = name.replace('/', "-").replace(".cu", "");
    let (cache, file) = (KernelCache::new(&emulation.cache)?, format!("{stem}-{key}.so"));
    let library = emulation.cache.join(&file);
    // A missing or damaged file is compiled again.
    if matches!(cache.read(&file), Ok(Some(_))) {
        return Ok(library);
    }
    cache.create()?;
    // Each compilation has its own folder, because another thread or process may be compiling the
    // same source at the same time.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = emulation.cache.join(format!(".{stem}-{key}-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| broken(&folder, &error))?;
    let made = make(emulation, &folder, name, &source, &flags);
    // The result is ignored, because a failed removal leaves only temporary files.
    let _ = fs::remove_dir_all(&folder);
    cache.write(&file, &made?, COMPILER)
}

/// Compiles the library in `folder` and returns the bytes of its file.
fn make(
    emulation: &Emulation,
    folder: &Path,
    name: &str,
    source: &str,
    flags: &[&str],
) -> Result<Vec<u8>, DriverError> {
    // The object file of `runtime.cpp`, which runs the blocks, is the same for all kernels.
    let compiler = emulation.compiler.display().to_string();
    let runtime = format!("runtime-{}.o", key(&[&compiler, SHIM, RUNTIME]));
    let cache = KernelCache::new(&emulation.cache)?;
    let read = |made: &str| {
        let path = folder.join(made);
        fs::read(&path).map_err(|error| broken(&path, &error))
    };
    for (file, text) in [("shim.h", SHIM), ("runtime.cpp", RUNTIME), ("kernel.cpp", source)] {
        let path = folder.join(file);
        fs::write(&path, text).map_err(|error| broken(&path, &error))?;
    }
    let run = |arguments: &[&str]| {
        let failed = |log: String| DriverError::Compile {
            source_name: name.to_owned(),
            target: emulation.compiler.display().to_string(),
            log,
        };
        let mut command = Command::new(&emulation.compiler);
        // A library that is preloaded into this program (LD_PRELOAD) must not be loaded into the
        // compiler.
        command.args(arguments).current_dir(folder).env_remove("LD_PRELOAD");
        let output = command.output();
        let output = output.map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    run(&[flags, &["-c", "kernel.cpp", "-o", "kernel.o"]].concat())?;
    match cache.read(&runtime) {
        Ok(Some(runtime)) => {
            let path = folder.join("runtime.o");
            fs::write(&path, runtime.code).map_err(|error| broken(&path, &error))?;
        }
        _ => {
            run(&[FLAGS, &["-O2", "-c", "runtime.cpp", "-o", "runtime.o"]].concat())?;
            cache.write(&runtime, &read("runtime.o")?, COMPILER)?;
        }
    }
    let mut link = vec!["-shared", "-o", "library.so", "kernel.o", "runtime.o", "-ldl"];
    if emulation.checks == Checks::Sanitizers {
        link.extend(SANITIZER_FLAGS);
    }
    run(&link)?;
    read("library.so")
}

fn broken(path: &Path, error: &std::io::Error) -> DriverError {
    DriverError::Cache { path: path.to_owned(), problem: error.to_string() }
}
