//! NVIDIA's run-time compiler: compiles a source for an architecture. Needs no GPU. Knows no driver
//! and no device.
#![expect(unsafe_code, reason = "calls into NVRTC; decisions 0002 and 0048")]

use std::ffi::{CStr, CString, OsStr, c_char};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use super::error::DriverError;
use super::source::{KernelSource, PRELUDE};

/// No contraction: multiplies and adds round apart, as in the oracles, so that bytes agree.
const OPTIONS: &[&str] = &["--std=c++17", "--fmad=false", "-lineinfo", "--ptxas-options=-v"];

/// What is to be compiled.
#[derive(Clone, Copy, Debug)]
pub struct CompileRequest<'a> {
    /// The source, without the prelude.
    pub source: KernelSource,
    /// Such as `sm_90a`.
    pub architecture: &'a str,
    /// Folder that has `libnvrtc.so` of any version and its builtins, or `None` for where the
    /// linker looks.
    pub libraries: Option<&'a Path>,
}

/// What the compiler makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The code, a CUBIN.
    pub image: Vec<u8>,
    /// Warnings, and what each kernel uses.
    pub log: String,
}

/// What a kernel uses of a multiprocessor, by the assembler's own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The kernel.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a block's declared shared memory.
    pub shared_bytes: u32,
    /// Bytes of a thread's spilled stores and loads.
    pub spill_bytes: u32,
}

/// Every function that is called here, as for the driver's library.
const FUNCTIONS: [&str; 7] = [
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcDestroyProgram",
];

/// Compiles for one architecture.
///
/// # Errors
/// [`DriverError::NoCompiler`] where the library is not here, [`DriverError::Compile`] with its
/// words.
pub fn compile(request: &CompileRequest<'_>) -> Result<Compiled, DriverError> {
    open(request.libraries)?;
    let CompileRequest { source, architecture, .. } = request;
    let text = text(*source);
    let failed = |log: String| DriverError::Compile {
        source_name: source.name.to_owned(),
        target: (*architecture).to_owned(),
        log,
    };
    let plain = |text: &str| CString::new(text).map_err(|error| failed(error.to_string()));
    let (text, name) = (plain(&text)?, plain(source.name)?);
    let mut options = vec![plain(&format!("--gpu-architecture={architecture}"))?];
    for option in OPTIONS {
        options.push(plain(option)?);
    }
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let mut program: nvrtcProgram = ptr::null_mut();
    // SAFETY: `open` found the library; all texts end with NUL and live until the program is
    // destroyed below; sizes are asked for before buffers of that size are filled.
    unsafe {
        let none = ptr::null();
        let made =
            sys::nvrtcCreateProgram(&raw mut program, text.as_ptr(), name.as_ptr(), 0, none, none);
        if made != nvrtcResult::NVRTC_SUCCESS {
            return Err(failed(format!("{made:?}")));
        }
        let result = sys::nvrtcCompileProgram(program, options.len() as i32, options.as_ptr());
        let mut bytes = 0;
        let _ = sys::nvrtcGetProgramLogSize(program, &raw mut bytes);
        let mut log = vec![0u8; bytes];
        let _ = sys::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        let compiled = if result == nvrtcResult::NVRTC_SUCCESS {
            let mut bytes = 0;
            let _ = sys::nvrtcGetCUBINSize(program, &raw mut bytes);
            let mut image = vec![0u8; bytes];
            let _ = sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast());
            Ok(Compiled { image, log })
        } else {
            Err(failed(log))
        };
        let _ = sys::nvrtcDestroyProgram(&raw mut program);
        compiled
    }
}

/// As [`compile`], or the code that an earlier run left in `cache`, also where there is no NVRTC.
///
/// # Errors
/// As [`compile`].
pub fn cached(request: &CompileRequest<'_>, cache: &Path) -> Result<Vec<u8>, DriverError> {
    let path = cache.join(image_name(request.source, request.architecture));
    if let Ok(image) = fs::read(&path) {
        return Ok(image);
    }
    let Compiled { image, .. } = compile(request)?;
    let broken = |error: std::io::Error| DriverError::Cache {
        path: path.clone(),
        problem: error.to_string(),
    };
    fs::create_dir_all(cache).map_err(broken)?;
    let part = path.with_extension(format!("part{}", std::process::id()));
    fs::write(&part, &image).and_then(|()| fs::rename(&part, &path)).map_err(broken)?;
    Ok(image)
}

