//! Compiles a kernel's source to a library with the C++ compiler, once per source and flags. Never
//! runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cuda::emulation::{Checks, Emulation};
use crate::cuda::error::DriverError;
use crate::cuda::kernel_cache::{KernelCache, key};
use crate::cuda::source::PRELUDE;

/// Marks files of the cache as made by the host's compiler, whose name is part of theirs.
const COMPILER: &str = "host";

const SHIM: &str = include_str!("shim.h");
const RUNTIME: &str = include_str!("runtime.cpp");

/// No contraction: multiplies and adds round apart, as in the oracles. What has no value gets a
/// pattern that is none.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O1",
    // Version 5 loses the names that #line gives, at least to addr2line.
    "-g1",
    "-gdwarf-4",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-Wall",
    "-Wno-unused-function",
];
const KERNEL_FLAGS: &[&str] = &["-ftrivial-auto-var-init=pattern", "-Werror=uninitialized"];
/// Calls in front of every access; `runtime.cpp` answers them, no library of a sanitizer is linked.
const CHECKED_FLAGS: &[&str] = &["-fsanitize=thread"];
/// Linked to the libraries of both sanitizers. The first mistake ends the process.
const SANITIZER_FLAGS: &[&str] =
    &["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

fn flags_of(checks: Checks) -> &'static [&'static str] {
    match checks {
        Checks::Every => CHECKED_FLAGS,
        Checks::Few => &[],
        Checks::Sanitizers => SANITIZER_FLAGS,
    }
}

/// The library of a source in the cache, made where it is missing.
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
    // A damaged file is made anew.
    if matches!(cache.read(&file), Ok(Some(_))) {
        return Ok(library);
    }
    cache.create()?;
    // A folder of its own: another thread or process may be making the same one.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = emulation.cache.join(format!(".{stem}-{key}-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| broken(&folder, &error))?;
    let made = make(emulation, &folder, name, &source, &flags);
    // What is left of a failed compilation is of no use.
    let _ = fs::remove_dir_all(&folder);
    cache.write(&file, &made?, COMPILER)
}

/// The bytes of the library, made in `folder`.
fn make(
    emulation: &Emulation,
    folder: &Path,
    name: &str,
    source: &str,
    flags: &[&str],
) -> Result<Vec<u8>, DriverError> {
    // What runs the blocks is the same for all kernels.
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
        // What is loaded before this program is not for the compiler.
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
