//! NVRTC, NVIDIA's run-time compiler, which compiles a kernel source for an architecture. The
//! compiler needs neither a driver nor a GPU.
#![expect(unsafe_code, reason = "calls into NVRTC; decisions 0002 and 0048")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::nvrtc::sys::nvrtcProgram;

use super::error::DriverError;
use super::kernel_cache::{self, KernelCache};
use super::libraries::{CudaLibrary, LibrarySearch, newest_first};
use super::loader::{
    LibraryReport, LibraryVersion, OpenedLibrary, SharedLibrary, function_table, open_first,
};
use super::source::{KernelSource, PRELUDE};

/// Compiler options of every compilation. With `--fmad=false`, multiplications and additions
/// round separately, as in the oracles, so that results have the same bytes.
const OPTIONS: &[&str] = &["--std=c++17", "--fmad=false", "-lineinfo", "--ptxas-options=-v"];

function_table! {
    /// Functions of `nvrtc.h`. Status codes are plain numbers, because a later version may return
    /// codes that this program does not define.
    NvrtcFunctions {
        nvrtcVersion: fn(*mut c_int, *mut c_int) -> c_int;
        nvrtcGetErrorString: fn(c_int) -> *const c_char;
        nvrtcCreateProgram: fn(
            *mut nvrtcProgram,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char
        ) -> c_int;
        nvrtcCompileProgram: fn(nvrtcProgram, c_int, *const *const c_char) -> c_int;
        nvrtcGetProgramLogSize: fn(nvrtcProgram, *mut usize) -> c_int;
        nvrtcGetProgramLog: fn(nvrtcProgram, *mut c_char) -> c_int;
        nvrtcGetCUBINSize: fn(nvrtcProgram, *mut usize) -> c_int;
        nvrtcGetCUBIN: fn(nvrtcProgram, *mut c_char) -> c_int;
        nvrtcDestroyProgram: fn(*mut nvrtcProgram) -> c_int;
    }
}

/// The opened NVRTC library, which compiles CUDA sources at run time.
pub struct Nvrtc {
    library: OpenedLibrary<NvrtcFunctions>,
}

/// The output of the compiler: code for one GPU architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code of the kernels, as a CUBIN file.
    pub image: Vec<u8>,
    /// Warnings of the compiler, and the resources that each kernel uses.
    pub log: String,
}

/// The registers and memory that a kernel uses, as the assembler reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub kernel: String,
    /// Number of registers that each thread uses.
    pub registers: u32,
    /// Bytes of shared memory that a block declares.
    pub shared_bytes: u32,
    /// Bytes of register spills per thread, stores and loads together.
    pub spill_bytes: u32,
}

impl Nvrtc {
    /// Opens the first usable library of `search`. Skips libraries of a CUDA version later than
    /// `driver`, because the driver could not load their code.
    ///
    /// # Errors
    /// Fails with [`DriverError::NoLibrary`] if none of the libraries can be used.
    pub fn open(
        search: &LibrarySearch,
        driver: Option<LibraryVersion>,
    ) -> Result<Self, DriverError> {
        let load = |library: &SharedLibrary| {
            let functions = NvrtcFunctions::load(library)?;
            let (mut major, mut minor) = (0, 0);
            // SAFETY: both pointers refer to live integers, `major` and `minor`, which the call
            // writes.
            let code = unsafe { (functions.nvrtcVersion)(&raw mut major, &raw mut minor) };
            if code != 0 {
                return Err(format!("nvrtcVersion: {}", functions.text_of(code)));
            }
            let version = LibraryVersion { major: major as u32, minor: minor as u32, patch: None };
            Ok((functions, version))
        };
        let library = open_first(search, CudaLibrary::Nvrtc, driver, load)?;
        // At its first compilation, NVRTC opens its builtins library by name. The linker does not
        // search the folder in which NVRTC was found, but it finds a library that is already
        // open. The builtins are therefore opened here.
        if let Some(folder) = library.path.parent() {
            for path in newest_first(&[folder.to_path_buf()], "libnvrtc-builtins.so") {
                // The result is ignored, because NVRTC reports missing builtins at the first
                // compilation.
                let _ = SharedLibrary::open(&path);
            }
        }
        Ok(Self { library })
    }

    /// Returns the path and the version of the library.
    #[must_use]
    pub fn report(&self) -> LibraryReport {
        self.library.report(CudaLibrary::Nvrtc)
    }

