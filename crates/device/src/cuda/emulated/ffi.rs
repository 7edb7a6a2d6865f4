//! The foreign-function interface of the emulator: host memory that is passed to kernels, the
//! library of a kernel, and the call into it. The structs must match those of `runtime.cpp`.
#![expect(unsafe_code, reason = "calls into a library that is compiled at run time; decision 0048")]

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::error::DriverError;
use crate::cuda::grid::CheckedGrid;

/// The alignment in bytes of the CUDA driver's allocations.
const ALIGNMENT: usize = 256;
/// Fill byte of red zones. As a number it is implausible, and as an index it is out of bounds.
const ZONE: u8 = 0xa5;
/// Fill byte of new buffers. As a float it is NaN, and as an index it is out of bounds.
const POISON: u8 = 0xff;

/// A device buffer in host memory: `[red zone, padded to 256][bytes][red zone]`.
pub struct Allocation {
    region: Region,
    start: *mut u8,
    /// Bytes from the start of the allocation to the start of the buffer.
    before: usize,
    layout: Layout,
}

// SAFETY: an `Allocation` owns its memory, and kernels access the memory only while the device's
// lock is held.
unsafe impl Send for Allocation {}

/// A buffer as emulated kernels see it. The layout must match `Region` in `runtime.cpp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    bytes: u64,
    shadow: *mut c_void,
    padding: u64,
}

impl Allocation {
    /// Allocates a buffer of poisoned memory. Returns `None` if memory runs out.
    pub fn new(bytes: usize, red_zone: usize) -> Option<Self> {
        let before = red_zone.next_multiple_of(ALIGNMENT);
        let all = bytes.checked_add(before + red_zone)?;
        let layout = Layout::from_size_align(all, ALIGNMENT).ok()?;
        // SAFETY: the size of `layout` is above 0, because it includes the red zones.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: the red zones and the buffer lie inside the allocation, whose size is the sum
        // of the three.
        let first = unsafe {
            start.write_bytes(ZONE, before);
            let first = start.add(before);
            first.write_bytes(POISON, bytes);
            first.add(bytes).write_bytes(ZONE, red_zone);
            first
        };
        let (start_address, shadow) = (first.expose_provenance() as u64, ptr::null_mut());
        let region = Region { start: start_address, bytes: bytes as u64, shadow, padding: 0 };
        Some(Self { region, start, before, layout })
    }

    /// Returns the device address of the buffer's first byte, after the red zone.
    pub fn address(&self) -> u64 {
        self.region.start
    }

    /// Returns the size of the buffer in bytes, without the red zones.
    pub fn len(&self) -> usize {
        self.region.bytes as usize
    }

    /// Returns `bytes` bytes from `address` on, or `None` if they do not lie in this buffer.
    pub fn part(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        let offset = usize::try_from(address.checked_sub(self.region.start)?).ok()?;
        let end = offset.checked_add(bytes)?;
        if end > self.len() {
            return None;
        }
        // SAFETY: the buffer starts `before` bytes into the allocation, and `end` was checked to
        // lie inside the buffer. `new` initialized every byte.
        Some(unsafe { slice::from_raw_parts_mut(self.start.add(self.before + offset), bytes) })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.region.shadow.is_null() {
            let bytes = shadow_bytes(self.len());
            // SAFETY: `runtime.cpp` mapped the shadow with `shadow_bytes` of this region's
            // length.
            unsafe { libc::munmap(self.region.shadow, bytes) };
        }
        // SAFETY: `new` allocated `start` with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// Returns the size of a region's shadow memory in bytes. The size must equal `(region.bytes /
/// CELL_BYTES + 1) * sizeof(Cell)` in `runtime.cpp`.
fn shadow_bytes(bytes: usize) -> usize {
    (bytes / 2 + 1) * 48
}

/// A fault as the runtime writes it. The layout must match `Fault` in `runtime.cpp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Fault {
    pub kind: u32,
    pub block: u32,
    pub thread: u32,
    pub other_block: u32,
    pub other_thread: u32,
    pub line: u32,
    pub other_line: u32,
    pub mask: u32,
    pub pc: u64,
    pub other_pc: u64,
    pub address: u64,
    pub bytes: u64,
    pub is_write: u32,
    pub buffer: u32,
    file: [c_char; 64],
}

impl Fault {
    const NONE: Self = Self {
        kind: 0,
        block: 0,
        thread: 0,
        other_block: 0,
        other_thread: 0,
        line: 0,
        other_line: 0,
        mask: 0,
        pc: 0,
        other_pc: 0,
        address: 0,
        bytes: 0,
        is_write: 0,
        buffer: 0,
        file: [0; 64],
    };