/// Name of the file that holds a source's code for an architecture: carried to a machine without
/// NVRTC, it is found there.
#[must_use]
pub fn image_name(source: KernelSource, architecture: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (text(source), OPTIONS).hash(&mut hasher);
    let stem = source.name.replace('/', "-").replace(".cu", "");
    format!("{stem}-{architecture}-{:016x}.cubin", hasher.finish())
}

fn text(source: KernelSource) -> String {
    let KernelSource { name, text } = source;
    format!("{PRELUDE}\n#line 1 \"{name}\"\n{text}")
}

/// The resources that kernels use, from a compiler log.
#[must_use]
pub fn usage(log: &str) -> Vec<Usage> {
    let mut found: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            found.push(Usage { kernel, ..Usage::default() });
        }
        let Some(last) = found.last_mut() else { continue };
        let before = |word: &str| {
            let (rest, _) = line.split_once(word)?;
            rest.rsplit([' ', ',']).find(|part| !part.is_empty())?.parse::<u32>().ok()
        };
        if let Some(registers) = before(" registers") {
            last.registers = registers;
            last.shared_bytes = before(" bytes smem").unwrap_or(0);
        }
        if let Some(stores) = before(" bytes spill stores") {
            last.spill_bytes = stores + before(" bytes spill loads").unwrap_or(0);
        }
    }
    found
}

/// Opens the library before `cudarc` does, which panics where there is none. Its builtins come
/// first: NVRTC looks for them by name alone.
fn open(folder: Option<&Path>) -> Result<(), DriverError> {
    static OPENED: Mutex<bool> = Mutex::new(false);
    let mut opened = OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if *opened {
        return Ok(());
    }
    if let Some(folder) = folder {
        for prefix in ["libnvrtc-builtins.so", "libnvrtc.so"] {
            open_library(folder, prefix)?;
        }
    }
    // SAFETY: opens the library, whose constructors run.
    if !unsafe { sys::is_culib_present() } {
        let problem = "expected it in the folder of CUDA libraries or where the linker looks";
        let library = "libnvrtc.so.13".to_owned();
        return Err(DriverError::NoCompiler { library, problem: problem.to_owned() });
    }
    // SAFETY: the library is there; a symbol is only looked for, not called.
    let has = |name: &str| unsafe { sys::culib().get::<fn()>(name.as_bytes()).is_ok() };
    super::error::complete("libnvrtc.so", &FUNCTIONS, has)?;
    *opened = true;
    Ok(())
}

/// Opens the library of a folder whose name begins so, whatever its version.
///
/// # Errors
/// [`DriverError::NoCompiler`].
pub(super) fn open_library(folder: &Path, prefix: &str) -> Result<(), DriverError> {
    load(library_of(folder, prefix)?.as_os_str())
}

fn library_of(folder: &Path, prefix: &str) -> Result<PathBuf, DriverError> {
    let absent = |problem: String| {
        let library = folder.join(prefix).display().to_string();
        DriverError::NoCompiler { library, problem }
    };
    let entries = fs::read_dir(folder).map_err(|error| absent(error.to_string()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    paths.filter(is_it).max().ok_or_else(|| absent("no such file".to_owned()))
}

fn load(path: &OsStr) -> Result<(), DriverError> {
    let failed = |problem: String| DriverError::NoCompiler {
        library: path.to_string_lossy().into_owned(),
        problem,
    };
    let name = CString::new(path.as_bytes()).map_err(|error| failed(error.to_string()))?;
    // SAFETY: the name ends with NUL; the constructors of the library run, as asked for.
    if unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null() {
        // SAFETY: dlopen has just failed, so there is a text that ends with NUL.
        let text = unsafe { CStr::from_ptr(libc::dlerror()) };
        return Err(failed(text.to_string_lossy().into_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Usage, usage};

    #[test]
    fn the_assembler_says_what_kernels_use() {
        let log = "ptxas info    : Compiling entry function 'fill' for 'sm_90a'\n\
                   ptxas info    : Function properties for fill\n    \
                   8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
                   ptxas info    : Used 12 registers, used 1 barriers, 256 bytes smem\n";
        let expected =
            Usage { kernel: "fill".to_owned(), registers: 12, shared_bytes: 256, spill_bytes: 16 };
        assert_eq!(usage(log), [expected]);
    }
}