    /// Compiles `source` for an architecture such as `sm_90a`.
    ///
    /// # Errors
    /// Fails with [`DriverError::Compile`], which contains the compiler's log.
    pub fn compile(
        &self,
        source: KernelSource,
        architecture: &str,
    ) -> Result<Compiled, DriverError> {
        let nvrtc = &self.library.functions;
        let text = text(source);
        let failed = |log: String| DriverError::Compile {
            source_name: source.name.to_owned(),
            target: architecture.to_owned(),
            log,
        };
        let plain = |text: &str| CString::new(text).map_err(|error| failed(error.to_string()));
        let (text, name) = (plain(&text)?, plain(source.name)?);
        let mut options = vec![plain(&format!("--gpu-architecture={architecture}"))?];
        for option in OPTIONS {
            options.push(plain(option)?);
        }
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let (mut program, none): (nvrtcProgram, _) = (ptr::null_mut(), ptr::null());
        let (text, name, count) = (text.as_ptr(), name.as_ptr(), options.len() as c_int);
        // SAFETY: all texts are NUL-terminated C strings that live until the program is destroyed
        // below. Each buffer has the size that NVRTC returned for it.
        unsafe {
            let made = (nvrtc.nvrtcCreateProgram)(&raw mut program, text, name, 0, none, none);
            if made != 0 {
                return Err(failed(nvrtc.text_of(made)));
            }
            let result = (nvrtc.nvrtcCompileProgram)(program, count, options.as_ptr());
            let mut bytes = 0;
            // The log stays empty if it cannot be read.
            let _ = (nvrtc.nvrtcGetProgramLogSize)(program, &raw mut bytes);
            let mut log = vec![0u8; bytes];
            let _ = (nvrtc.nvrtcGetProgramLog)(program, log.as_mut_ptr().cast());
            let mut log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
            let compiled = if result == 0 {
                let mut bytes = 0;
                let _ = (nvrtc.nvrtcGetCUBINSize)(program, &raw mut bytes);
                let mut image = vec![0u8; bytes];
                let _ = (nvrtc.nvrtcGetCUBIN)(program, image.as_mut_ptr().cast());
                Ok(Compiled { image, log })
            } else {
                // NVRTC writes no log if its builtins are missing, so the status code is
                // described instead.
                if log.trim().is_empty() {
                    log = nvrtc.text_of(result);
                }
                Err(failed(log))
            };
            let _ = (nvrtc.nvrtcDestroyProgram)(&raw mut program);
            compiled
        }
    }
}

impl NvrtcFunctions {
    fn text_of(&self, code: c_int) -> String {
        // SAFETY: the library returns a static NUL-terminated text, or a null pointer.
        unsafe {
            let text = (self.nvrtcGetErrorString)(code);
            if text.is_null() {
                return format!("code {code}");
            }
            format!("{} (code {code})", CStr::from_ptr(text).to_string_lossy())
        }
    }
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvrtc").field("path", &self.library.path).finish_non_exhaustive()
    }
}

/// Returns the code of a source from `cache`, or compiles it with `compiler`.
///
/// A file that another version of NVRTC made is compiled again. On a machine that cannot compile,
/// such as one without NVRTC, the cached file is used as it is.
///
/// # Errors
/// Fails in the same cases as [`Nvrtc::open`] and [`Nvrtc::compile`]. Fails with
/// [`DriverError::Cache`] for a folder that others can write to, and for a damaged file that
/// cannot be compiled again.
pub(super) fn cached<'a>(
    source: KernelSource,
    architecture: &str,
    compiler: impl FnOnce() -> Result<&'a Nvrtc, DriverError>,
    cache: &Path,
) -> Result<Vec<u8>, DriverError> {
    let (cache, name) = (KernelCache::new(cache)?, image_name(source, architecture));
    let found = cache.read(&name);
    let compiler = compiler();
    if let (Ok(Some(found)), Ok(compiler)) = (&found, &compiler)
        && found.compiler == compiler_word(compiler.library.version)
    {
        return Ok(found.code.clone());
    }
    // If the kernel cannot be compiled or its file cannot be written, the `match` below falls back
    // to a file that another version of the compiler wrote to the cache.
    let compiled = compiler.and_then(|compiler| {
        let Compiled { image, .. } = compiler.compile(source, architecture)?;
        cache.write(&name, &image, &compiler_word(compiler.library.version))?;
        Ok(image)
    });
    match (compiled, found) {
        (Ok(image), _) => Ok(image),
        (Err(_), Ok(Some(found))) => Ok(found.code),
        // The user needs to know about the damaged file more than why the compilation failed.
        (Err(_), Err(damage)) => Err(damage),
        (Err(error), Ok(None)) => Err(error),
    }
}

/// Returns whether `cache` has usable code for a source and an architecture.
pub(super) fn is_cached(source: KernelSource, architecture: &str, cache: &Path) -> bool {
    let found =
        KernelCache::new(cache).and_then(|cache| cache.read(&image_name(source, architecture)));
    matches!(found, Ok(Some(_)))
}