    /// Returns the source file in which the fault occurred, up to the terminating zero.
    pub fn file(&self) -> String {
        let bytes = self.file.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
        String::from_utf8(bytes).unwrap_or_default()
    }
}

/// A launch as the runtime reads it. The layout must match `Task` in `runtime.cpp`.
#[repr(C)]
struct EmulatedTask {
    entry: EntryFunction,
    arguments: *const c_void,
    regions: *mut Region,
    region_count: u64,
    blocks: [u32; 2],
    threads: u32,
    shared_bytes: u32,
    settings: LaunchOptions,
    stamp: *mut u32,
}

/// Settings with which the emulator runs a launch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchOptions {
    pub order: u32,
    pub checked: u32,
    pub red_zone: u32,
}

/// The C signature of a kernel's entry point, which takes the packed arguments.
type EntryFunction = unsafe extern "C" fn(*const c_void);
/// The C signature of the function that runs all blocks of a launch. The function returns nonzero
/// after a fault.
type LaunchFunction = unsafe extern "C" fn(*const EmulatedTask, *mut Fault) -> i32;

/// A shared library compiled from a kernel's source, which stays loaded until the process ends.
pub struct KernelLibrary {
    pub path: PathBuf,
    handle: *mut c_void,
    launch: LaunchFunction,
    /// Symbols of the library with their sizes, as printed by `nm -S`.
    symbols: String,
    /// Lock that is held during a launch, because all threads share the state of the library's
    /// runtime.
    busy: Mutex<()>,
}

// SAFETY: `handle` is only passed to `dlsym`, which any thread may call. Launches are serialized
// by the lock `busy`.
unsafe impl Send for KernelLibrary {}
// SAFETY: shared references launch only under the lock `busy`, and look up names in a library
// that stays loaded.
unsafe impl Sync for KernelLibrary {}

impl KernelLibrary {
    /// Opens the library at `path`, or returns it again if it is already open.
    pub fn open(path: &Path) -> Result<Arc<Self>, DriverError> {
        static OPEN: Mutex<Vec<Arc<KernelLibrary>>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = open.iter().find(|library| library.path == path) {
            return Ok(Arc::clone(library));
        }
        let library = Arc::new(Self::load(path)?);
        open.push(Arc::clone(&library));
        Ok(library)
    }

    fn load(path: &Path) -> Result<Self, DriverError> {
        let broken = |problem: String| DriverError::Cache { path: path.to_owned(), problem };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| broken(e.to_string()))?;
        // SAFETY: `name` is a NUL-terminated C string that outlives the call. This program
        // compiled the library, which runs no code when it is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: `dlopen` has just failed, so `dlerror` returns a NUL-terminated C string.
            let text = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(broken(text.to_string_lossy().into_owned()));
        }
        let launch = symbol(handle, c"rowmill_launch");
        let launch = launch.ok_or_else(|| broken("no rowmill_launch in it".to_owned()))?;
        // SAFETY: `runtime.cpp` defines `rowmill_launch` with the signature `LaunchFunction`.
        let launch = unsafe { std::mem::transmute::<*mut c_void, LaunchFunction>(launch) };
        // `nm` is installed with the compiler.
        let symbols = Command::new("nm").arg("-S").arg(path).env_remove("LD_PRELOAD").output();
        let symbols = symbols.map_err(|error| broken(format!("nm: {error}")))?;
        let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
        Ok(Self { path: path.to_owned(), handle, launch, symbols, busy: Mutex::new(()) })
    }
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `handle` belongs to a library that stays loaded, or stands for the whole process,
    // and `name` is a NUL-terminated C string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// Returns the size of a static variable of the kernel `name`, if a line of `nm -S` shows one. The
