//! Opens NVIDIA's libraries at run time and looks up their functions. An opened library stays
//! open until the process ends. This module does not call the functions.
#![expect(unsafe_code, reason = "opens libraries at run time; decision 0002")]

use std::ffi::{CStr, CString, OsStr, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::DriverError;
use super::libraries::{CudaLibrary, LibrarySearch, RejectedLibrary};

/// The version of a library, or the CUDA version that a driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LibraryVersion {
    /// Major version number. A library works with drivers of the same or a later major version.
    pub major: u32,
    /// Minor version, which counts the releases of a major version.
    pub minor: u32,
    /// Patch version, or `None` if the library does not report it.
    pub patch: Option<u32>,
}

impl fmt::Display for LibraryVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        self.patch.map_or(Ok(()), |patch| write!(f, ".{patch}"))
    }
}

/// An opened library with the table of its functions.
pub(super) struct OpenedLibrary<T> {
    pub functions: T,
    pub path: PathBuf,
    pub version: LibraryVersion,
    /// Files that were tried before this one and could not be used.
    pub rejected: Vec<RejectedLibrary>,
}

/// Whether a library was found on this machine, with its path and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryReport {
    /// Name of the library in NVIDIA's documentation.
    pub library: &'static str,
    /// Path and version of the file that was opened.
    pub used: Option<(PathBuf, LibraryVersion)>,
    /// Files that were tried earlier and could not be used.
    pub rejected: Vec<RejectedLibrary>,
    /// The reason why no file could be used.
    pub problem: Option<String>,
}

impl<T> OpenedLibrary<T> {
    /// Describes for `rowmill doctor` which file was loaded and which were rejected before it.
    pub fn report(&self, library: CudaLibrary) -> LibraryReport {
        let used = Some((self.path.clone(), self.version));
        let rejected = self.rejected.clone();
        LibraryReport { library: library.name(), used, rejected, problem: None }
    }
}

/// Opens the first candidate of `search` that `load` accepts. If `driver` is given, that driver
/// must support the major version of the candidate.
///
/// # Errors
/// Fails with [`DriverError::NoLibrary`], which has the reason for each candidate that exists.
pub(super) fn open_first<T>(
    search: &LibrarySearch,
    library: CudaLibrary,
    driver: Option<LibraryVersion>,
    load: impl Fn(&SharedLibrary) -> Result<(T, LibraryVersion), String>,
) -> Result<OpenedLibrary<T>, DriverError> {
    let no_folder = |folder: &Path| RejectedLibrary {
        path: folder.to_owned(),
        reason: "expected a folder of libraries, got no folder".to_owned(),
    };
    let mut rejected: Vec<RejectedLibrary> = search.missing_folders().map(no_folder).collect();
    for candidate in search.candidates(library) {
        let opened = match SharedLibrary::open(&candidate) {
            Ok(Some(opened)) => opened,
            Ok(None) => continue,
            Err(reason) => {
                rejected.push(RejectedLibrary { path: candidate, reason });
                continue;
            }
        };
        let path = opened.path().unwrap_or(candidate);
        let reason = match (load(&opened), driver) {
            (Ok((_, version)), Some(driver)) if version.major > driver.major => {
                format!("is version {version}, but the driver is for CUDA {driver}")
            }
            (Ok((functions, version)), _) => {
                return Ok(OpenedLibrary { functions, path, version, rejected });
            }
            (Err(reason), _) => reason,
        };
        // The linker may find the same file under several names.
        if !rejected.iter().any(|known| known.path == path) {
            rejected.push(RejectedLibrary { path, reason });
        }
    }
    let (library, folders) = (library.name(), search.folders().count());
    Err(DriverError::NoLibrary { library, rejected, folders })
}

/// A shared library that was opened at run time and stays open.
pub(super) struct SharedLibrary {
    handle: *mut c_void,
}

impl SharedLibrary {
    /// Opens the file at `path`. The linker searches for a name without a folder. Returns `None`
    /// if the linker finds no such file.
    pub fn open(path: &Path) -> Result<Option<Self>, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // RTLD_LOCAL keeps the symbols of two versions of a library apart. SAFETY: `name` is a
        // NUL-terminated C string that outlives the call. Loading runs the library's
        // constructors, which the user accepts by installing the library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Some(Self { handle }));
        }
        // SAFETY: `dlopen` has just failed, so `dlerror` returns a NUL-terminated C string.
        let text = unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
        // The message begins with the name of a dependency instead if that dependency is missing.
        let absent = format!("{}: cannot open shared object file: No such file", path.display());
        let is_name = path.components().count() == 1;
        if is_name && text.starts_with(&absent) { Ok(None) } else { Err(text) }
    }

    /// Returns the address of the function with this name.
    pub fn function(&self, name: &str) -> Result<*mut c_void, String> {
        let text = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: `handle` belongs to a library that stays open, and `text` is a NUL-terminated C
        // string.
        let address = unsafe { libc::dlsym(self.handle, text.as_ptr()) };
        if address.is_null() { Err(format!("has no function {name}")) } else { Ok(address) }
    }

    /// Returns the path of the file that the linker opened.
    fn path(&self) -> Option<PathBuf> {
        let mut map: MaybeUninit<*const LinkMapHead> = MaybeUninit::uninit();
        // SAFETY: `handle` belongs to a library that stays open. RTLD_DI_LINKMAP writes one
        // pointer to a record whose second member is a NUL-terminated path.
        let name = unsafe {
            if libc::dlinfo(self.handle, libc::RTLD_DI_LINKMAP, map.as_mut_ptr().cast()) != 0 {
                return None;
            }
            CStr::from_ptr((*map.assume_init()).name)
        };
        (!name.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }
}

/// The first members of `struct link_map` in `link.h`.
#[repr(C)]
struct LinkMapHead {
    address: usize,
    name: *const std::ffi::c_char,
}

/// Declares a table of a library's functions, and the function `load`, which looks up all of
/// them.
macro_rules! function_table {
    ($(#[$attribute:meta])* $table:ident {
        $($name:ident: fn($($argument:ty),*) -> $result:ty;)*
    }) => {
        $(#[$attribute])*
        #[expect(non_snake_case, reason = "the functions have the names of NVIDIA's headers")]
        struct $table {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            fn load(library: &$crate::cuda::loader::SharedLibrary) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) -> $result;
                        let address = library.function(stringify!($name))?;
                        // SAFETY: NVIDIA's header declares the function at `address` with this
                        // type.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(address) }
                    },)*
                })
            }
        }
    };
}
pub(super) use function_table;