/// Compiles a source and stores the code in a kernel cache, which may be copied to a machine
/// without NVRTC. Returns the path of the file.
///
/// # Errors
/// Fails with [`DriverError::Cache`] if the folder or the file cannot be used.
pub fn store(
    cache: &Path,
    source: KernelSource,
    architecture: &str,
    image: &[u8],
    version: LibraryVersion,
) -> Result<PathBuf, DriverError> {
    let name = image_name(source, architecture);
    KernelCache::new(cache)?.write(&name, image, &compiler_word(version))
}

fn compiler_word(version: LibraryVersion) -> String {
    format!("nvrtc-{version}")
}

/// Returns the name of the cache file for a source and an architecture. The name does not contain
/// the version of NVRTC, because a machine without NVRTC cannot know it.
fn image_name(source: KernelSource, architecture: &str) -> String {
    let stem = source.name.replace('/', "-").replace(".cu", "");
    let key = kernel_cache::key(&[&text(source), &OPTIONS.join(" ")]);
    format!("{stem}-{architecture}-{key}.cubin")
}

fn text(source: KernelSource) -> String {
    let KernelSource { name, text } = source;
    format!("{PRELUDE}\n#line 1 \"{name}\"\n{text}")
}

/// Parses the resources of each kernel from a compiler log.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use testkit::Folder;
    use testkit::compiler::compile_library;

    use super::{Nvrtc, Usage, cached, image_name, is_cached, usage};
    use crate::cuda::error::DriverError;
    use crate::cuda::libraries::{LibraryRoots, LibrarySearch};
    use crate::ops::activation::cuda::SOURCE;

    /// Compiles a stub of NVRTC with these `flags`. Returns `None` if there is no C compiler.
    fn compiler(folder: &Path, flags: &[&str]) -> Option<Nvrtc> {
        let folder = folder.join(flags.concat());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/cuda/stub_nvrtc.c");
        let library = folder.join("libnvrtc.so.13");
        if !compile_library(&library, &source, flags, "a stub of NVRTC") {
            return None;
        }
        let search =
            LibrarySearch::new(&LibraryRoots { named: vec![folder], ..LibraryRoots::default() });
        Some(Nvrtc::open(&search, None).unwrap())
    }

    #[test]
    fn outdated_cached_code_is_recompiled_if_possible() {
        let folder = Folder::new();
        let flags: [&[&str]; 3] =
            [&["-DMAJOR=13"], &["-DMAJOR=12", "-DMINOR=4"], &["-DMAJOR=14", "-DFAILS"]];
        let [Some(newer), Some(older), Some(failing)] = flags.map(|f| compiler(folder.root(), f))
        else {
            return;
        };
        let cache = folder.path("cache");
        let code_by = |compiler: Option<&Nvrtc>| {
            let library = "NVRTC";
            let absent = || DriverError::NoLibrary { library, rejected: Vec::new(), folders: 0 };
            let code = cached(SOURCE, "sm_90a", || compiler.ok_or_else(absent), &cache);
            code.map(|code| String::from_utf8(code).unwrap())
        };
        assert!(matches!(code_by(None), Err(DriverError::NoLibrary { .. })));
        assert!(!is_cached(SOURCE, "sm_90a", &cache));
        let code_of = |version: &str| Ok(format!("code of NVRTC {version}"));
        assert_eq!(code_by(Some(&newer)), code_of("13.0"));
        // The three cases are no compiler, a compiler of another version, and a compiler that
        // does not support the GPU.
        assert_eq!(code_by(None), code_of("13.0"));
        assert_eq!(code_by(Some(&older)), code_of("12.4"));
        assert_eq!(code_by(Some(&failing)), code_of("12.4"));
        assert!(is_cached(SOURCE, "sm_90a", &cache));
        // A truncated file in the cache must be compiled again.
        let path = cache.join(image_name(SOURCE, "sm_90a"));
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(!is_cached(SOURCE, "sm_90a", &cache));
        let error = code_by(None).unwrap_err().to_string();
        assert!(error.contains(".cubin: has no checksum at its end"), "{error}");
        assert_eq!(code_by(Some(&newer)), code_of("13.0"));
        assert_eq!(code_by(None), code_of("13.0"));
    }

    #[test]
    fn the_assembler_reports_kernel_resources() {
        let log = "ptxas info    : Compiling entry function 'fill' for 'sm_90a'\n\
                   ptxas info    : Function properties for fill\n    \
                   8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
                   ptxas info    : Used 12 registers, used 1 barriers, 256 bytes smem\n";
        let expected =
            Usage { kernel: "fill".to_owned(), registers: 12, shared_bytes: 256, spill_bytes: 16 };
        assert_eq!(usage(log), [expected]);
    }
}