/// shim stores shared memory in static variables, and kernels have no other static variables.
fn declared(line: &str, name: &str) -> Option<usize> {
    let mut words = line.split(' ').skip(1);
    let (bytes, _, symbol) = (words.next()?, words.next()?, words.next()?);
    let is_of_kernel = symbol.starts_with(&format!("_ZZL{}{name}", name.len()));
    is_of_kernel.then(|| usize::from_str_radix(bytes, 16).ok())?
}

/// Returns whether AddressSanitizer's library is loaded into this process.
pub fn has_sanitizer() -> bool {
    symbol(libc::RTLD_DEFAULT, c"__asan_init").is_some()
}

/// A kernel of a library, ready to be launched.
#[derive(Clone)]
pub struct Entry {
    library: Arc<KernelLibrary>,
    function: EntryFunction,
    shape: [u32; 2],
    declared_shared: usize,
}

impl Entry {
    /// Finds a kernel by name, or returns `None` if the library does not define it.
    pub fn find(library: &Arc<KernelLibrary>, name: &str) -> Option<Self> {
        let find =
            |prefix: &str| symbol(library.handle, &CString::new(format!("{prefix}_{name}")).ok()?);
        let (function, shape) = (find("rowmill_entry")?, find("rowmill_shape")?);
        // SAFETY: the macro KERNEL of `prelude.cu` defines both symbols with these types.
        let (function, shape) = unsafe {
            let function = std::mem::transmute::<*mut c_void, EntryFunction>(function);
            (function, shape.cast::<[u32; 2]>().read())
        };
        let declared_shared = library.symbols.lines().filter_map(|line| declared(line, name)).sum();
        Some(Self { library: Arc::clone(library), function, shape, declared_shared })
    }

    /// Returns the library that defines the kernel.
    pub fn library(&self) -> &KernelLibrary {
        &self.library
    }

    /// Returns the bytes of shared memory that the kernel declares.
    pub fn declared_shared(&self) -> usize {
        self.declared_shared
    }

    /// Returns the bytes of the kernel's arguments, and the largest number of threads in a block.
    pub fn shape(&self) -> [u32; 2] {
        self.shape
    }

    /// Runs all blocks and returns the first fault. `arguments` must have the length that
    /// [`Self::shape`] returns.
    pub fn run(
        &self,
        grid: CheckedGrid,
        settings: LaunchOptions,
        arguments: &[u8],
        buffers: &mut [Allocation],
        stamp: &mut u32,
    ) -> Option<Fault> {
        let words = arguments.len().div_ceil(size_of::<u64>());
        let mut aligned = vec![0u64; words];
        bytemuck::cast_slice_mut::<u64, u8>(&mut aligned)[..arguments.len()]
            .copy_from_slice(arguments);
        let mut regions: Vec<Region> = buffers.iter().map(|buffer| buffer.region).collect();
        let task = EmulatedTask {
            entry: self.function,
            arguments: aligned.as_ptr().cast(),
            regions: regions.as_mut_ptr(),
            region_count: regions.len() as u64,
            blocks: grid.blocks,
            threads: grid.threads,
            shared_bytes: grid.shared_bytes,
            settings,
            stamp,
        };
        let mut fault = Fault::NONE;
        let _busy = self.library.busy.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller keeps all buffers alive, and `arguments` has the length that the
        // kernel reads. If checks were requested, wrong accesses of the kernel itself are checked
        // one by one; otherwise the red zones detect them.
        let failed = unsafe { (self.library.launch)(&raw const task, &raw mut fault) } != 0;
        for (buffer, region) in buffers.iter_mut().zip(regions) {
            buffer.region.shadow = region.shadow;
        }
        failed.then_some(fault)
    }
}
